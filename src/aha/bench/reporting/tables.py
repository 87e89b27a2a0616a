"""The numbers of a report: columns, ranks, significance, and what they break down into."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, pairwise
from typing import NamedTuple

from aha.bench.reporting.significance import LEVEL, holm, paired_p
from aha.bench.run_reader import Column, Group
from aha.metrics import ARROWS, directions, side_columns
from aha.metrics.base import Direction
from aha.metrics.curves.base import AVERAGE
from aha.results.headroom import is_oracle
from aha.results.score_table import SummaryRow, by_image, student_quantile, summarise

SHADED = 3
_HEADLINES = ("ins_del", "neg_pos", "insertion", "deletion")
_BANDS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_MOST_CLASSES = 40
_MOST_DECIMALS = 4


@dataclass(frozen=True)
class TableEntry:
    """One number of a table.

    Attributes:
        rank: 1 for the best of its column, 0 where there is no better and worse.
        p: corrected p-value of the paired comparison with the best (`against_best`); NaN for the best itself.
        common: images that the best has too.
    """

    mean: float
    error: float
    n: int
    rank: int
    p: float
    common: int = 0

    @property
    def interval(self) -> tuple[float, float]:
        """Student's 95 % interval of the mean; NaN where there is no error."""
        reach = math.nan if math.isnan(self.error) else student_quantile(self.n - 1) * self.error
        return self.mean - reach, self.mean + reach

    @property
    def is_top(self) -> bool:
        """It is the best, or the images that both have do not suffice to tell it from the best."""
        return self.rank == 1 or (self.rank > 1 and self.common > 0 and not self.p < LEVEL)


@dataclass(frozen=True)
class Table:
    """Methods by metrics for one protocol."""

    protocol: str
    note: str
    columns: Sequence[Column]
    heads: Sequence[str]
    rows: Mapping[str, Mapping[Column, TableEntry]]

    def mean(self, column: Column, entry: TableEntry) -> str:
        """A mean in as many digits as its column is sure of, the same for all of it, so that they line up."""
        return f"{entry.mean:.{self._decimals[column]}f}"

    def error(self, column: Column, entry: TableEntry) -> str:
        """A standard error in the digits of its mean."""
        return f"{entry.error:.{self._decimals[column]}f}"

    @cached_property
    def _decimals(self) -> dict[Column, int]:
        return {
            column: _decimals(row[column] for row in self.rows.values() if column in row) for column in self.columns
        }


def _decimals(entries: Iterable[TableEntry]) -> int:
    """Digits behind the point, so that the smallest error shows two of its own."""
    known = list(entries)
    scales = [e.error for e in known if e.error > 0] or [abs(e.mean) / 100 for e in known if e.mean]
    finest = min((scale for scale in scales if math.isfinite(scale)), default=1e-3)
    return max(0, min(_MOST_DECIMALS, 1 - math.floor(math.log10(finest))))


def better(metric: str) -> Direction:
    """The better direction of a column."""
    return directions().get(metric, "neither")


def head_of(column: Column) -> str:
    """A column's name with its reference and its arrow."""
    metric, reference = column
    return " ".join(part for part in (metric, f"({reference})" if reference else "", ARROWS[better(metric)]) if part)


def summary_tables(group: Group, *, each_reference: bool = False) -> list[Table]:
    """A table per protocol: mean, standard error, n, rank, and how sure it is that the best is better."""
    values, aside = group.values, side_columns()
    averaged = {(protocol, metric) for protocol, (metric, reference) in values if reference == AVERAGE}
    figures = [row for row in group.scores.summary() if math.isnan(row.standard_error) and not _is_plain(row, values)]
    tables = []
    for protocol in dict.fromkeys(protocol for protocol, _ in values):
        columns = [
            column
            for name, column in values
            if name == protocol
            and column[0] not in aside
            and (each_reference or column[1] == AVERAGE or (protocol, column[0]) not in averaged)
        ]
        rows: dict[str, dict[Column, TableEntry]] = defaultdict(dict)
        for column in columns:
            for method, entry in _entries(column, values[protocol, column]).items():
                rows[method][column] = entry
        for row in figures:
            if row.protocol == protocol:
                columns += [] if (row.metric, "") in columns else [(row.metric, "")]
                rows[row.method][row.metric, ""] = TableEntry(row.mean, math.nan, row.n, 0, math.nan)
        note = next((p.note for p in group.scores.protocols if p.name == protocol), "")
        order = [method for method in group.methods if method in rows]
        tables.append(
            Table(protocol, note, columns, [head_of(c) for c in columns], {method: rows[method] for method in order})
        )
    return [table for table in tables if table.columns]


def _is_plain(row: SummaryRow, values: Mapping[tuple[str, Column], object]) -> bool:
    return (row.protocol, (row.metric, row.reference)) in values


def _entries(column: Column, values: Mapping[str, Mapping[tuple[str, int], float]]) -> dict[str, TableEntry]:
    direction = better(column[0])
    means = {
        method: summarise(method, column[0], "", column[1], values_by_image(found)) for method, found in values.items()
    }
    if direction == "neither":
        return {m: TableEntry(s.mean, s.standard_error, s.n, 0, math.nan) for m, s in means.items()}
    sign = 1 if direction == "higher" else -1
    most = max((found.n for found in means.values()), default=0)
    # Means of few of the images may be those of easy ones: they stand behind.
    few = {method for method, found in means.items() if 2 * found.n <= most}
    order = sorted(means, key=lambda method: (method in few, -sign * means[method].mean))
    rivals = [method for method in order if not is_oracle(method)] or order  # an oracle competes with nobody
    gaps = against_best(values, rivals, {method for method in rivals if method not in few})
    places = {method: place for place, method in enumerate(rivals, start=1)}
    return {
        method: TableEntry(
            means[method].mean,
            means[method].standard_error,
            means[method].n,
            places.get(method, 0),
            gaps[method].p if method in gaps else math.nan,
            len(gaps[method].differences) if method in gaps else 0,
        )
        for method in order
    }


class Gap(NamedTuple):
    """How far a method is from the best, image by image, and the corrected p-value of that."""

    differences: list[float]
    p: float


def against_best(
    values: Mapping[str, Mapping[tuple[str, int], float]], order: Sequence[str], candidates: Collection[str]
) -> dict[str, Gap]:
    """Method -> its gap to the first of the `order`, for all others.

    Which of the `candidates` is the best was found from the same images, and so any pair of them might have been looked
    at: Holm's correction counts them all, beside the comparisons of the best with everybody else.
    """
    best, *others = order
    gaps = {method: differences(values[method], values[best]) for method in others}
    p_values = {(best, method): paired_p(gap) for method, gap in gaps.items()}
    rivals = [method for method in others if method in candidates]
    p_values |= {(a, b): paired_p(differences(values[a], values[b])) for a, b in combinations(rivals, 2)}
    corrected = holm(p_values)
    return {method: Gap(gap, corrected[best, method]) for method, gap in gaps.items()}


def differences(ours: Mapping[tuple[str, int], float], theirs: Mapping[tuple[str, int], float]) -> list[float]:
    """Differences of the images, each the mean over the classes that both have."""
    return by_image((image, value - theirs[image, k]) for (image, k), value in ours.items() if (image, k) in theirs)


def values_by_image(values: Mapping[tuple[str, int], float]) -> list[float]:
    """Values of the images, each the mean over its classes."""
    return by_image((image, value) for (image, _), value in values.items())


def headline(group: Group) -> tuple[str, Column] | None:
    """Protocol and column by which images and methods are compared in pictures: Ins-Del where there is one."""
    values = group.values
    scored = [(protocol, column) for protocol, column in values if better(column[0]) != "neither"]
    scored = [name for name in scored if name[1][0] not in side_columns() | {"seconds", "forward_images"}]
    for metric in _HEADLINES:
        own = [name for name in scored if name[1][0] == metric]
        if own:
            return next((name for name in own if name[1][1] == AVERAGE), own[0])
    return scored[0] if scored else None


@dataclass(frozen=True)
class Verdict:
    """The headline in a sentence.

    Attributes:
        tied: methods that these images cannot tell from the best.
        apart: methods that have no image in common with it.
        others: number of all other methods that have.
    """

    head: str
    best: str
    mean: float
    error: float
    tied: Sequence[str]
    apart: Sequence[str]
    others: int


def verdict(group: Group) -> Verdict | None:
    """The best method by the headline, and those that may be as good; nothing where there is nothing to compare."""
    chosen = headline(group)
    if chosen is None:
        return None
    entries = {m: entry for m, entry in _entries(chosen[1], group.values[chosen]).items() if entry.rank}
    if len(entries) < 2:
        return None
    best = next(method for method, entry in entries.items() if entry.rank == 1)
    tied = [method for method, entry in entries.items() if entry.is_top and method != best]
    apart = [method for method, entry in entries.items() if not entry.common and method != best]
    others = len(entries) - 1 - len(apart)
    return Verdict(head_of(chosen[1]), best, entries[best].mean, entries[best].error, tied, apart, others)


@dataclass(frozen=True)
class Breakdown:
    """The mean of a metric, the headline, for each part of the images."""

    title: str
    metric: str
    heads: Sequence[str]
    rows: Sequence[tuple[str, int, Sequence[float | None]]]
    note: str = ""


def by_confidence(group: Group) -> Breakdown | None:
    """Images in bands of the model's score of the explained class."""
    chosen = headline(group)
    if chosen is None or any(not 0 <= fact.score <= 1 for fact in group.facts.values()):
        return None
    values, rows = group.values[chosen], []
    for low, high in pairwise(_BANDS):
        inside = {n for n, fact in group.facts.items() if low <= fact.score < high or (high == 1.0 == fact.score)}
        if inside:
            rows.append((f"{low:.1f} to {high:.1f}", len(inside), _means(values, group.methods, inside)))
    return Breakdown("model's score of the class", head_of(chosen[1]), group.methods, rows)


def by_class(group: Group) -> list[tuple[int, int, Sequence[float | None]]]:
    """Class (the true one, where it is known), images, and the headline's mean of each method."""
    chosen = headline(group)
    if chosen is None:
        return []
    members: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for (image, target), fact in group.facts.items():
        members[target if fact.label is None else fact.label].add((image, target))
    values = group.values[chosen]
    return [(index, len(own), _means(values, group.methods, own)) for index, own in sorted(members.items())]


def example_classes(
    rows: Sequence[tuple[int, int, Sequence[float | None]]],
) -> list[tuple[int, int, Sequence[float | None]]]:
    """The classes on which the methods differ most; those with several images first."""

    def spread(row: tuple[int, int, Sequence[float | None]]) -> tuple[bool, float]:
        known = [value for value in row[2] if value is not None]
        return row[1] > 1, max(known, default=0.0) - min(known, default=0.0)

    return sorted(rows, key=spread, reverse=True)[:_MOST_CLASSES]


def _means(
    values: Mapping[str, Mapping[tuple[str, int], float]], methods: Iterable[str], inside: set[tuple[str, int]]
) -> list[float | None]:
    found: list[float | None] = []
    for method in methods:
        own = [values[method][name] for name in inside if method in values and name in values[method]]
        found.append(math.fsum(own) / len(own) if own else None)
    return found

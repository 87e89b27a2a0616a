"""Two runs side by side: what both measured, on the images that both have."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from aha.bench.reporting.significance import LEVEL, holm, paired_p
from aha.bench.reporting.tables import better, differences, head_of, values_by_image
from aha.bench.run_reader import Group, Run, read_run
from aha.errors import OutputError
from aha.results.score_table import summarise, text_table


class Comparison(NamedTuple):
    """One column of one method in both runs.

    Attributes:
        difference: the second run's value less the first's, with its `standard_error`.
        p: of the paired test, corrected for all comparisons of the two runs (Holm).
    """

    model: str
    target_kind: str
    protocol: str
    method: str
    metric: str
    reference: str
    first: float
    second: float
    difference: float
    standard_error: float
    p: float
    n: int

    @property
    def verdict(self) -> str:
        """Better, worse, or not significantly different, as far as the images go."""
        direction = better(self.metric)
        if math.isnan(self.p) or self.p >= LEVEL or direction == "neither":
            return "same" if self.difference == 0 else "not significant"
        return "better" if (self.difference > 0) == (direction == "higher") else "worse"


def compare_runs(first: str | Path, second: str | Path) -> list[Comparison]:
    """Paired comparison of all that both runs measured.

    Runs of one model each are compared whatever the models are; otherwise only the same model counts as the same.
    Images that have nothing but their name in common are left out, and so are those whose truth is another.
    """
    runs = read_run(first), read_run(second)
    found = [row for a, b in _pairs(*runs) for row in _compare(a, b)]
    if not found:
        raise OutputError(f"{first} and {second} have no method and metric in common on the same images")
    corrected = holm({place: row.p for place, row in enumerate(found) if better(row.metric) != "neither"})
    return [row._replace(p=corrected.get(place, row.p)) for place, row in enumerate(found)]


def _pairs(first: Run, second: Run) -> Iterator[tuple[Group, Group]]:
    one_each = all(len({group.digest for group in run.groups}) == 1 for run in (first, second))
    for a in first.groups:
        for b in second.groups:
            if a.target_kind == b.target_kind and (one_each or (a.model, a.digest) == (b.model, b.digest)):
                yield a, b


def _compare(a: Group, b: Group) -> Iterator[Comparison]:
    ours, theirs = a.values, b.values
    model = a.model if a.model == b.model else f"{a.model} / {b.model}"
    # Mosaics of the same pictures are different pictures for models of different sizes.
    is_told = a.digest == b.digest or a.target_kind != "grid"
    unlike = {image for image, own in a.contents.items() if is_told and b.contents.get(image, own) != own}
    unlike |= {image for image, own in a.truths.items() if _differ(own, b.truths[image], labels=a.digest == b.digest)}
    for (protocol, (metric, reference)), by_method in ours.items():
        others = theirs.get((protocol, (metric, reference)), {})
        for method, values in by_method.items():
            # The predicted class may differ between models: then the image is what is common.
            left, right = _by_place(values), _by_place(others.get(method, {}))
            common = [name for name in left if name in right and name[0] not in unlike]
            if not common:
                continue
            gaps = differences({name: right[name] for name in common}, left)
            gap = summarise(method, metric, protocol, reference, gaps)
            sides = [values_by_image({name: side[name] for name in common}) for side in (left, right)]
            first, second = (math.fsum(side) / len(side) for side in sides)
            yield Comparison(
                model,
                a.target_kind,
                protocol,
                method,
                metric,
                reference,
                first,
                second,
                gap.mean,
                gap.standard_error,
                paired_p(gaps),
                gap.n,
            )


def _differ(ours: Mapping[str, str], theirs: Mapping[str, str], *, labels: bool) -> bool:
    """Is the truth of an image another? Models of other classes have other labels."""
    return any(theirs.get(what, own) != own for what, own in ours.items() if labels or what != "label")


def _by_place(values: dict[tuple[str, int], float]) -> dict[tuple[str, int], float]:
    """Values by image, and by the place of the class among the image's classes."""
    places: dict[str, int] = {}
    found = {}
    for (image, _), value in values.items():
        place = places[image] = places.get(image, -1) + 1
        found[image, place] = value
    return found


def as_text(rows: list[Comparison]) -> str:
    """The comparison as tables for a terminal, one per model, kind of target and protocol."""
    parts = []
    for group in dict.fromkeys((row.model, row.target_kind, row.protocol) for row in rows):
        own = [row for row in rows if (row.model, row.target_kind, row.protocol) == group]
        heads = ["method", "metric", "first", "second", "difference", "p (Holm)", "n", "second is"]
        body = [
            [
                row.method,
                head_of((row.metric, row.reference)),
                f"{row.first:.4g}",
                f"{row.second:.4g}",
                f"{row.difference:+.2g}" + ("" if math.isnan(row.standard_error) else f" ± {row.standard_error:.2g}"),
                "–" if math.isnan(row.p) else f"{row.p:.2g}",
                str(row.n),
                row.verdict,
            ]
            for row in own
        ]
        parts.append(text_table(", ".join(group), heads, body))
    return "\n\n".join(parts)

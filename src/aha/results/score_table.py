"""Scores as a tidy table: one row per image, method, metric, target and reference; summaries and files.

A score is never shown without its protocol, its direction and its number of images.
"""

from __future__ import annotations

import csv
import html
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from aha.core.disk import place_of, write_atomically
from aha.errors import MetricError, MissingExtra, OutputError, SpecError
from aha.metrics import ARROWS, directions, side_columns
from aha.metrics.curves.base import AVERAGE
from aha.metrics.protocols import Protocol
from aha.results.headroom import HEADROOM, WORST_TENTH, headroom_of, worst_tenth

_MOST_DECIMALS = 4  # of a mean in a table


class Row(NamedTuple):
    """One number of one map."""

    image: str
    method: str
    metric: str
    protocol: str
    target: int
    reference: str
    value: float


class Failure(NamedTuple):
    """What could not be explained or measured, and why; without a method or metric it holds for all of them."""

    image: str
    method: str
    metric: str
    reason: str

    @classmethod
    def of_image(cls, image: str, error: Exception) -> Failure:
        """An image that cannot be read; the reason names it."""
        text = str(error)
        return cls(image, "", "", text if image in text else f"{image}: {text}")


class CurveRow(NamedTuple):
    """One perturbation curve: class score over the share of changed pixels."""

    image: str
    method: str
    kind: str
    protocol: str
    target: int
    reference: str
    fractions: tuple[float, ...]
    scores: tuple[float, ...]


class SummaryRow(NamedTuple):
    """Mean of one metric of one method, its standard error and 95 % interval; dataset-wide figures have neither."""

    method: str
    metric: str
    protocol: str
    reference: str
    mean: float
    standard_error: float
    low: float
    high: float
    n: int


@dataclass
class Scores:
    """Everything an evaluation found."""

    rows: list[Row] = field(default_factory=list)
    curve_rows: list[CurveRow] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    protocols: tuple[Protocol, ...] = ()
    model: str = ""

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        methods, images = (len({getattr(row, name) for row in self.rows}) for name in ("method", "image"))
        return f"Scores({len(self)} values: {methods} methods, {images} images, {len(self.failures)} failures)"

    def extend(self, other: Scores) -> None:
        """Takes over all that another evaluation of the same kind found."""
        if not isinstance(other, Scores):
            raise MetricError(f"scores are extended by scores, not by a {type(other).__name__}")
        self.rows += other.rows
        self.curve_rows += other.curve_rows
        self.failures += other.failures

    def values(
        self, method: str, metric: str, reference: str | None = None, protocol: str | None = None
    ) -> list[float]:
        """Per-image values of one metric: its average over references where it has one, unless a reference is named.

        Raises:
            MetricError: It was measured with several protocols, or references without an average, and none is named.
        """
        return [row.value for row in rows_of(self.rows, method, metric, reference, protocol)]

    def curves(self, method: str | None = None) -> list[CurveRow]:
        """Deletion and insertion curves, of all methods or of one."""
        return [row for row in self.curve_rows if method in (None, row.method)]

    def summary(self) -> list[SummaryRow]:
        """Mean, standard error, 95 % interval and n for every method, metric, protocol and reference."""
        groups: dict[tuple[str, str, str, str], list[tuple[str, float]]] = defaultdict(list)
        for row in (*self.rows, *self.headroom()):
            groups[row.method, row.metric, row.protocol, row.reference].append((row.image, row.value))
        return [summarise(*key, by_image(values)) for key, values in groups.items()] + self._dataset_figures()

    def headroom(self) -> list[Row]:
        """How much of what is possible each map reaches, where `search` and `random_map` were scored as well.

        The reference names the search. See `aha.results.headroom`.
        """
        by_column: dict[tuple[str, str], dict[str, dict[tuple[str, int], float]]] = defaultdict(dict)
        for row in self.rows:
            if row.metric == "ins_del":
                by_column[row.protocol, row.reference].setdefault(row.method, {})[row.image, row.target] = row.value
        rows = []
        for (protocol, reference), values in by_column.items():
            found = headroom_of(values) if reference == AVERAGE or (protocol, AVERAGE) not in by_column else None
            if found is not None:
                rows += [
                    Row(image, method, HEADROOM, protocol, target, found.oracle, value)
                    for method, shares in found.shares.items()
                    for (image, target), value in shares.items()
                ]
        return rows

    def _dataset_figures(self) -> list[SummaryRow]:
        columns: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in self.rows:
            columns[row.method, row.protocol][row.metric].append(row.value)
        found = []
        for (method, protocol), values in columns.items():
            metrics = next((p.metrics for p in self.protocols if p.name == protocol), ())
            for chosen in metrics:
                for name, (value, n) in chosen.over_dataset(values).items():
                    found.append(SummaryRow(method, name, protocol, "", value, math.nan, math.nan, math.nan, n))
        return found + self._tails()

    def _tails(self) -> list[SummaryRow]:
        """Mean headroom of each method's worst tenth of the images."""
        shares: dict[tuple[str, str], dict[tuple[str, int], float]] = defaultdict(dict)
        for row in self.headroom():
            shares[row.method, row.protocol][row.image, row.target] = row.value
        found = []
        for (method, protocol), own in shares.items():
            worst = [own[name] for name in worst_tenth(own)]
            mean = math.fsum(worst) / len(worst)
            found.append(SummaryRow(method, WORST_TENTH, protocol, "", mean, math.nan, math.nan, math.nan, len(worst)))
        return found

    def plot(self, what: str = "curves") -> Any:
        """A matplotlib figure: "curves" with bands, or "bars" with intervals."""
        from aha.results.figures import plot_bars, plot_curves

        known: dict[str, Callable[[Scores], Any]] = {"curves": plot_curves, "bars": plot_bars}
        if what not in known:
            raise SpecError(f"unknown plot {what!r}; known: {', '.join(known)}")
        return known[what](self)

    def to_csv(self, path: str | Path) -> None:
        """All rows, one line each."""
        _write(path, csv_bytes(Row._fields, self.rows))

    def summary_to_csv(self, path: str | Path) -> None:
        """The summary, one line each."""
        _write(path, csv_bytes(SummaryRow._fields, self.summary()))

    def to_parquet(self, path: str | Path) -> None:
        """All rows as a Parquet file."""
        _write(path, parquet_bytes(Row._fields, self.rows))

    def to_pandas(self) -> Any:
        """All rows as a pandas data frame (extra `notebook`)."""
        try:
            import pandas
        except ImportError:
            raise MissingExtra("a data frame", "notebook") from None
        return pandas.DataFrame(self.rows, columns=list(Row._fields))

    def _repr_html_(self) -> str:
        """The tables of `to_markdown` for notebooks, with how much failed."""
        failed = f"<p>{len(self.failures)} failures; see <code>.failures</code></p>" if self.failures else ""
        empty = "" if self.rows else f"<p>{html.escape(repr(self))}</p>"
        return "".join(self._tables(html_table, each_reference=False)) + empty + failed

    def to_markdown(self, *, each_reference: bool = False) -> str:
        """Methods by metrics as a Markdown table, under a line that names the protocol.

        Where a metric averages over references, only the average is shown unless `each_reference` is set.
        """
        return "\n\n".join(self._tables(markdown_table, each_reference))

    def to_text(self, *, each_reference: bool = False) -> str:
        """The table of `to_markdown` for a terminal: columns in line, and no marks."""
        return "\n\n".join(self._tables(text_table, each_reference))

    def to_latex(self, *, each_reference: bool = False) -> str:
        """The table of `to_markdown` as LaTeX (booktabs)."""
        return "\n\n".join(self._tables(latex_table, each_reference))

    def _tables(self, layout: Callable[[str, list[str], list[list[str]]], str], each_reference: bool) -> Iterable[str]:
        summary = [row for row in self.summary() if row.metric not in side_columns()]
        averaged = {(row.metric, row.protocol) for row in summary if row.reference == AVERAGE}
        if not each_reference:
            summary = [r for r in summary if r.reference == AVERAGE or (r.metric, r.protocol) not in averaged]
        for protocol in dict.fromkeys(row.protocol for row in summary):
            rows = [row for row in summary if row.protocol == protocol]
            columns = list(dict.fromkeys((row.metric, row.reference) for row in rows))
            heads = ["method", *(_head(metric, reference) for metric, reference in columns), "n"]
            body = []
            for method in dict.fromkeys(row.method for row in rows):
                own = {(row.metric, row.reference): row for row in rows if row.method == method}
                cells = [_cell(own.get(column)) for column in columns]
                body.append([method, *cells, str(max(row.n for row in own.values()))])
            note = next((p.note for p in self.protocols if p.name == protocol), "")
            yield layout(f"{self.model}, protocol {protocol}: {note}", heads, body)


def rows_of(
    rows: Iterable[Row], method: str, metric: str, reference: str | None = None, protocol: str | None = None
) -> list[Row]:
    """One column of a method; what is not named must be the only one, as `Scores.values` says."""
    found = [row for row in rows if row.method == method and row.metric == metric]
    protocols = list(dict.fromkeys(row.protocol for row in found))
    if protocol is None and len(protocols) > 1:
        names = _listed(protocols)
        raise MetricError(f"{metric} of {method} was measured with the protocols {names}; say which with protocol=")
    found = [row for row in found if protocol in (None, row.protocol)]
    references = list(dict.fromkeys(row.reference for row in found))
    if reference is None and AVERAGE in references:
        reference = AVERAGE
    if reference is None and len(references) > 1:
        names = _listed(references)
        raise MetricError(f"{metric} of {method} was measured with the references {names}; say which with reference=")
    return [row for row in found if reference in (None, row.reference)]


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def by_image(values: Iterable[tuple[str, float]]) -> list[float]:
    """Each image's mean over its classes: they have the picture in common, so that only images count as independent."""
    found: dict[str, list[float]] = defaultdict(list)
    for image, value in values:
        found[image].append(value)
    return [own[0] if len(own) == 1 else math.fsum(own) / len(own) for own in found.values()]


def summarise(method: str, metric: str, protocol: str, reference: str, values: Sequence[float]) -> SummaryRow:
    """Mean with standard error and Student's 95 % interval."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return SummaryRow(method, metric, protocol, reference, mean, math.nan, math.nan, math.nan, n)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    error = deviation / math.sqrt(n)
    reach = student_quantile(n - 1) * error
    return SummaryRow(method, metric, protocol, reference, mean, error, mean - reach, mean + reach, n)


def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t."""
    from scipy.special import stdtrit  # here: explaining needs no scipy, which takes a second to load

    return float(stdtrit(freedom, 0.975))


def _head(metric: str, reference: str) -> str:
    arrow = ARROWS[directions().get(metric, "neither")]
    return f"{metric}{f' ({reference})' if reference else ''}{f' {arrow}' if arrow else ''}"


def _cell(row: SummaryRow | None) -> str:
    if row is None:
        return "–"
    error = row.standard_error
    if math.isnan(error) or not math.isfinite(row.mean):
        return f"{row.mean:.4g}"
    # Two digits of the error, and the mean to the same place: what stands behind it is chance.
    digits = max(0, 1 - math.floor(math.log10(error))) if error > 0 else _MOST_DECIMALS
    if digits > _MOST_DECIMALS:
        return f"{row.mean:.{_MOST_DECIMALS}f} ± {error:.2g}"
    text = f"{row.mean:.{digits}f}"
    return f"{text.removeprefix('-') if float(text) == 0 else text} ± {error:.{digits}f}"


def markdown_table(caption: str, heads: list[str], body: list[list[str]]) -> str:
    """A Markdown table under its caption."""
    lines = [caption, "", _line(heads), _line(["---"] * len(heads)), *map(_line, body)]
    return "\n".join(lines)


def html_table(caption: str, heads: list[str], body: list[list[str]]) -> str:
    """An HTML table under its caption."""
    from aha.results.templating import prose

    def row(cells: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    head, rows = row(heads, "th"), "".join(row(cells, "td") for cells in body)
    return f"<table><caption>{prose(caption)}</caption><thead>{head}</thead><tbody>{rows}</tbody></table>"


def text_table(caption: str, heads: list[str], body: list[list[str]]) -> str:
    """A table for a terminal under its caption: names to the left, numbers in line."""
    widths = [max(len(row[place]) for row in (heads, *body)) for place in range(len(heads))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]).rstrip()

    return "\n".join([caption, "", line(heads), line(["-" * width for width in widths]), *map(line, body)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


_LATEX = str.maketrans(
    {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "–": "--"}
)


def latex_table(caption: str, heads: list[str], body: list[list[str]]) -> str:
    """A LaTeX table (booktabs) with its caption."""
    head, *rest = (" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in (heads, *body))
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{caption.translate(_LATEX)}}}",
            rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"\toprule",
            head,
            r"\midrule",
            *rest,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
    )


def csv_bytes(fields: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """A CSV file's content."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(fields)
    writer.writerows(rows)
    return buffer.getvalue().encode()


def parquet_bytes(fields: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """A Parquet file's content."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("writing Parquet", "parquet") from None
    table = list(rows)
    columns = {field: [row[place] for row in table] for place, field in enumerate(fields)}
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


def _write(path: str | Path, content: bytes) -> None:
    def write(file: IO[bytes]) -> None:
        file.write(content)

    place = place_of(path)
    try:
        write_atomically(place, write)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error

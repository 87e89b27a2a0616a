"""The report of a run: one HTML page that needs nothing else, the tables and figures as files; no model is touched.

run/
  report.html         tables, curves, quality over seconds, breakdowns, examples, how to repeat it
  scores.csv          all values, in the columns of `aha evaluate`
  summary.csv         means, errors, ranks, significance
  per_class.csv       the headline metric for each class
  tables.md           tables.tex
  figures/            SVG and PNG
  scores.parquet      where pyarrow is installed
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from aha.bench.papers import Printed, printed_beside
from aha.bench.plan import as_toml, plan_of
from aha.bench.reporting import exports
from aha.bench.reporting.charts import Save, draw_curves, draw_trade_off, mean_of
from aha.bench.reporting.examples import ExampleImage, example_images
from aha.bench.reporting.tables import (
    SHADED,
    Breakdown,
    Table,
    Verdict,
    better,
    by_class,
    by_confidence,
    example_classes,
    head_of,
    headline,
    summary_tables,
    verdict,
)
from aha.bench.run_reader import Group, Run, read_run
from aha.core.disk import versions, write_atomically, writing
from aha.errors import OutputError
from aha.results.templating import templates_of

REPORT = "report.html"
_MOST_REASONS = 12


@dataclass(frozen=True)
class Section:
    """One model and kind of target as the page shows it."""

    title: str
    anchor: str
    group: Group
    n: int
    verdict: Verdict | None
    tables: Sequence[Table]
    curves: Sequence[str]
    trade_off: str
    cost: Sequence[tuple[str, float, float, float]]
    confidence: Breakdown | None
    classes: Breakdown | None
    examples: Sequence[ExampleImage]
    example_metric: str
    failures: Sequence[tuple[str, str, str, int]]
    printed: Sequence[Printed]

    def caption(self, table: Table) -> str:
        """What stands above one of its tables in a file."""
        return f"{self.title}, protocol {table.protocol}, n = {self.n}. {table.note}".strip()


def write_report(run: str | Path, out: str | Path | None = None) -> Path:
    """Writes the report of a run into its folder, or into `out`; returns the page."""
    read = read_run(run)
    if not any(group.scores.rows or group.scores.failures for group in read.groups):
        raise OutputError(f"{run} has no scores yet")
    place = read.folder if out is None else Path(out)
    with writing(place):
        (place / "figures").mkdir(parents=True, exist_ok=True)

        def save(name: str, content: bytes) -> None:
            write_atomically(place / name, lambda file: file.write(content))

        sections = [_section(read, group, save) for group in read.groups]
        tables = [(section.caption(table), table) for section in sections for table in section.tables]
        save(exports.SCORES, exports.scores_csv(read.groups))
        save(exports.SUMMARY, exports.summary_csv(read.groups))
        save("per_class.csv", exports.per_class_csv(read))
        save("tables.md", exports.tables_markdown(tables))
        save("tables.tex", exports.tables_latex(tables))
        if (content := exports.scores_parquet(read.groups)) is not None:
            save("scores.parquet", content)
        save(REPORT, _page(read, sections).encode())
    return place / REPORT


# What a section shows


def _section(run: Run, group: Group, save: Save) -> Section:
    title = f"{group.model}, {_titled(group.target_kind)}"
    anchor = re.sub(r"[^A-Za-z0-9]+", "-", f"{group.model}-{group.target_kind}-{group.digest[:6]}").strip("-").lower()
    classes, chosen = by_class(group), headline(group)
    named = [(run.class_name(group.model, index), n, means) for index, n, means in example_classes(classes)]
    note = f"{len(named)} of {len(classes)} classes, those on which the methods differ most; all are in per_class.csv."
    return Section(
        title=title,
        anchor=anchor,
        group=group,
        n=len({row.image for row in group.scores.rows}),
        verdict=verdict(group),
        tables=summary_tables(group),
        curves=draw_curves(group, anchor, save),
        trade_off=draw_trade_off(group, anchor, save),
        cost=[
            (m, mean_of(group.seconds[m]), mean_of(group.forward[m]), mean_of(group.backward[m])) for m in group.methods
        ],
        confidence=by_confidence(group),
        classes=Breakdown("class", head_of(chosen[1]), group.methods, named, note) if named and chosen else None,
        examples=example_images(run, group),
        example_metric=head_of(chosen[1]) if chosen else "",
        failures=_failures(group),
        printed=printed_beside(group, [plan["plan"] for plan in run.plans if group.is_of(plan)]),
    )


def _titled(target_kind: str) -> str:
    return {"top1": "predicted class", "label": "true class", "grid": "classes of mosaics"}.get(
        target_kind, f"target {target_kind}"
    )


def _failures(group: Group) -> list[tuple[str, str, str, int]]:
    """Method, metric, an example of the reason, and how often; names of images are left out of the comparison."""
    counts: Counter[tuple[str, str, str]] = Counter()
    examples: dict[tuple[str, str, str], str] = {}
    for failure in group.scores.failures:
        key = (failure.method, failure.metric, re.sub(r"[\d.]+", "#", failure.reason.replace(failure.image, "")))
        counts[key] += 1
        examples.setdefault(key, failure.reason)
    return [(key[0], key[1], examples[key], count) for key, count in counts.most_common(_MOST_REASONS)]


# The page


def _page(run: Run, sections: Sequence[Section]) -> str:
    environment = templates_of("aha.bench.reporting")
    environment.filters |= {"number": _number, "seconds": _seconds, "breakable": _breakable}
    plans = [plan_of(plan["plan"]) for plan in run.plans]
    title = next((plan.title for plan in plans if plan.title), "Which explanation to trust")
    return environment.get_template("report.html").render(
        title=title,
        sections=sections,
        plans=run.plans,
        toml=[as_toml([plan]) for plan in plans],
        left_out=_left_out(run.plans),
        written_by=versions(),
        shaded=SHADED,
        head_of=head_of,
        better=better,
        isnan=math.isnan,
        missing=sum(group.missing for group in run.groups),
    )


def _left_out(plans: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {method: reason for plan in plans for method, reason in plan.get("left_out", {}).items()}


def _breakable(method: str) -> Markup:
    """A name that may go on in the next line behind an underscore, or where its parameters begin."""
    return Markup(str(escape(method)).replace("(", "<wbr>(").replace("_", "_<wbr>"))


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def _seconds(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"

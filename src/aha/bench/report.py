"""The report of a run: one HTML page that needs nothing else, the tables and figures as files; no model is touched.

run/
  report.html         tables, curves, quality over seconds, breakdowns, telling images, how to repeat it
  scores.csv          all values, in the columns of `aha evaluate`
  summary.csv         means, errors, intervals, ranks, significance
  per_class.csv       the headline metric for each class
  tables.md           tables.tex
  figures/            SVG and PNG
  scores.parquet      where pyarrow is installed
"""

from __future__ import annotations

import base64
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from aha.bench.papers import Printed, printed_beside
from aha.bench.plan import as_toml, plan_of
from aha.bench.runs import Group, Run, read_run
from aha.bench.store import read_map, read_picture
from aha.bench.tables import (
    SHADED,
    Breakdown,
    Table,
    better,
    by_class,
    by_confidence,
    head_of,
    headline,
    summary_tables,
    telling_classes,
)
from aha.errors import MissingExtra, OutputError
from aha.figures import as_bytes, plot_curves, plot_trade_off
from aha.gallery import embedded
from aha.render import overlay
from aha.results import versions, write_atomically, writing
from aha.score_table import Row, Scores, csv_bytes, latex_table, markdown_table

REPORT, SCORES, SUMMARY = "report.html", "scores.csv", "summary.csv"
_MOST_CASES, _MOST_COLUMNS = 6, 8
_MOST_REASONS = 12
_MOST_CURVES = 12


@dataclass(frozen=True)
class Telling:
    """An image that tells methods apart, or on which all of them fail."""

    why: str
    image: str
    target: str
    score: float
    picture: str
    cells: Sequence[tuple[str, str, float | None]]


@dataclass(frozen=True)
class Section:
    """One model and kind of target as the page shows it."""

    title: str
    anchor: str
    group: Group
    n: int
    tables: Sequence[Table]
    curves: Sequence[str]
    trade_off: str
    cost: Sequence[tuple[str, float, float, float]]
    confidence: Breakdown | None
    classes: Breakdown | None
    telling: Sequence[Telling]
    failures: Sequence[tuple[str, str, str, int]]
    printed: Sequence[Printed]


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
        save(SCORES, _scores_csv(read.groups))
        save(SUMMARY, _summary_csv(sections))
        save("per_class.csv", _per_class_csv(read))
        save("tables.md", "\n\n".join(_each_table(sections, markdown_table)).encode())
        latex = "\n\n".join(_each_table(sections, latex_table))
        save("tables.tex", re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", latex).encode())
        _parquet(read.groups, place / "scores.parquet")
        save(REPORT, _page(read, sections).encode())
    return place / REPORT


# What a section shows


def _section(run: Run, group: Group, save: Callable[[str, bytes], None]) -> Section:
    title = f"{group.model}, {_asked(group.asked)}"
    anchor = re.sub(r"[^A-Za-z0-9]+", "-", f"{group.model}-{group.asked}-{group.digest[:6]}").strip("-").lower()
    tables = summary_tables(group)
    curves = []
    for number, scores in enumerate(_curve_scores(group)):
        curves.append(_figure(plot_curves(scores), f"curves-{anchor}-{number}", save))
    classes = by_class(group)
    named = [(run.class_name(group.model, index), n, means) for index, n, means in telling_classes(classes)]
    note = f"{len(named)} of {len(classes)} classes, those on which the methods differ most; all are in per_class.csv."
    return Section(
        title=title,
        anchor=anchor,
        group=group,
        n=len({row.image for row in group.scores.rows}),
        tables=tables,
        curves=curves,
        trade_off=_trade_off(group, anchor, save),
        cost=[(m, _mean(group.seconds[m]), _mean(group.forward[m]), _mean(group.backward[m])) for m in group.methods],
        confidence=by_confidence(group),
        classes=Breakdown("class", group.methods, named, note) if named else None,
        telling=_telling(run, group),
        failures=_failures(group),
        printed=printed_beside(group, [plan["plan"] for plan in run.plans if plan["digest"] == group.digest]),
    )


def _asked(word: str) -> str:
    return {"top1": "predicted class", "label": "true class", "grid": "classes of mosaics"}.get(word, f"target {word}")


def _curve_scores(group: Group) -> Iterable[Scores]:
    """Curves of each protocol; of many methods, those that score best."""
    chosen = headline(group)
    order = group.methods
    if chosen is not None and len(order) > _MOST_CURVES:
        means = {m: _mean(list(v.values())) for m, v in group.values[chosen].items()}
        sign = 1 if better(chosen[1][0]) == "higher" else -1
        order = sorted(means, key=lambda method: -sign * means[method])[:_MOST_CURVES]
    wanted = set(order)
    for protocol in dict.fromkeys(row.protocol for row in group.scores.curve_rows):
        rows = [row for row in group.scores.curve_rows if row.protocol == protocol and row.method in wanted]
        yield Scores(curve_rows=rows, model=group.model)


def _figure(figure: Any, name: str, save: Callable[[str, bytes], None]) -> str:
    """Saves a figure in both forms and gives it as a data URI."""
    drawn = as_bytes(figure, "svg")
    save(f"figures/{name}.svg", drawn)
    save(f"figures/{name}.png", as_bytes(figure, "png"))
    return "data:image/svg+xml;base64," + base64.b64encode(drawn).decode()


def _trade_off(group: Group, anchor: str, save: Callable[[str, bytes], None]) -> str:
    chosen = headline(group)
    if chosen is None:
        return ""
    table = next((t for t in summary_tables(group, each_reference=True) if t.protocol == chosen[0]), None)
    points = {
        method: (_mean(group.seconds[method]), table.rows[method][chosen[1]].mean, table.rows[method][chosen[1]].error)
        for method in group.methods
        if table is not None and chosen[1] in table.rows.get(method, {}) and group.seconds.get(method)
    }
    points = {method: point for method, point in points.items() if point[0] > 0}
    if not points:
        return ""
    quality = " ".join(part for part in (chosen[1][0], f"({chosen[1][1]})" if chosen[1][1] else "") if part)
    figure = plot_trade_off(
        points, quality=quality, direction=better(chosen[1][0]), title=f"{group.model} · {quality} · {chosen[0]}"
    )
    return _figure(figure, f"trade-off-{anchor}", save)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _failures(group: Group) -> list[tuple[str, str, str, int]]:
    """Method, metric, an example of the reason, and how often; names of images are left out of the comparison."""
    counts: Counter[tuple[str, str, str]] = Counter()
    examples: dict[tuple[str, str, str], str] = {}
    for failure in group.scores.failures:
        key = (failure.method, failure.metric, re.sub(r"[\d.]+", "#", failure.reason.replace(failure.image, "")))
        counts[key] += 1
        examples.setdefault(key, failure.reason)
    return [(key[0], key[1], examples[key], count) for key, count in counts.most_common(_MOST_REASONS)]


def _telling(run: Run, group: Group) -> list[Telling]:
    """Images on which methods disagree most, and those on which even the best does badly; needs kept maps."""
    chosen = headline(group)
    if chosen is None or not group.maps:
        return []
    sign = 1 if better(chosen[1][0]) == "higher" else -1
    by_image: dict[tuple[str, int], dict[str, float]] = {}
    for method, found in group.values[chosen].items():
        for name, value in found.items():
            if method in group.maps.get(name[0], {}) and name[0] in group.pictures:
                by_image.setdefault(name, {})[method] = value
    full = {name: found for name, found in by_image.items() if len(found) > 1}
    apart = sorted(full, key=lambda name: min(full[name].values()) - max(full[name].values()))
    hopeless = sorted(full, key=lambda name: max(sign * value for value in full[name].values()))
    picked = dict.fromkeys(apart[: _MOST_CASES // 2], "methods disagree")
    for name in hopeless[:_MOST_CASES]:
        if len(picked) < _MOST_CASES:
            picked.setdefault(name, "even the best does badly")
    cases = []
    for (image, target), why in picked.items():
        values = full[image, target]
        order = sorted(values, key=lambda method: -sign * values[method])
        if len(order) > _MOST_COLUMNS:
            order = [*order[: _MOST_COLUMNS // 2], *order[-_MOST_COLUMNS // 2 :]]
        try:
            picture = read_picture(run.folder, group.pictures[image])
            cells = [(method, _drawn(run, picture, group.maps[image][method][0]), values[method]) for method in order]
        except (OSError, ValueError):
            continue  # maps that were moved away are no reason for not having a report
        label, score = run.class_name(group.model, target), group.facts[image, target].score
        cases.append(Telling(why, image, label, score, embedded(picture), cells))
    return cases


def _drawn(run: Run, picture: Image.Image, where: list[Any]) -> str:
    return embedded(overlay(picture, np.nan_to_num(read_map(run.folder, where)), opacity=0.7))


# Files


def _scores_csv(groups: Sequence[Group]) -> bytes:
    """The columns of `aha evaluate`; several models or kinds of target are told apart by two more."""
    if len(groups) == 1:
        return csv_bytes(Row._fields, groups[0].scores.rows)
    rows = ((*row, group.asked, group.model) for group in groups for row in group.scores.rows)
    return csv_bytes([*Row._fields, "asked", "model"], rows)


def _summary_csv(sections: Sequence[Section]) -> bytes:
    heads = ["model", "asked", "protocol", "method", "metric", "reference", "mean", "standard_error", "n", "rank", "p"]
    rows = (
        [s.group.model, s.group.asked, table.protocol, method, *column, e.mean, e.error, e.n, e.rank or "", e.p]
        for s in sections
        for table in summary_tables(s.group, each_reference=True)
        for method, entries in table.rows.items()
        for column, e in entries.items()
    )
    return csv_bytes(heads, rows)


def _per_class_csv(run: Run) -> bytes:
    def rows() -> Iterable[Sequence[Any]]:
        for group in run.groups:
            chosen = headline(group)
            if chosen is None:
                continue
            for index, n, means in by_class(group):
                for method, mean in zip(group.methods, means, strict=True):
                    if mean is not None:
                        yield (
                            group.model,
                            group.asked,
                            *chosen[1],
                            index,
                            run.class_name(group.model, index),
                            n,
                            method,
                            mean,
                        )

    heads = ["model", "asked", "metric", "reference", "class", "name", "images", "method", "mean"]
    return csv_bytes(heads, rows())


def _parquet(groups: Sequence[Group], path: Path) -> None:
    rows = [row for group in groups for row in group.scores.rows]
    try:
        Scores(rows=rows).to_parquet(path)
    except MissingExtra:
        return


def _each_table(sections: Sequence[Section], layout: Callable[[str, list[str], list[list[str]]], str]) -> Iterable[str]:
    for section in sections:
        for table in section.tables:
            caption = f"{section.title}, protocol {table.protocol}, n = {section.n}. {table.note}".strip()
            body = [[method, *(_cell(table, method, column) for column in table.columns)] for method in table.rows]
            yield layout(caption, ["method", *table.heads], body)


def _cell(table: Table, method: str, column: tuple[str, str]) -> str:
    entry = table.rows[method].get(column)
    if entry is None:
        return "–"
    text = f"{entry.mean:.4g}" + ("" if math.isnan(entry.error) else f" ± {entry.error:.2g}")
    # Bold as in papers: the best, and those that these images cannot tell from it.
    return f"**{text}**" if entry.is_top else text


# The page


def _page(run: Run, sections: Sequence[Section]) -> str:
    environment = Environment(
        loader=PackageLoader("aha"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"number": _number, "seconds": _seconds}
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
        isnan=math.isnan,
        missing=sum(group.missing for group in run.groups),
    )


def _left_out(plans: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {method: reason for plan in plans for method, reason in plan.get("left_out", {}).items()}


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def _seconds(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"

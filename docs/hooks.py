"""What the site takes from the package while it is built, so that it cannot grow old.

A comment in a page, `<!-- generated: NAME -->`, is replaced by what the function of that name below returns.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from aha import catalogue
from aha.methods import METHODS
from aha.metrics import METRICS

DOCS = Path(__file__).parent
RESULTS = DOCS / "results"
_MARKER = re.compile(r"<!-- generated: (\w+) -->")
_ARROWS = {"higher": "↑", "lower": "↓"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """mkdocs calls this with the text of every page."""
    return _MARKER.sub(lambda found: GENERATED[found.group(1)](), markdown)


def methods() -> str:
    """Every registered method, by family: needs, cost and idea."""
    parts = []
    for family, entries in _by_family(catalogue.methods()).items():
        rows = [
            (
                f"`{entry.name}`",
                ", ".join(entry.needs) or "nothing",
                entry.details["cost"],
                entry.summary,
                entry.details["citation"],
            )
            for entry in entries
        ]
        parts.append(f"### {family.capitalize()}\n\n{table(('method', 'needs', 'cost', 'idea', 'source'), rows)}")
    return "\n\n".join(parts)


def scores() -> str:
    """Measured scores, one table per model, best first; a sentence where none are kept."""
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in read(RESULTS / "scores_summary.csv"):
        found[row["model"]].append(row)
    if not found:
        return "No table of scores is kept with this version; measure [on your images](bench.md)."
    return "\n\n".join(f"**{model}**\n\n{_score_table(rows)}" for model, rows in found.items())


def _score_table(rows: Iterable[dict[str, str]]) -> str:
    heads = ("method", "against `grad_cam`", "Ins-Del ↑", "Deletion ↓", "Insertion ↑", "passes", "n", "protocol")
    # Values of different protocols and photographs cannot be compared; differences on common photographs can.
    ordered = sorted(rows, key=lambda row: -float(row["gap"]))
    return table(heads, [_score_cells(row) for row in ordered])


def _score_cells(row: dict[str, str]) -> tuple[str, ...]:
    error = f" ± {float(row['ins_del_se']):.3f}" if row.get("ins_del_se") else ""
    return (
        f"`{row['method']}`",
        f"{float(row['gap']):+.3f} ± {float(row['gap_se']):.3f}",
        f"{float(row['ins_del']):.3f}{error}",
        f"{float(row['deletion']):.3f}",
        f"{float(row['insertion']):.3f}",
        f"{float(row['forward']):.0f} + {float(row['backward']):.0f}",
        row["n"],
        row["protocol"],
    )


def gallery() -> str:
    """The sheet of all maps, and what they are worth and cost; a sentence where none were drawn."""
    rows = read(RESULTS / "gallery.csv")
    if not rows or not (DOCS / "images" / "gallery.jpg").is_file():
        return "No gallery is kept with this version; `python docs/draw_gallery.py` draws one."
    heads = ("method", "Ins-Del ↑", "Deletion ↓", "Insertion ↑", "forward", "backward", "seconds")
    cells = [
        (
            f"`{row['method']}`",
            *(f"{float(row[name]):.3f}" for name in ("ins_del", "deletion", "insertion")),
            row["forward"],
            row["backward"],
            f"{float(row['seconds']):.1f}",
        )
        for row in rows
    ]
    sheet = "![A photograph, and the maps of all methods over it, best first](images/gallery.jpg)"
    return f"{sheet}\n\n{table(heads, cells)}"


def metrics() -> str:
    """Every registered metric, its columns with their direction, and what it asks of the images."""
    rows = [
        (
            f"`{entry.name}`",
            ", ".join(
                f"{column} {_ARROWS.get(direction, '')}".strip()
                for column, direction in entry.details["columns"].items()
            ),
            ", ".join(entry.needs) or "nothing",
            entry.summary,
            entry.details["citation"],
        )
        for entry in catalogue.metrics()
    ]
    return table(("metric", "columns", "needs", "what it measures", "source"), rows)


def protocols() -> str:
    """Every named protocol with all its choices."""
    rows = [(f"`{entry.name}`", entry.summary, _folded(entry.details["metrics"])) for entry in catalogue.protocols()]
    return table(("protocol", "note", "in full"), rows)


def references() -> str:
    """Every registered reference with its parameters."""
    rows = [(f"`{entry.name}`", entry.summary, entry.details["usage"]) for entry in catalogue.references()]
    return table(("reference", "what removed pixels show", "parameters"), rows)


def truth() -> str:
    """Precision on generated images, and the detection of shortcuts, of all methods; a sentence where none are kept."""
    precision: dict[str, dict[str, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    detection: dict[str, dict[str, list[dict[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for row in read(RESULTS / "truth.csv"):
        marked = re.fullmatch(r"(shortcut-\w+)-([\d.]+)-\d+", row["set"])
        if row["metric"] == "precision_at_k" and (marked is None or marked[2] == "1"):
            precision[marked[1] if marked else row["set"]][row["method"]].append(row)
        if row["metric"] == "shortcut_auroc":
            detection[row["set"]][row["method"]].append(row)
    if not precision:
        return "No results are kept with this version; measure [your own](#known-truth)."
    names = list(precision)
    parts = [_truth_table({name: precision[name] for name in names[i : i + 6]}) for i in range(0, len(names), 6)]
    if detection:
        parts.append(f"Detection of shortcuts, `shortcut_auroc`:\n\n{_truth_table(detection)}")
    return "\n\n".join(parts)


def _truth_table(columns: dict[str, dict[str, list[dict[str, str]]]]) -> str:
    """A row for each method, the best on average first; of several networks their mean and its standard error."""
    methods = {method for own in columns.values() for method in own}
    cells = {m: [_mean_of(own[m]) if m in own else None for own in columns.values()] for m in methods}
    best = [max(mean for own in cells.values() if (found := own[i]) for mean in found[:1]) for i in range(len(columns))]

    def shown(found: tuple[float, float] | None, top: float) -> str:
        if found is None:
            return ""
        text = f"{found[0]:.2f}" + (f" ± {found[1]:.2f}" if found[1] >= 0 else "")
        return f"**{text}**" if found[0] == top else text

    order = sorted(methods, key=lambda m: (-fmean([found[0] for found in cells[m] if found] or [0.0]), m))
    rows = [(f"`{m}`", *(shown(found, top) for found, top in zip(cells[m], best, strict=True))) for m in order]
    return table(("method", *(f"`{name}`" for name in columns)), rows)


def _mean_of(rows: Sequence[dict[str, str]]) -> tuple[float, float]:
    """Mean and standard error, which is negative where there is none."""
    means = [float(row["mean"]) for row in rows]
    if len(means) > 1:
        return fmean(means), stdev(means) / len(means) ** 0.5
    return means[0], float(rows[0]["standard_error"] or -1)


def _folded(texts: Sequence[str]) -> str:
    """Long texts that open at a click."""
    count = f"{len(texts)} metric{'s' * (len(texts) != 1)}"
    return f"<details><summary>{count}</summary>{'<br>'.join(f'`{text}`' for text in texts)}</details>"


def method_reference() -> str:
    """A place for each method's docstring."""
    return "\n\n".join(f"::: {METHODS[name].__module__}.{METHODS[name].__name__}" for name in METHODS)


def metric_reference() -> str:
    """A place for each metric's docstring."""
    return "\n\n".join(f"::: {METRICS[name].__module__}.{METRICS[name].__name__}" for name in METRICS)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def read(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file; none if it is not there."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _by_family(entries: Iterable[catalogue.Entry]) -> dict[str, list[catalogue.Entry]]:
    found: dict[str, list[catalogue.Entry]] = defaultdict(list)
    for entry in entries:
        found[entry.family].append(entry)
    return dict(sorted(found.items()))


GENERATED: dict[str, Callable[[], str]] = {
    function.__name__: function
    for function in (
        methods,
        scores,
        gallery,
        metrics,
        protocols,
        references,
        truth,
        method_reference,
        metric_reference,
    )
}

"""Finished evaluations and benchmarks: their tables, and the images that stand out in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aha.auditing.record import PAGE as AUDIT
from aha.auditing.record import is_audit
from aha.bench import read_run
from aha.bench.records import PlanEntry
from aha.errors import OutputError
from aha.metrics import ARROWS, directions
from aha.metrics.curves.base import AVERAGE
from aha.results.score_table import Row, Scores, SummaryRow, rows_of

REPORT = "report.html"
_MOST_ROWS = 1000
_WHISKERS = 1.5  # quartile ranges beyond the quartiles, as in a box plot


@dataclass(frozen=True)
class ServedRun:
    """Scores of one model and kind of target, from a folder that `aha evaluate` or `aha bench` wrote.

    Attributes:
        folder: where it lies.
        name: what people call it.
        model: text of the model.
        rows: the scores.
        roots: folders in which relative names of images start.
    """

    folder: Path
    name: str
    model: str
    rows: Sequence[Row]
    roots: Sequence[Path] = ()

    @property
    def report(self) -> Path | None:
        """The run's own page, if it has one."""
        path = self.folder / REPORT
        return path if path.is_file() else None

    @property
    def audit(self) -> Path | None:
        """The page of the audit whose folder it is, if it is one that was judged."""
        path = self.folder / AUDIT
        return path if is_audit(self.folder) and path.is_file() else None

    def overview(self) -> dict[str, Any]:
        """Methods, metrics and their means."""
        arrows = {name: ARROWS[direction] for name, direction in directions().items()}
        rows = Scores(rows=list(self.rows), model=self.model).summary()
        return {
            "name": self.name,
            "model": self.model,
            "images": len({row.image for row in self.rows}),
            "methods": list(dict.fromkeys(row.method for row in self.rows)),
            "columns": self._columns(arrows),
            "summary": [{**_finite(row), "arrow": arrows.get(row.metric, "")} for row in rows],
            "has_report": self.report is not None,
            "has_audit": self.audit is not None,
        }

    def _columns(self, arrows: Mapping[str, str]) -> list[dict[str, str]]:
        """What was measured, apart for each protocol and reference, with a title that tells it from the others."""
        columns = list(dict.fromkeys((row.metric, row.protocol, row.reference) for row in self.rows))
        columns.sort(key=lambda column: column[2] != AVERAGE)  # what sums up the others is seen without scrolling
        many = len({protocol for _, protocol, _ in columns}) > 1
        return [
            {
                "metric": metric,
                "protocol": protocol,
                "reference": reference,
                "title": " ".join(filter(None, [metric, arrows.get(metric), reference, f"· {protocol}" * many])),
            }
            for metric, protocol, reference in columns
        ]

    def images(
        self, method: str, metric: str, reference: str | None = None, protocol: str | None = None
    ) -> list[dict[str, Any]]:
        """One method's values of one metric, lowest first; those far from the others are marked.

        Raises:
            MetricError: There are several protocols or references, and none is named.
        """
        found = rows_of(self.rows, method, metric, reference, protocol)
        rows = sorted((row for row in found if math.isfinite(row.value)), key=lambda row: row.value)
        if not rows:
            return []
        low, high = np.percentile([row.value for row in rows], [25, 75])
        reach = _WHISKERS * (high - low)
        kept = rows if len(rows) <= _MOST_ROWS else rows[: _MOST_ROWS // 2] + rows[-_MOST_ROWS // 2 :]
        return [
            {
                "image": row.image,
                "title": Path(row.image).name,
                "target": row.target,
                "value": row.value,
                "outlier": bool(row.value < low - reach or row.value > high + reach),
            }
            for row in kept
        ]

    def picture(self, image: str) -> Path:
        """The file of an image that the run lists, if it is still where it was; else its name alone.

        Raises:
            OutputError: It lists no such image.
        """
        if not any(row.image == image for row in self.rows):
            raise OutputError(f"{self.name} lists no image {image[:80]!r}")
        places = [root / image for root in self.roots]  # an absolute name stays what it is
        return next((place for place in places if place.is_file()), Path(image))


def read_runs(folder: Path) -> list[ServedRun]:
    """Reads a folder once; a benchmark gives one run for each model and kind of target.

    Raises:
        OutputError: It holds no scores.
    """
    found = read_run(folder)
    groups, roots = found.groups, _roots(found.plans)
    if not groups:
        raise OutputError(f"{folder} holds no scores yet")
    name = folder.resolve().name
    titles = [name] if len(groups) == 1 else [f"{name}: {group.model}, {group.target_kind}" for group in groups]
    named = zip(titles, groups, strict=True)
    return [ServedRun(folder, title, group.model, group.scores.rows, roots) for title, group in named]


def _roots(plans: Sequence[PlanEntry]) -> list[Path]:
    """Where names of images start: in the data of the plans, or where these were carried out."""
    found: dict[Path, None] = {}
    for plan in plans:
        folder, data = Path(plan["folder"]), plan["plan"]["data"]
        for text in [data] if isinstance(data, str) else data:
            place = text.partition(":")[2] or text
            found[folder / (place.rpartition("@")[0] or place)] = None
        found[folder] = None
    return list(found)


def _finite(row: SummaryRow) -> dict[str, Any]:
    """The row's entries, with nothing for numbers that are not finite."""
    entries = row._asdict().items()
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in entries}

"""Published tables as plans, and their printed numbers next to ours.

`paper:aha-table1` and the like name the closest public weights, the protocol as far as the paper states it, and the
methods as this package knows them; those that it lacks, or that do not fit a model, are left out and named in the
report. The numbers are in `printed.json`. Hardware differs, so printed times are not compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aha.bench.papers.tables import BASELINES, COLUMNS, MODELS, PAPERS, PaperTable
from aha.bench.plan import Plan, make_plans
from aha.bench.run_reader import Group
from aha.core.registry import nearest_names
from aha.errors import SpecError
from aha.metrics.curves.base import AVERAGE

PREFIX = "paper:"
_PRINTED = Path(__file__).parent / "printed.json"


def paper_plans(text: str, changes: Mapping[str, Any], imagenet: Path | None = None) -> list[Plan]:
    """The plans of `paper:NAME`, with changes from the command line."""
    name = text.removeprefix(PREFIX)
    if name not in PAPERS:
        hints = nearest_names(name, PAPERS)
        raise SpecError(
            f"unknown paper {name!r}; {f'did you mean {hints[0]}?' if hints else 'known: ' + ', '.join(PAPERS)}"
        )
    paper = PAPERS[name]
    data = changes.get("data") or (f"{paper.data}:{imagenet}" if imagenet is not None else None)
    if data is None:
        raise SpecError(f"{text} needs its images: --imagenet DIR, or --data {paper.data}:PLACE")
    settings = {
        "model": [MODELS[model] for model in paper.models],
        "methods": list(dict.fromkeys((*_specs(paper), *BASELINES))),
        "metrics": list(paper.metrics),
        "targets": list(paper.targets),
        "title": paper.title,
        "optional": True,
        **paper.settings,
    }
    return make_plans({**settings, **changes, "data": data, "paper": name}, source=text)


def _specs(paper: PaperTable) -> Sequence[str]:
    if paper.methods:
        return paper.methods
    printed = (method for part in _parts(paper).values() for method in part)
    return [spec for method in dict.fromkeys(printed) if (spec := paper.method(method)) is not None]


@dataclass(frozen=True)
class Printed:
    """A number of a paper beside ours."""

    method: str
    metric: str
    ours: float
    printed: float
    n: int
    source: str
    caveat: str


def printed_beside(group: Group, plans: Sequence[Mapping[str, Any]]) -> list[Printed]:
    """Printed numbers of what the group measured, where its plans repeat a paper."""
    found = []
    summary = group.scores.summary()
    for name in dict.fromkeys(plan.get("paper", "") for plan in plans):
        paper = PAPERS.get(name)
        if paper is None:
            continue
        model = next((m for m in paper.models if MODELS[m] == group.model), paper.models[0])
        target = "ground_truth" if group.target_kind == "label" and "top1" in paper.targets else "predicted"
        stands = "" if MODELS[model] == group.model else f" {group.model} stands in for the paper's {model}."
        for part, methods in _parts(paper).items():
            part_model, part_target, reference = part.split(" | ")
            if (part_model, part_target) != (model, target):
                continue
            for method, values in methods.items():
                for metric, value in values.items():
                    column = paper.columns.get(metric, COLUMNS.get(metric, ""))
                    own = [row for row in summary if row.method == paper.method(method) and row.metric == column]
                    own = [row for row in own if _same_reference(reference, row.reference, len(own))]
                    if own:
                        shown = f"{column} {reference}".strip()
                        source = f"{method}, {model}, {paper.title.partition(':')[0]} ({_source(paper)})"
                        caveat = paper.caveat + stands
                        found.append(Printed(own[0].method, shown, own[0].mean, value, own[0].n, source, caveat))
    return found


def printed_values(table: str, part: str) -> dict[str, dict[str, float]]:
    """A part of a table ("ViT-B/16 | predicted | blur" of "AHA 1"): its numbers by method and metric as printed."""
    found: dict[str, dict[str, float]] = _content()["tables"][table][part]
    return found


def _same_reference(printed: str, ours: str, candidates: int) -> bool:
    if printed == "mean_of_3":
        return ours == AVERAGE
    if printed:
        return ours == printed or ours.startswith(f"{printed}(")
    return candidates == 1 or ours in ("", AVERAGE)


@cache
def _content() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_PRINTED.read_text(encoding="utf-8"))
    return found


def _parts(paper: PaperTable) -> dict[str, dict[str, dict[str, float]]]:
    tables = _content()["tables"]
    merged: dict[str, dict[str, dict[str, float]]] = {}
    for table in paper.tables:
        for part, methods in tables[table].items():
            merged.setdefault(part, {}).update(methods)
    return merged


def _source(paper: PaperTable) -> str:
    return str(_content()["sources"][paper.tables[0].partition(" ")[0]])

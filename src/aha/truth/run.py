"""`aha bench truth:NAME`: every trial of a set becomes an ordinary plan, and what its maps found one table.

Prepared networks and finished results are in the run folder, so that the same command resumes it.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from aha.bench.plan import make_plans
from aha.bench.run_reader import Run
from aha.bench.runner import BenchRun
from aha.core.disk import write_atomically, writing
from aha.errors import ModelError, SpecError
from aha.truth.prepared import Prepared, prepare
from aha.truth.sets import PREFIX, trials_of
from aha.truth.shortcuts import IGNORES, RELIES

RESULTS = "truth.csv"
PROTOCOL, IMAGES = "truth", 24
METHODS = (
    "aha",
    "grad_cam",
    "grad_cam_pp",
    "hires_cam",
    "layer_cam",
    "eigen_cam",
    "score_cam",
    "ablation_cam",
    "gradient",
    "input_x_gradient",
    "smooth(gradient)",
    "guided_backprop",
    "integrated_gradients(steps=20)",
    "gradient_shap",
    "lrp",
    "occlusion",
    "rise(n=300)",
    "lime",
    "kernel_shap(n=1000)",
    "shapley_sampling",
    "edge_map",
    "center_map",
    "random_map",
)
"""What is measured where nothing else is asked for: all that fit small networks and take no minutes each."""
_OWN = ("model", "weights", "texts", "mean", "std", "input_size", "fit", "pretrained", "score", "targets", "filter")


class TruthLine(NamedTuple):
    """One number of the table: of a network alone, of a method on it, or of a method on all networks of a mark."""

    set: str
    method: str
    metric: str
    mean: float
    standard_error: float | None
    n: int


@dataclass
class TruthRun:
    """The trials of a set, prepared one after the other.

    Attributes:
        prepared: networks that have been prepared.
        refused: why others cannot be used.
    """

    text: str
    changes: Mapping[str, Any]
    out: Path

    def __post_init__(self) -> None:
        for name in _OWN:
            if name in self.changes:
                raise SpecError(f"{self.text} trains networks of its own; leave out {name}")
        data = self.changes.get("data")
        if data is not None and not isinstance(data, str):
            raise SpecError(f"{self.text} takes one folder or CSV file of photographs")
        self.trials = trials_of(self.text, data, int(self.changes.get("seed", 0)))
        self.prepared: list[Prepared] = []
        self.refused: dict[str, str] = {}

    def runs(self, on_network: Callable[[str], None] = lambda text: None) -> Iterator[BenchRun]:
        """A run for each network that has learned and whose truth has a place."""
        kept = {name: value for name, value in self.changes.items() if name not in ("data", "limit")}
        for number, trial in enumerate(self.trials, start=1):
            on_network(f"{trial.name}: network {number} of {len(self.trials)}")
            try:
                found = prepare(trial, self.out, int(self.changes.get("limit", IMAGES)))
            except ModelError as error:
                self.refused[trial.name] = str(error)
                continue
            self.prepared.append(found)
            if found.data is None:
                continue
            settings = {"methods": list(METHODS), "metrics": [PROTOCOL], "optional": True, "maps": "none", **kept}
            given = {"model": found.model.spec, "data": f"csv:{found.data}", "targets": ["label"]}
            (plan,) = make_plans({**settings, **given}, source=self.text)
            yield BenchRun(replace(plan, title=plan.title or self.text), self.out, model=found.model)
        if not self.prepared:
            raise ModelError(next(iter(self.refused.values())))

    def lines(self, read: Run | None) -> list[TruthLine]:
        """What was found."""
        names = {found.name for found in self.prepared}
        alone = [
            TruthLine(found.name, "", fact, value, None, 1)
            for found in self.prepared
            for fact, value in found.facts.items()
        ]
        of_maps = [
            TruthLine(name, row.method, row.metric, row.mean, row.standard_error, row.n)
            for group in (read.groups if read is not None else ())
            if (name := group.model.removeprefix(PREFIX)) in names
            for row in group.scores.summary()
        ]
        return [*alone, *of_maps, *detection(alone, of_maps)]

    def write(self, lines: Sequence[TruthLine]) -> Path:
        """The table as `truth.csv`."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(TruthLine._fields)
        table.writerows([*line[:3], *("" if v is None else f"{v:.6g}" for v in line[3:])] for line in lines)
        with writing(self.out):
            write_atomically(self.out / RESULTS, lambda file: file.write(text.getvalue().encode()))
        return self.out / RESULTS


def detection(
    alone: Sequence[TruthLine], of_maps: Sequence[TruthLine], metric: str = "mass_in_truth"
) -> list[TruthLine]:
    """Area under the ROC: does a method's mean mass on the mark tell networks that rely on it from those that do not?

    Which networks rely on it is known by what the mark does to their answers; those in between do not count.
    """
    turned = {line.set: line.mean for line in alone if line.metric == "turned"}
    masses: dict[tuple[str, str], list[tuple[bool, float]]] = defaultdict(list)
    for line in of_maps:
        share = turned.get(line.set)
        if line.metric != metric or share is None or IGNORES < share < RELIES:
            continue
        masses[line.set.rsplit("-", 2)[0], line.method].append((share >= RELIES, line.mean))
    found = []
    for (mark, method), values in masses.items():
        area = area_under_roc([is_there for is_there, _ in values], [value for _, value in values])
        if area is not None:
            found.append(TruthLine(mark, method, "shortcut_auroc", area, None, len(values)))
    return found


def area_under_roc(is_positive: Sequence[bool], values: Sequence[float]) -> float | None:
    """How often a positive has the larger value, ties counted half; None where one kind is missing."""
    from scipy.stats import mannwhitneyu

    yes = [value for value, there in zip(values, is_positive, strict=True) if there]
    no = [value for value, there in zip(values, is_positive, strict=True) if not there]
    if not yes or not no:
        return None
    return float(mannwhitneyu(yes, no).statistic) / (len(yes) * len(no))


def as_text(lines: Sequence[TruthLine], refused: Mapping[str, str]) -> str:
    """Methods by the mean of each metric over the networks, the best precision first; and what was left out."""
    columns = list(dict.fromkeys(line.metric for line in lines if line.method))
    by_method: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        if line.method:
            by_method[line.method][line.metric].append(line.mean)
    rows = [[method, *(f"{fmean(v[c]):.3f}" if c in v else "" for c in columns)] for method, v in by_method.items()]
    rows.sort(key=lambda row: row[1], reverse=True)
    widths = [max(map(len, column)) for column in zip(["method", *columns], *rows, strict=True)]
    shown = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in (["method", *columns], *rows)
    ]
    accuracies = [line.mean for line in lines if line.metric == "accuracy"]
    if accuracies:
        shown.insert(0, f"{len(accuracies)} networks, accuracy {min(accuracies):.2f} to {max(accuracies):.2f}")
    return "\n".join([*shown, *(f"left out: {reason}" for reason in refused.values())])

"""Class sensitivity: does the map change when another class is asked about?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aha.errors import MetricError
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case
from aha.metrics.statistics import spearman

Other = Literal["least", "second"]


def other_class(outputs: Tensor, target: int, choice: Other) -> int:
    """The least probable class, or the most probable one, among all but `target`; one output (K,) for each."""
    excluded = torch.inf if choice == "least" else -torch.inf
    rest = outputs.detach().float().clone()
    rest[target] = excluded
    return int(rest.argmin() if choice == "least" else rest.argmax())


@metric(
    "class_sensitivity",
    columns={"class_sensitivity": "lower"},
    bounds=(-1.0, 1.0),
    needs={"method"},
    citation="Sixt et al., ICML 2020",
)
@dataclass(frozen=True)
class ClassSensitivity(Metric):
    """Spearman correlation between the map of the explained class and the map of another class.

    Near 1: the map shows the image, not the class. A method may well find the same object for two similar classes, so
    "second" is the harder and less clear-cut question. For a model with a single output, the other class is the
    opposite one: signed maps give -1, unsigned ones 1, whatever their worth.

    One constant map, such as a Grad-CAM without positive evidence, counts as correlation 0; two have none.

    Attributes:
        other: the class to compare with: the "least" probable, or the most probable besides the explained one.
    """

    other: Other = "least"

    def __call__(self, case: Case) -> list[Value]:
        if case.explain is None:
            raise MetricError(f"{case.sample.name}: class sensitivity needs the method, not only its map")
        outputs = case.model.score.per_class(case.sample.clean[None])[0]  # (classes,)
        if len(outputs) < 2:
            raise MetricError(f"class sensitivity compares classes; {case.model.spec} has one output only")
        other = other_class(outputs, case.target, self.other)
        classes = torch.tensor([other], device=case.model.device)
        values = case.explain(case.model, case.sample.inputs[None], classes)[0].to(case.values)
        if not bool(values.isfinite().all()):
            raise MetricError(f"{case.sample.name}: the map of {case.method} for class {other} is not finite")
        is_constant = [bool(v.min() == v.max()) for v in (case.values, values)]
        if all(is_constant):
            raise MetricError(f"{case.sample.name}: the maps of classes {case.target} and {other} are both constant")
        found = 0.0 if any(is_constant) else float(spearman(case.values.flatten(), values.flatten()))
        return [Value("class_sensitivity", found)]

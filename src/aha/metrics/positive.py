"""Positive perturbation: accuracy while the most important pixels go first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from aha.errors import MetricError
from aha.metrics.base import Value, metric
from aha.metrics.case import Case, Kind
from aha.metrics.curves import CurveMetric
from aha.perturb.perturbation import area
from aha.perturb.references import Reference

Against = Literal["target", "label"]


def accuracy_area(chosen: CurveMetric, case: Case, kind: Kind, reference: Reference, against: Against) -> float:
    """Area under "is still recognised" along a sequence; the class is the explained one or the true label."""
    label = case.target if against == "target" else case.sample.label
    if label is None:
        raise MetricError(f"{case.sample.name}: accuracy against the label needs a label")
    curve = chosen.curve(case, kind, reference)
    recognised = case.recognised(curve.outputs, label).float().cpu()  # (S,)
    order = torch.argsort(curve.fractions)
    return float(area(curve.fractions[order], recognised[order]))


@metric("positive", columns={"positive": "lower"}, citation="Chefer et al., CVPR 2021")
@dataclass(frozen=True)
class Positive(CurveMetric):
    """Share of the deletion sequence on which the model still recognises the class.

    Attributes:
        against: the class that counts as recognised: the explained one, or the true label as in Chefer et al.
    """

    against: Against = "target"

    def __call__(self, case: Case) -> list[Value]:
        return self.each_reference(
            "positive", self.references, lambda r: accuracy_area(self, case, "delete", r, self.against)
        )

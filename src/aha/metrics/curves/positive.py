"""Positive perturbation: accuracy while the most important pixels go first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aha.errors import MetricError
from aha.metrics.base import Value, metric
from aha.metrics.case import Case, Kind
from aha.metrics.curves.adaptive import recognition, recognition_errors
from aha.metrics.curves.base import CurveMetric, Demand, Places
from aha.perturb.perturbation import area
from aha.perturb.references import Reference

Against = Literal["target", "label"]

_COARSER = 4.0  # a number of jumps from nothing to all takes many more points to be as sure as an area under scores


def class_against(case: Case, against: Against) -> int:
    """The class that counts as recognised."""
    label = case.target if against == "target" else case.sample.label
    if label is None:
        raise MetricError(f"{case.sample.name}: accuracy against the label needs a label")
    return label


@dataclass(frozen=True)
class AccuracyMetric(CurveMetric):
    """Base of the metrics that ask whether the class is still recognised.

    Attributes:
        against: the class that counts as recognised: the explained one, or the true label as in Chefer et al.
        tolerance: of adaptive steps: that of the score along the way; these numbers are sure to 4 times as much.
    """

    against: Against = "target"

    def accuracy_area(self, case: Case, kind: Kind, reference: Reference) -> float:
        """Area under "is still recognised" along a sequence."""
        curve = self.curve(case, kind, reference)
        recognised = case.recognised(curve.outputs, self._label(case)).float().cpu()  # (S,)
        if self.is_adaptive:
            return self.area_of_all(case, curve, case.margins(curve.outputs, self._label(case)), recognition)
        order = torch.argsort(curve.fractions)
        return float(area(curve.fractions[order], recognised[order]))

    def demands(self, case: Case) -> tuple[Demand, ...]:
        """The score first: where Deletion and Insertion are measured too, its points are there already."""
        recognised = Demand(f"class {self._label(case)}", _COARSER * self.tolerance, self.recognition_errors)
        return (*super().demands(case), recognised)

    def recognition_errors(self, case: Case, places: Places, outputs: Sequence[Tensor]) -> list[list[float]]:
        """As `gap_errors`, of the share of steps at which the class is recognised."""
        margins = (case.margins(along, self._label(case)).tolist() for along in outputs)
        return [recognition_errors(own, along) for own, along in zip(places, margins, strict=True)]

    def _label(self, case: Case) -> int:
        return class_against(case, self.against)


@metric("positive", columns={"positive": "lower"}, citation="Chefer et al., CVPR 2021")
@dataclass(frozen=True)
class Positive(AccuracyMetric):
    """Share of the deletion sequence on which the model still recognises the class."""

    def __call__(self, case: Case) -> list[Value]:
        return self.each_reference(lambda r: self.accuracy_area(case, "delete", r))

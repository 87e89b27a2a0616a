"""Deletion: how fast the class disappears when the most important pixels go first."""

from __future__ import annotations

from dataclasses import dataclass

from aha.metrics.base import Value, metric
from aha.metrics.case import Case
from aha.metrics.curves.base import CurveMetric


@metric("deletion", columns={"deletion": "lower"}, citation="Petsiuk et al., BMVC 2018; AHA eq. 3")
@dataclass(frozen=True)
class Deletion(CurveMetric):
    """Mean class score over the sequence that removes pixels by decreasing importance.

    Attributes:
        normalised: MDA's version: rescaled between reference and clean image, clipped, running minimum. Its values
            cannot be compared with raw ones.
    """

    normalised: bool = False

    def __call__(self, case: Case) -> list[Value]:
        return self.each_reference(lambda reference: self.score_area(case, "delete", reference))

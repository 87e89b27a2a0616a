"""Insertion: how fast the class appears when the most important pixels come first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aha.metrics.base import Value, metric
from aha.metrics.case import Case, Kind
from aha.metrics.curves.base import CurveMetric, References


@metric("insertion", columns={"insertion": "higher"}, citation="Petsiuk et al., BMVC 2018; AHA eq. 4")
@dataclass(frozen=True)
class Insertion(CurveMetric):
    """Mean class score over the sequence that inserts pixels by decreasing importance.

    Attributes:
        normalised: MDA's version: rescaled between reference and clean image, clipped, running maximum.
    """

    normalised: bool = False

    def _sequences(self) -> Iterable[tuple[Kind, References]]:
        return (("insert", self.references),)

    def __call__(self, case: Case) -> list[Value]:
        return self.each_reference(lambda reference: self.score_area(case, "insert", reference))

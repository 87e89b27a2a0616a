"""Insertion: how fast the class appears when the most important pixels come first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aha.metrics.base import Value, metric
from aha.metrics.case import Case, Kind
from aha.metrics.curves.base import CurveMetric, References, rescaled
from aha.perturb.references import Reference


def insertion_area(chosen: CurveMetric, case: Case, reference: Reference, normalised: bool) -> float:
    """Area under the class score while the top pixels are put into the reference."""
    curve = chosen.curve(case, "insert", reference)
    answers = case.scores(curve.outputs).cpu()  # (S,)
    if normalised:
        answers = rescaled(answers, rising=True)
    return chosen.area_under(case, curve, answers)


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
        return self.each_reference(
            "insertion", self.references, lambda r: insertion_area(self, case, r, self.normalised)
        )

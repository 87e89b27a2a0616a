"""Deletion: how fast the class disappears when the most important pixels go first."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from aha.metrics.base import Value, metric
from aha.metrics.case import Case
from aha.metrics.curves.base import CurveMetric, rescaled
from aha.perturb.references import Reference


def deletion_area(chosen: CurveMetric, case: Case, reference: Reference, normalised: bool) -> float:
    """Area under the class score while the top pixels are replaced by the reference."""
    curve = chosen.curve(case, "delete", reference)
    answers = case.scores(curve.outputs).cpu()  # (S,)
    if normalised:
        answers = rescaled(answers, rising=False)
    return chosen.area_under(case, curve, answers)


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
        with torch.no_grad():
            return self.each_reference(
                "deletion", self.references, lambda r: deletion_area(self, case, r, self.normalised)
            )

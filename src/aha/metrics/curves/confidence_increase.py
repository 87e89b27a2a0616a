"""Increase in confidence (PIC): is the class more probable when the image is seen through its map?"""

from __future__ import annotations

from dataclasses import dataclass

from aha.metrics.base import Value, metric
from aha.metrics.case import Case
from aha.metrics.curves.average_drop import BlendMetric
from aha.metrics.curves.base import averaged


@metric(
    "confidence_increase",
    columns={"confidence_increase": "higher"},
    bounds=(0.0, 100.0),
    citation="Chattopadhay et al., WACV 2018",
)
@dataclass(frozen=True)
class ConfidenceIncrease(BlendMetric):
    """100 where the blended image scores higher than the clean one, else 0: a percentage over images."""

    def __call__(self, case: Case) -> list[Value]:
        found = self.confidences(case)
        return averaged([Value("confidence_increase", 100.0 * (after > before), str(r)) for r, before, after in found])

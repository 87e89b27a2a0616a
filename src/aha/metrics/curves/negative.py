"""Negative perturbation: accuracy while the least important pixels go first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aha.metrics.base import Value, metric
from aha.metrics.case import Case, Kind
from aha.metrics.curves.base import References
from aha.metrics.curves.positive import AccuracyMetric


@metric("negative", columns={"negative": "higher"}, citation="Chefer et al., CVPR 2021")
@dataclass(frozen=True)
class Negative(AccuracyMetric):
    """Share of the reversed sequence on which the model still recognises the class.

    Removing the least important share q shows the top 1 - q alone: these are the images of the insertion sequence.
    """

    def _sequences(self) -> Iterable[tuple[Kind, References]]:
        return (("insert", self.references),)

    def _counts(self, case: Case, grid: tuple[int, int] | None) -> list[int]:
        if self.fractions:  # shares removed from the bottom; rounded as when they are removed from the top
            return [case.num_pixels - round(fraction * case.num_pixels) for fraction in self.fractions]
        return super()._counts(case, grid)

    def __call__(self, case: Case) -> list[Value]:
        return self.each_reference(lambda r: self.accuracy_area(case, "insert", r))

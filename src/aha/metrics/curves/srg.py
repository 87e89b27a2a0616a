"""Symmetric relevance gain: how much longer the class survives when the least important pixels go first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aha.metrics.base import Value, metric
from aha.metrics.case import Case, Kind
from aha.metrics.curves.base import CurveMetric, References


@metric("srg", columns={"srg": "higher"}, bounds=(-1.0, 1.0), citation="Blücher et al., TMLR 2024")
@dataclass(frozen=True)
class SRG(CurveMetric):
    """Area under the score while the least important pixels go first, minus that while the most important go first.

    To remove the least important pixels is to be left with the most important ones: the first curve is that of
    Insertion, read backwards. With one reference for both, this is the same number as Ins-Del, by another name.
    Zero for an order that knows nothing; scores that are no probabilities leave [-1, 1]. As many images as Ins-Del.
    """

    def _sequences(self) -> Iterable[tuple[Kind, References]]:
        return (("delete", self.references), ("insert", self.references))

    def __call__(self, case: Case) -> list[Value]:
        return self.each_reference(lambda r: self.score_area(case, "insert", r) - self.score_area(case, "delete", r))

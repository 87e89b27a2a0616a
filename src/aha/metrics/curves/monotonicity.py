"""Monotonicity: does the class score rise with every step of the insertion?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aha.errors import MetricError
from aha.metrics.base import Value, metric
from aha.metrics.case import Case, Kind
from aha.metrics.curves.base import CurveMetric, References, refuse_adaptive
from aha.metrics.statistics import spearman
from aha.perturb.references import AdaptiveBlur


@metric("monotonicity", columns={"monotonicity": "higher"}, bounds=(-1.0, 1.0), citation="MDA, ICLR 2025, app. A.3")
@dataclass(frozen=True)
class Monotonicity(CurveMetric):
    """Spearman correlation between step and raw class score while pixels are inserted into the reference."""

    references: References = (AdaptiveBlur(),)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_adaptive(self.name, self.steps)

    def _sequences(self) -> Iterable[tuple[Kind, References]]:
        return (("insert", self.references),)

    def __call__(self, case: Case) -> list[Value]:
        values = []
        for reference in self.references:
            curve = self.curve(case, "insert", reference)
            answers = case.scores(curve.outputs).cpu()
            if answers.min() == answers.max():
                raise MetricError(f"{case.sample.name}: the class score never changes, so it has no rank correlation")
            values.append(Value("monotonicity", float(spearman(curve.fractions, answers)), str(reference)))
        return values

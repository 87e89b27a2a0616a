"""Negative minus Positive perturbation accuracy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from aha.metrics.base import Value, metric
from aha.metrics.case import Case, Perturbation
from aha.metrics.curves.negative import Negative
from aha.metrics.curves.positive import AccuracyMetric, Positive


@metric("neg_pos", columns={"neg_pos": "higher"}, bounds=(-1.0, 1.0), citation="AHA table 1")
@dataclass(frozen=True)
class NegPos(AccuracyMetric):
    """Negative minus Positive; about zero for an uninformative order."""

    def perturbations(self, case: Case) -> Iterable[Perturbation]:
        for part in self._parts():
            yield from part.perturbations(case)

    def _parts(self) -> tuple[Negative, Positive]:
        choices = {field.name: getattr(self, field.name) for field in fields(self)}
        return Negative(**choices), Positive(**choices)

    def __call__(self, case: Case) -> list[Value]:
        negative, positive = (part(case) for part in self._parts())
        return [
            Value("neg_pos", high.value - low.value, high.reference)
            for high, low in zip(negative, positive, strict=True)
        ]

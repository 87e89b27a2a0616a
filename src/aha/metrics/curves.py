"""The common ground of the perturbation metrics: which pixels go when, and the model's answers along the way.

For one reference, deleting the top k pixels and inserting the top k pixels are the two sequences from which Deletion,
Insertion, Positive and Negative all follow: removing the least important share q shows the same image as inserting the
top 1 - q.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from aha.errors import MetricError, SpecError
from aha.metrics.base import Metric, Value
from aha.metrics.case import Case, Kind, Perturbation
from aha.perturb.perturbation import Ties, grid_of, step_counts
from aha.perturb.references import Black, Blur, Mean, Reference

AVERAGE = "average"  # of the references; "mean" is a reference itself

References = tuple[Reference, ...]


class Curve(NamedTuple):
    """One perturbation curve: share of pixels changed (S,), model outputs (S, K), and what it was made with."""

    kind: Kind
    reference: Reference
    fractions: Tensor
    outputs: Tensor


@dataclass(frozen=True)
class CurveMetric(Metric):
    """Base of the metrics that follow one or both sequences for each of several references.

    Attributes:
        steps: equal steps from nothing to everything.
        references: what stands in for removed pixels; the average over them is reported too.
        fractions: explicit shares of changed pixels instead of equal steps.
        by_patch: for maps that are constant on patches, change whole patches instead of single pixels.
        ties: order among equal values: "random" (seeded) or "raster".
    """

    steps: int = 224
    references: References = (Black(), Mean(), Blur())
    fractions: tuple[float, ...] = ()
    by_patch: bool = False
    ties: Ties = "random"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < 2 or not self.references:
            raise SpecError(f"{self.name}: at least 2 steps and one reference are needed")
        if self.fractions and (len(self.fractions) < 2 or not all(0 <= f <= 1 for f in self.fractions)):
            raise SpecError(f"{self.name}: fractions must be two or more numbers in [0, 1]")

    def perturbations(self, case: Case) -> Iterable[Perturbation]:
        for kind, references in self._sequences():
            for reference in references:
                yield from self._perturbations(case, kind, reference)

    def _sequences(self) -> Iterable[tuple[Kind, References]]:
        """The sequences that the metric follows, with their references."""
        return (("delete", self.references),)

    def curve(self, case: Case, kind: Kind, reference: Reference) -> Curve:
        """The model's answers along one sequence."""
        changed = self._perturbations(case, kind, reference)
        counts = torch.tensor([float(p.count or 0) for p in changed])
        return Curve(kind, reference, counts / case.num_pixels, case.outputs(changed))

    def _perturbations(self, case: Case, kind: Kind, reference: Reference) -> list[Perturbation]:
        grid = grid_of(case.values) if self.by_patch else None
        return [Perturbation(kind, reference, count, grid, self.ties) for count in self._counts(case, grid)]

    def _counts(self, case: Case, grid: tuple[int, int] | None) -> list[int]:
        total = case.num_pixels
        if self.fractions:
            return [round(fraction * total) for fraction in self.fractions]
        if grid is None:
            return step_counts(total, self.steps)
        cells = grid[0] * grid[1]
        return [count * (total // cells) for count in step_counts(cells, self.steps)]

    def each_reference(self, column: str, references: References, number: Callable[[Reference], float]) -> list[Value]:
        """The number for every reference, and their average; one that cannot be built makes the case fail."""
        values = [Value(column, number(reference), str(reference)) for reference in references]
        if len(values) > 1:
            values.append(Value(column, sum(v.value for v in values) / len(values), AVERAGE))
        return values


def rescaled(answers: Tensor, start: Tensor, end: Tensor, *, rising: bool) -> Tensor:
    """MDA's response curve (S,): 0 at the reference, 1 at the clean image, clipped, and made monotone.

    The published code divides by the absolute difference and takes the running maximum (insertion) or minimum.
    """
    blank, clean = (start, end) if rising else (end, start)
    span = (clean - blank).abs()
    if span < 1e-12:
        raise MetricError("the reference gives the class the same score as the image, so the curve has no scale")
    curve = ((answers - blank) / span).clamp(0, 1)
    return curve.cummax(dim=0).values if rising else curve.cummin(dim=0).values

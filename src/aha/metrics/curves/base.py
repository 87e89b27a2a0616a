"""The common ground of the perturbation metrics: which pixels go when, and the model's answers along the way.

For one reference, deleting the top k pixels and inserting the top k pixels are the two sequences from which Deletion,
Insertion, Positive and Negative all follow: removing the least important share q shows the same image as inserting the
top 1 - q.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aha.core.validation import FILLED, Range
from aha.errors import MetricError, SpecError
from aha.metrics.base import Metric, Value
from aha.metrics.case import Case, Kind, Perturbation
from aha.metrics.curves.adaptive import FINEST, filled_in, first_places, further_places, height_errors
from aha.perturb.perturbation import Ties, area, grid_of, response_curve, step_counts
from aha.perturb.references import Black, Blur, Mean, Reference

AVERAGE = "average"  # of the references; "mean" is a reference itself

References = Annotated[tuple[Reference, ...], FILLED]
Steps = Annotated[int, Range(2)] | Literal["adaptive"]
Places = Sequence[Sequence[int]]


class Demand(NamedTuple):
    """What adaptive steps have to be sure of: its name, the tolerance, and the error of every gap between places."""

    what: str
    tolerance: float
    gap_errors: Callable[[Case, Places, Sequence[Tensor]], list[list[float]]]


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
        steps: equal steps from nothing to everything. "adaptive" asks about some of 224 steps only: a few first, then
            where the curves move, until the mean area over the references is sure to the tolerance.
        references: what stands in for removed pixels; the average over them is reported too.
        fractions: explicit shares of changed pixels instead of equal steps.
        by_patch: for maps that are constant on patches, change whole patches instead of single pixels.
        ties: order among equal values: "random" (seeded) or "raster".
        tolerance: of adaptive steps: the estimated error of the average over the references at which they end, as a
            share of the plot: 1 is the whole range of pixels times the whole range of a probability, or of what the
            curves reach for other scores. A single reference is less sure, by the root of their number.
    """

    steps: Steps = 224
    references: References = (Black(), Mean(), Blur())
    fractions: tuple[float, ...] = ()
    by_patch: bool = False
    ties: Ties = "random"
    tolerance: float = 0.002

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps == "adaptive" and (self.fractions or self.tolerance <= 0):
            raise SpecError(f"{self.name}: adaptive steps need a tolerance above 0, and no fractions")
        if getattr(self, "normalised", False):
            refuse_partial(self)
        if self.fractions and not _rise(self.fractions):
            raise SpecError(f"{self.name}: fractions must be two or more rising numbers in [0, 1]")

    @property
    def is_adaptive(self) -> bool:
        """Are the steps chosen by what the model answers?"""
        return self.steps == "adaptive"

    def perturbations(self, case: Case) -> Iterable[Perturbation]:
        for kind, references in self._sequences():
            for changed in self._chosen(case, kind, references):
                yield from changed

    def questions(self) -> dict[Hashable, int]:
        steps = FINEST if self.steps == "adaptive" else self.steps  # of adaptive ones, as many at most
        return {
            (kind, reference, self.steps, self.fractions, self.by_patch, self.ties): len(self.fractions) or steps + 1
            for kind, references in self._sequences()
            for reference in references
        }

    def _sequences(self) -> Iterable[tuple[Kind, References]]:
        """The sequences that the metric follows, with their references."""
        return (("delete", self.references),)

    def curve(self, case: Case, kind: Kind, reference: Reference) -> Curve:
        """The model's answers along one sequence."""
        changed = self._along(case, kind, reference)
        counts = torch.tensor([float(p.count or 0) for p in changed])
        return Curve(kind, reference, counts / case.num_pixels, case.outputs(changed))

    def _along(self, case: Case, kind: Kind, reference: Reference) -> list[Perturbation]:
        if not self.is_adaptive:
            return self._chosen(case, kind, (reference,))[0]
        references = next(group for own, group in self._sequences() if own == kind)
        while True:
            chosen = self._chosen(case, kind, references)
            open_ones = [p for changed in chosen for p in changed if not case.is_known(p)]
            if not open_ones:
                return chosen[references.index(reference)]
            case.prepare(open_ones)

    def _chosen(self, case: Case, kind: Kind, references: References) -> list[list[Perturbation]]:
        """The perturbed images of each reference; of adaptive steps those that follow from what is known so far."""
        grid = grid_of(case.values) if self.by_patch else None
        counts = self._counts(case, grid)

        def at(places: Places) -> list[list[Perturbation]]:
            pairs = zip(references, places, strict=True)
            return [[Perturbation(kind, r, counts[place], grid, self.ties) for place in own] for r, own in pairs]

        if not self.is_adaptive:
            return at([range(len(counts))] * len(references))
        places: Places = [first_places(len(counts) - 1)] * len(references)
        # The same answers lead to the same places: metrics that have the same demands go there together, and once.
        key: tuple[object, ...] = (kind, references, self.by_patch, self.ties)
        for demand in self.demands(case):
            key = (*key, demand.what, demand.tolerance)
            places, is_sure = case.walks.get(key, (places, False))
            while not is_sure:
                chosen = at(places)
                if not all(case.is_known(p) for changed in chosen for p in changed):
                    return chosen  # to be asked about; what follows is seen from the answers
                errors = demand.gap_errors(case, places, [case.outputs(changed) for changed in chosen])
                further = further_places(places, errors, demand.tolerance)
                places = [sorted({*own, *more}) for own, more in zip(places, further, strict=True)]
                is_sure = not any(further)
                case.walks[key] = places, is_sure
        return at(places)

    def demands(self, case: Case) -> tuple[Demand, ...]:
        """What adaptive steps have to be sure of, one after the other."""
        return (Demand("score", self.tolerance, self.gap_errors),)

    def gap_errors(self, case: Case, places: Places, outputs: Sequence[Tensor]) -> list[list[float]]:
        """How far off the area over each gap between places may be, of each curve, from the outputs (S, K) there."""
        scores = [case.scores(along).double().cpu() for along in outputs]
        every = torch.cat(scores)
        low, high = (0.0, 1.0) if case.model.score.is_probability else (float(every.min()), float(every.max()))
        shares = [(along - low) / max(high - low, 1e-12) for along in scores]
        return [height_errors(own, along.tolist()) for own, along in zip(places, shares, strict=True)]

    def score_area(self, case: Case, kind: Kind, reference: Reference) -> float:
        """Area under the class score along one sequence; of a `normalised` metric, under its rescaled curve."""
        curve = self.curve(case, kind, reference)
        answers = case.scores(curve.outputs).cpu()  # (S,)
        if getattr(self, "normalised", False):
            answers = rescaled(answers, rising=kind == "insert")
        return self.area_under(case, curve, answers)

    def area_under(self, case: Case, curve: Curve, answers: Tensor) -> float:
        """Mean height of the answers (S,) along a curve; between adaptive points the curve is filled in."""
        if not self.is_adaptive:
            return float(area(curve.fractions.to(answers), answers))
        return self.area_of_all(case, curve, answers, filled_in)

    def area_of_all(
        self, case: Case, curve: Curve, answers: Tensor, fill: Callable[[list[int], list[float]], NDArray[np.float64]]
    ) -> float:
        """The area under all steps of an adaptive curve, given how they follow from the answers (S,)."""
        counts = self._counts(case, grid_of(case.values) if self.by_patch else None)
        places = [round(fraction * (len(counts) - 1)) for fraction in curve.fractions.tolist()]
        return float(np.trapezoid(fill(places, answers.tolist()), np.array(counts) / case.num_pixels))

    def _counts(self, case: Case, grid: tuple[int, int] | None) -> list[int]:
        total = case.num_pixels
        if self.fractions:
            return [round(fraction * total) for fraction in self.fractions]
        steps = FINEST if self.steps == "adaptive" else self.steps
        if grid is None:
            return step_counts(total, steps)
        cells = grid[0] * grid[1]
        return [count * (total // cells) for count in step_counts(cells, steps)]

    def each_reference(self, number: Callable[[Reference], float]) -> list[Value]:
        """The number for every reference, and their average; one that cannot be built makes the case fail."""
        return averaged([Value(self.name, number(reference), str(reference)) for reference in self.references])


def averaged(values: Sequence[Value]) -> list[Value]:
    """The values and, of each column with several, their average over the references."""
    columns: dict[str, list[float]] = {}
    for value in values:
        columns.setdefault(value.column, []).append(value.value)
    return [*values, *(Value(name, sum(own) / len(own), AVERAGE) for name, own in columns.items() if len(own) > 1)]


def _rise(fractions: Sequence[float]) -> bool:
    """Are they two or more shares, each above the one before?"""
    return (
        len(fractions) > 1 and fractions[0] >= 0 and fractions[-1] <= 1 and all(a < b for a, b in pairwise(fractions))
    )


def refuse_adaptive(name: str, steps: Steps) -> None:
    """For numbers that are more than an area: adaptive points are chosen for the area alone."""
    if steps == "adaptive":
        raise SpecError(f"{name}: adaptive steps work for plain areas only; give a number of steps")


def refuse_partial(chosen: CurveMetric) -> None:
    """For rescaled curves: they need their ends, the clean image and the reference."""
    refuse_adaptive(chosen.name, chosen.steps)
    if chosen.fractions and (chosen.fractions[0], chosen.fractions[-1]) != (0, 1):
        raise SpecError(f"{chosen.name}: a rescaled curve needs fractions from 0 to 1")


def rescaled(answers: Tensor, *, rising: bool) -> Tensor:
    """MDA's response curve (S,) (`response_curve`); a curve whose ends are alike has no scale and is refused."""
    if (answers[-1] - answers[0]).abs() < 1e-12:
        raise MetricError("the reference gives the class the same score as the image, so the curve has no scale")
    return response_curve(answers, rising=rising)

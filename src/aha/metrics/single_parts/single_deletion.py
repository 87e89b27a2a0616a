"""Single deletion: does a patch on which the map has more mass matter more, when it alone is removed?"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor

from aha.core.validation import FILLED, Range
from aha.errors import MetricError
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case, Part, Perturbation, without
from aha.metrics.curves.base import References, averaged
from aha.metrics.statistics import spearman
from aha.perturb.masking import Scale
from aha.perturb.partitions import patch_index
from aha.perturb.references import Reference, ZerosNormalised


@dataclass(frozen=True)
class GridCell(Part):
    """One cell of a grid over the image, whatever the map."""

    is_shared: ClassVar[bool] = True

    grid: int
    place: int

    def removed(self, case: Case) -> Tensor:
        """The cell's pixels."""
        return cells_of(case, self.grid) == self.place


@metric(
    "single_deletion",
    columns={"single_deletion": "higher"},
    bounds=(-1.0, 1.0),
    citation="Hesse et al., NeurIPS 2024",
)
@dataclass(frozen=True)
class SingleDeletion(Metric):
    """Spearman correlation between the map's mass on a patch and the drop of the logit without that patch (IDSDS).

    One patch of a 4 x 4, and of an 8 x 8 grid goes at a time, so that images stay close to real ones. The paper
    fine-tunes its models on images with missing patches first: hand in such a model for its numbers. Zero for a map
    that knows nothing. 80 images for each reference, the same for all maps of an image; a map with as much mass on
    every patch has no correlation and is left out.

    Attributes:
        grids: patches per side, each grid a number of its own.
        references: what stands in for the patch.
        scale: what drops: the "logit", as published, or the "score" that the model reports.
    """

    for_volumes: ClassVar[bool] = False

    grids: Annotated[tuple[Annotated[int, Range(2)], ...], FILLED] = (4, 8)
    references: References = (ZerosNormalised(),)
    scale: Scale = "logit"

    def perturbations(self, case: Case) -> Iterable[Perturbation]:
        for reference in self.references:
            for grid in self.grids:
                yield from _without_each(reference, grid)

    def questions(self) -> dict[Hashable, int]:
        return {(self.name, r, grid): grid**2 for r in self.references for grid in self.grids}

    def __call__(self, case: Case) -> list[Value]:
        pairs = [(reference, grid) for reference in self.references for grid in self.grids]
        return averaged(
            [Value(self.name, self._correlation(case, r, grid), f"{r}, {grid} x {grid}") for r, grid in pairs]
        )

    def _correlation(self, case: Case, reference: Reference, grid: int) -> float:
        cells = cells_of(case, grid).flatten()
        mass = case.values.new_zeros(grid**2).double().index_add_(0, cells, case.values.flatten().double())
        score = case.model.score if self.scale == "score" else case.model.score.differentiated()
        drops = -score(case.outputs(_without_each(reference, grid)), cells.new_full((grid**2,), case.target))
        found = float(spearman(mass.cpu(), drops.detach().double().cpu()))
        if found != found:
            raise MetricError(f"{case.sample.name}: all {grid} x {grid} patches are alike, in mass or in what they do")
        return found


def cells_of(case: Case, grid: int) -> Tensor:
    """The cell (H, W) of each pixel."""
    return patch_index((case.values.shape[0], case.values.shape[1]), grid, case.values.device)


def _without_each(reference: Reference, grid: int) -> list[Perturbation]:
    return [without(reference, GridCell(grid, place)) for place in range(grid**2)]

"""Simple insertion: what a small window of patches alone says to the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.errors import SpecError
from aha.methods.base import Method, method
from aha.methods.cost import Cost
from aha.models import TargetModel
from aha.perturb.masking import MaskedModel, Scale, explain_each
from aha.perturb.partitions import patch_index
from aha.perturb.references import Reference, White


@dataclass(frozen=True)
class PatchWindows(Method):
    """Base of the two methods that look at a square window of patches around each patch of a grid.

    Attributes:
        grid: patches along each side.
        window: side of the window in patches, an odd number; clipped at the border.
        reference: what is shown outside of the window, or in its place; white, the paper's blank, by default.
        score: the reported score, or the logit.
    """

    grid: int = 14
    window: int = 3
    reference: Reference = White()
    score: Scale = "score"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.grid < 1 or self.window < 1 or self.window % 2 == 0:
            raise SpecError(
                f"{self.name}: grid must be at least 1 and window odd, not grid={self.grid}, window={self.window}"
            )

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        return Cost(self.grid**2, 2 * self.grid**4)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return explain_each(self._explain, model, images, classes, self.reference, self.score)

    def _explain(self, masked: MaskedModel) -> Tensor:
        raise NotImplementedError

    def _window_scores(self, masked: MaskedModel, *, keep: bool) -> Tensor:
        """Scores (k, grid, grid) with nothing kept but the window around each patch, or with all kept but that."""
        index = patch_index(masked.size, self.grid, masked.image.device)  # (H, W)
        windows = neighbourhoods(self.grid, self.window // 2).to(index.device)  # (N, N)
        scores = masked.scores(lambda part: windows[part][:, index] == keep, len(windows))  # (N, k)
        return scores.T.reshape(-1, self.grid, self.grid)


@method("simple_insertion", family="perturbation", citation="Izadi et al., arXiv 2603.13652 (baseline)")
@dataclass(frozen=True)
class SimpleInsertion(PatchWindows):
    """Score of a blank image into which only the window around a patch is pasted.

    Formula: `M_i = score(blank with the image's window around i)`.
    Reads: outputs alone.
    Cost: one forward pass for each patch.
    Example: `simple_insertion(grid=7)`.
    """

    def _explain(self, masked: MaskedModel) -> Tensor:
        return self._window_scores(masked, keep=True)


def neighbourhoods(grid: int, radius: int) -> Tensor:
    """Which patches (N, N) lie in the square window around each patch of a grid."""
    places = torch.arange(grid)
    near = (places[:, None] - places).abs() <= radius  # (grid, grid), along one axis
    return (near[:, None, :, None] & near[None, :, None, :]).reshape(grid**2, grid**2)

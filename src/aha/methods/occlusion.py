"""Occlusion: how much the score falls when a window slides over the image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.errors import SpecError
from aha.methods.base import Method, method
from aha.methods.cost import Cost
from aha.models import TargetModel
from aha.perturb.masking import MaskedModel, Scale, explain_each
from aha.perturb.references import Reference, ZerosNormalised


@method("occlusion", family="perturbation", citation="Zeiler & Fergus, ECCV 2014")
@dataclass(frozen=True)
class Occlusion(Method):
    """Fall of the score when a window is covered; a pixel gets the mean over the windows that cover it.

    The paper slides a grey square and names no size; window and stride are those of captum's examples, as is the mean
    over windows. The default reference is the model's mean colour.

    Formula: `mean over the windows w that cover the pixel of score(x) - score(x without w)`.
    Reads: outputs alone.
    Cost: one forward pass for each window and one more; 785 at 224 pixels.
    Example: `occlusion(window=32, stride=16)`.

    Attributes:
        window: side of the square in pixels.
        stride: pixels from one window to the next; at most `window`, so that every pixel is covered.
        reference: what covers the window.
        score: the reported score, or the logit.
    """

    window: int = 15
    stride: int = 8
    reference: Reference = ZerosNormalised()
    score: Scale = "score"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.stride <= self.window:
            raise SpecError(f"occlusion: stride must be from 1 to window={self.window}, not {self.stride}")

    def cost(self, model: TargetModel, size: tuple[int, int]) -> Cost:
        down, across = (-(-max(0, side - self.window) // self.stride) + 1 for side in size)
        return Cost(down * across + 1)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return explain_each(self._explain, model, images, classes, self.reference, self.score)

    def _explain(self, masked: MaskedModel) -> Tensor:
        height, width = masked.size
        if self.window > min(height, width):
            raise SpecError(f"occlusion: a window of {self.window} is larger than the image ({height} x {width})")
        device = masked.image.device
        down, across = (covered(side, self.window, self.stride).to(device) for side in (height, width))
        whole = masked.scores_at(1.0)  # (1, k)

        def keep(part: slice) -> Tensor:
            window = torch.arange(len(down) * len(across), device=device)[part]
            return ~(down[window // len(across), :, None] & across[window % len(across), None, :])  # (m, H, W)

        falls = whole - masked.scores(keep, len(down) * len(across))  # (windows, k)
        falls = falls.view(len(down), len(across), -1)
        total = torch.einsum("ijk,ih,jw->khw", falls, down.to(falls), across.to(falls))
        return total / (down.sum(dim=0)[:, None] * across.sum(dim=0))  # (k, H, W)


def covered(side: int, window: int, stride: int) -> Tensor:
    """Which pixels (windows, side) of one axis each window covers; the last may reach beyond the border."""
    starts = torch.arange(-(-(side - window) // stride) + 1) * stride  # (windows,)
    pixels = torch.arange(side)
    return (pixels >= starts[:, None]) & (pixels < starts[:, None] + window)

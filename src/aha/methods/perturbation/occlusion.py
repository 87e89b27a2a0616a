"""Occlusion: how much the score falls when a window slides over the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import mul

import torch
from torch import Tensor

from aha.errors import SpecError
from aha.methods.base import Method, method
from aha.methods.cost import Cost
from aha.models import TargetModel
from aha.perturb.masking import MaskedModel, Scale, explain_each
from aha.perturb.references import Reference, ZerosNormalised


@method("occlusion", family="perturbation", volumes=True, citation="Zeiler & Fergus, ECCV 2014")
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

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        return Cost(prod(-(-max(0, side - self.window) // self.stride) + 1 for side in size) + 1)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return explain_each(self._explain, model, images, classes, self.reference, self.score)

    def _explain(self, masked: MaskedModel) -> Tensor:
        height, width = masked.size[-2:]
        if self.window > min(height, width):
            raise SpecError(f"occlusion: a window of {self.window} is larger than the image ({height} x {width})")
        device = masked.image.device
        # A window is as deep as wide, and no deeper than the volume.
        covers = [covered(side, min(self.window, side), self.stride).to(device) for side in masked.size]
        counts = [len(cover) for cover in covers]
        whole = masked.scores_at(1.0)  # (1, k)

        def keep(part: slice) -> Tensor:
            window = torch.unravel_index(torch.arange(prod(counts), device=device)[part], counts)
            return ~along_axes([cover[place] for cover, place in zip(covers, window, strict=True)])  # (m, H, W)

        falls = whole - masked.scores(keep, prod(counts))  # (windows, k)
        total = falls.view(*counts, -1)
        for cover in covers:  # each in turn: (i, j, k) to (j, k, H) to (k, H, W)
            total = torch.tensordot(total, cover.to(total), dims=([0], [0]))
        times = along_axes([cover.sum(dim=0)[None].to(total) for cover in covers])  # (1, H, W)
        return total / times


def along_axes(lines: Sequence[Tensor]) -> Tensor:
    """The product (m, H, W) of one line (m, side) for each axis: of boolean ones, where all are true."""
    count = len(lines)
    spread = [line.view(len(line), *[1] * axis, -1, *[1] * (count - axis - 1)) for axis, line in enumerate(lines)]
    return reduce(mul, spread)


def covered(side: int, window: int, stride: int) -> Tensor:
    """Which pixels (windows, side) of one axis each window covers; the last may reach beyond the border."""
    starts = torch.arange(-(-(side - window) // stride) + 1) * stride  # (windows,)
    pixels = torch.arange(side)
    return (pixels >= starts[:, None]) & (pixels < starts[:, None] + window)

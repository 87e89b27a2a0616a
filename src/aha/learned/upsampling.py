"""Upsampling that follows the picture: every fine place takes its value from coarse places that look like it.

Joint bilateral upsampling (Kopf et al. 2007) with learned features in place of colours, as in FeatUp (Fu et al. 2024).
Enlarging a map by bilinear interpolation draws staircases and blobs; here a coarse value spreads inside a region of
like appearance and stops at its border, so that a map of 14 x 14 tokens has the photograph's outlines by construction.

Shapes: values (B, C, h, w); guide (B, D, h, w) at the coarse and (B, D, H, W) at the fine grid, H <= 2 h, W <= 2 w.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_REACH = 0.7  # deviation of the spatial weight, in coarse cells
_NEIGHBOURS = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]


def upsampled_twice(values: Tensor, coarse_guide: Tensor, fine_guide: Tensor) -> Tensor:
    """Values (B, C, h, w) on the fine grid (B, C, H, W): means over 3 x 3 coarse cells, weighted by place and looks."""
    height, width = int(fine_guide.shape[-2]), int(fine_guide.shape[-1])
    near_values, near_guides = _padded(values), _padded(coarse_guide)
    logits = []
    for dy, dx in _NEIGHBOURS:
        unlike = (_shifted(near_guides, dy, dx, height, width) - fine_guide).square().sum(dim=1)  # (B, H, W)
        logits.append(_nearness(dy, dx, height, width, values) - unlike)
    weights = torch.stack(logits, dim=1).softmax(dim=1)  # (B, 9, H, W)
    total = torch.zeros((), dtype=values.dtype, device=values.device)
    for index, (dy, dx) in enumerate(_NEIGHBOURS):
        total = total + weights[:, index, None] * _shifted(near_values, dy, dx, height, width)
    return total


def _padded(values: Tensor) -> Tensor:
    return F.pad(values, (1, 1, 1, 1), mode="replicate")


def _shifted(padded: Tensor, dy: int, dx: int, height: int, width: int) -> Tensor:
    """The coarse neighbour (dy, dx) of every fine place."""
    h, w = int(padded.shape[-2]) - 2, int(padded.shape[-1]) - 2
    window = padded[..., 1 + dy : 1 + dy + h, 1 + dx : 1 + dx + w]
    return F.interpolate(window, scale_factor=2.0, mode="nearest")[..., :height, :width]


def _nearness(dy: int, dx: int, height: int, width: int, like: Tensor) -> Tensor:
    """Log of the spatial weight (H, W) of a neighbour: fine places lie a quarter of a cell off their cell's middle."""
    rows, columns = (
        (shift - (0.5 * (torch.arange(length, device=like.device, dtype=like.dtype) % 2) - 0.25)).square()
        for shift, length in ((dy, height), (dx, width))
    )
    return -(rows[:, None] + columns[None, :]) / (2 * _REACH**2)

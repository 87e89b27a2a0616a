"""Pixels of images (H, W) and voxels of volumes and clips (D, H, W): code that treats them alike asks here.

Shapes: images (B, C, *places), maps (B, *places) with the places of an image or of a volume.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

VOLUME = 4
"""Axes of a volume (C, D, H, W); an image (C, H, W) has one less."""


def is_volume(shape: Sequence[int]) -> bool:
    """Is this the shape (C, D, H, W) of a volume, not (C, H, W) or (H, W) of an image?"""
    return len(shape) == VOLUME


def place_axes(features: Tensor) -> tuple[int, ...]:
    """The axes of the places in features (B, C, *places)."""
    return tuple(range(2, features.dim()))


def per_image(values: Tensor, like: Tensor) -> Tensor:
    """Values (B, ...) with axes of length one behind them, to be multiplied with `like` (B, ...)."""
    return values.reshape(*values.shape, *[1] * (like.dim() - values.dim()))


def resized(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Maps (B, *places) at another size, linearly along each axis, pixel centres on pixel centres."""
    mode = "trilinear" if maps.dim() == VOLUME else "bilinear"
    return F.interpolate(maps[:, None], size=tuple(size), mode=mode, align_corners=False)[:, 0]

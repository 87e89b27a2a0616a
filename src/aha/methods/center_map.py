"""A centred Gaussian: the photographer's habit of putting the object in the middle."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.core.validation import PositiveFloat
from aha.methods.base import Method, method
from aha.models import TargetModel


@method("center_map", family="baseline")
@dataclass(frozen=True)
class CenterMap(Method):
    """`exp(-r^2 / (2 sigma^2))` around the centre, with r and sigma in units of each half side.

    Reads: nothing.
    Cost: no pass.
    Example: `center_map(sigma=0.3)`.
    """

    sigma: PositiveFloat = 0.5

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        batch, _, height, width = images.shape
        y, x = (_centred(side, images.device) for side in (height, width))
        bump = torch.exp(-(y[:, None] ** 2 + x[None, :] ** 2) / (2 * self.sigma**2))  # (H, W)
        return bump.repeat(batch, 1, 1)  # (B, H, W)


def _centred(side: int, device: torch.device) -> Tensor:
    """Pixel centres of one axis in [-1, 1]."""
    return (torch.arange(side, device=device) + 0.5) / side * 2 - 1

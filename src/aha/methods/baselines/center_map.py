"""A centred Gaussian: the photographer's habit of putting the object in the middle."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.core.validation import PositiveFloat
from aha.methods.base import Method, method
from aha.models import TargetModel


@method("center_map", family="baseline", volumes=True)
@dataclass(frozen=True)
class CenterMap(Method):
    """`exp(-r^2 / (2 sigma^2))` around the centre, with r and sigma in units of each half side.

    Reads: nothing.
    Cost: no pass.
    Example: `center_map(sigma=0.3)`.
    """

    sigma: PositiveFloat = 0.5

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        axes = [_centred(side, images.device) ** 2 for side in images.shape[2:]]
        distance = torch.stack(torch.meshgrid(*axes, indexing="ij")).sum(dim=0)  # (H, W), squared
        bump = torch.exp(-distance / (2 * self.sigma**2))
        return bump.repeat(len(images), *[1] * bump.dim())  # (B, H, W)


def _centred(side: int, device: torch.device) -> Tensor:
    """Pixel centres of one axis in [-1, 1]."""
    return (torch.arange(side, device=device) + 0.5) / side * 2 - 1

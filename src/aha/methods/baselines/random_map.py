"""Uniform noise: the baseline that every method must beat."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.methods.base import Method, method, seeded_generator
from aha.models import TargetModel


@method("random_map", family="baseline", volumes=True)
@dataclass(frozen=True)
class RandomMap(Method):
    """Independent uniform values per pixel, the same for every image of one size.

    Formula: `M_i ~ U(0, 1)`.
    Reads: nothing.
    Cost: no pass.
    Example: `random_map(seed=1)`.
    """

    seed: int | None = None

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        noise = torch.rand(images.shape[2:], generator=seeded_generator(self.seed))  # (H, W)
        return noise.to(images.device).repeat(len(images), *[1] * noise.dim())  # (B, H, W)

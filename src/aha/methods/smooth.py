"""SmoothGrad around any method: the mean map of noisy copies."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.core.axes import per_image
from aha.core.progress import in_parts
from aha.core.validation import NonNegativeFloat, PositiveInt
from aha.methods.base import Method, method, seeded_generator
from aha.methods.cost import Cost
from aha.models import TargetModel


@method("smooth", family="wrapper", volumes=True, citation="Smilkov et al., 2017")
@dataclass(frozen=True)
class Smooth(Method):
    """Mean over `n` maps of `x + noise`, the noise's deviation being `sigma` times each image's value range.

    Formula: `1 / n * sum of inner(x + N(0, (sigma * (max x - min x))^2))`.
    Reads: what the inner method reads.
    Cost: `n` times the passes of the inner method.
    Example: `smooth(gradient, n=50)`.
    """

    inner: Method
    n: PositiveInt = 20
    sigma: NonNegativeFloat = 0.15
    seed: int | None = None

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        return self.inner.cost(model, size).times(self.n)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        generator = seeded_generator(self.seed)
        scale = self.sigma * (images.flatten(1).amax(dim=1) - images.flatten(1).amin(dim=1))  # (B,)
        total: Tensor | None = None
        for _ in in_parts(range(self.n)):
            # One draw per image shape, shared by the batch: an image's map does not depend on its neighbours.
            noise = torch.randn(images.shape[1:], generator=generator).to(images)  # (C, H, W)
            maps = self.inner(model, images + per_image(scale, images) * noise, classes)  # (B, h, w)
            total = maps if total is None else total + maps
        assert total is not None
        return total / self.n

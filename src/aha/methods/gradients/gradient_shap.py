"""GradientSHAP: gradients at random places between random references and the image."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.core.progress import in_parts
from aha.core.validation import NonNegativeFloat, PositiveInt
from aha.methods.base import Method, method, seeded_generator
from aha.methods.cost import Cost
from aha.methods.gradients.gradient import ChannelRule, over_channels
from aha.models import TargetModel
from aha.perturb.references import Reference, reference_inputs


@method("gradient_shap", family="gradient", needs={"gradients"}, volumes=True, citation="Lundberg & Lee, NeurIPS 2017")
@dataclass(frozen=True)
class GradientSHAP(Method):
    """Mean over draws of `(x~ - x') * d score / d x at x' + a (x~ - x')`, with a uniform in [0, 1].

    `x~` is the image with noise, `x'` a reference. Approximates SHAP values, as captum does, for features that do not
    depend on each other; the values sum to the mean of `score(x~) - score(x')` as the draws grow in number.

    Reads: the gradients of the input.
    Cost: `n` forward and backward passes.
    Example: `gradient_shap(n=20, reference=blur)`.

    Attributes:
        n: how many draws.
        sigma: deviation of the noise in units of the normalised input; captum's default is 0.
        reference: None draws one flat colour each time, normally distributed as the normalisation makes pixels; any
            other is fixed, as in `integrated_gradients`, of which this is then the Monte Carlo form.
    """

    n: PositiveInt = 50
    sigma: NonNegativeFloat = 0.0
    reference: Reference | None = None
    channels: ChannelRule = "sum"
    seed: int | None = None

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        return Cost(2 * self.n)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        generator = seeded_generator(self.seed)
        fixed = None if self.reference is None else reference_inputs(self.reference, model, images, classes)
        total = torch.zeros_like(images)
        stride = max(1, model.chunks.size // len(images))  # small batches take several draws per pass
        for first in in_parts(range(0, self.n, stride)):
            points, paths = [], []
            for _ in range(min(stride, self.n - first)):
                # One draw per image shape, shared by the batch: an image's map does not depend on its neighbours.
                a = torch.rand((), generator=generator).to(images)
                colour = torch.randn(images.shape[1], *[1] * (images.dim() - 2), generator=generator).to(images)
                noise = torch.randn(images.shape[1:], generator=generator).to(images) if self.sigma else 0.0
                start = colour.expand_as(images) if fixed is None else fixed  # (B, C, H, W)
                paths.append(images + self.sigma * noise - start)
                points.append(start + a * paths[-1])
            slopes = model.input_gradients(torch.cat(points), classes.repeat(len(points)))  # (S*B, C, H, W)
            total += (torch.stack(paths) * slopes.view(-1, *images.shape)).sum(dim=0)
        return over_channels(total / self.n, self.channels)  # (B, H, W)

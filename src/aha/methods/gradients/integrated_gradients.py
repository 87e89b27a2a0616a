"""Integrated gradients: the gradient averaged along a straight path from a reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from aha.core.progress import in_parts
from aha.errors import SpecError
from aha.methods.base import Method, method
from aha.methods.cost import Cost
from aha.methods.gradients.gradient import ChannelRule, over_channels
from aha.models import TargetModel
from aha.perturb.references import Reference, ZerosNormalised, reference_inputs

Quadrature = Literal["gauss_legendre", "midpoint", "trapezoid"]


@method(
    "integrated_gradients",
    family="gradient",
    needs={"gradients"},
    volumes=True,
    citation="Sundararajan et al., ICML 2017",
)
@dataclass(frozen=True)
class IntegratedGradients(Method):
    """`(x - x') * integral over a in [0, 1] of d score / d x at x' + a (x - x')` (eq. 1).

    The values sum to `score(x) - score(x')` up to the error of the quadrature. The reference `x'` is zero
    after normalisation, the mean colour, unless another one is named; captum calls it the baseline.

    Reads: the gradients of the input.
    Cost: `steps` forward and backward passes.
    Example: `integrated_gradients(steps=20, reference=black)`.
    """

    steps: int = 50
    reference: Reference = ZerosNormalised()
    rule: Quadrature = "gauss_legendre"
    channels: ChannelRule = "sum"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps < (2 if self.rule == "trapezoid" else 1):
            raise SpecError(f"integrated_gradients: {self.steps} steps are too few for the {self.rule} rule")

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        # The places of a Gauss-Legendre rule are eigenvalues of a matrix.
        return Cost(2 * self.steps, 2 * 8 * self.steps**2 if self.rule == "gauss_legendre" else 0)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        start = reference_inputs(self.reference, model, images, classes)  # (B, C, H, W)
        path = images - start
        total = torch.zeros_like(images)
        places, weights = quadrature(self.steps, self.rule)
        stride = max(1, model.chunks.size // len(images))  # small batches take several steps per pass
        for first in in_parts(range(0, self.steps, stride)):
            a = torch.tensor(places[first : first + stride], dtype=images.dtype, device=images.device)
            w = torch.tensor(weights[first : first + stride], dtype=images.dtype, device=images.device)
            points = start + a.view(-1, *[1] * images.dim()) * path  # (S, B, C, H, W)
            slopes = model.input_gradients(points.flatten(0, 1), classes.repeat(len(a)))  # (S*B, C, H, W)
            total += torch.einsum("s,s...->...", w, slopes.view_as(points))
        return over_channels(path * total, self.channels)  # (B, H, W)


def quadrature(steps: int, rule: Quadrature) -> tuple[list[float], list[float]]:
    """Places in [0, 1] and weights, summing to one, of a numerical integral."""
    if rule == "gauss_legendre":
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()
    if rule == "midpoint":
        return ((np.arange(steps) + 0.5) / steps).tolist(), [1 / steps] * steps
    ends = np.full(steps, 1 / (steps - 1))
    ends[[0, -1]] /= 2
    return np.linspace(0, 1, steps).tolist(), ends.tolist()

"""Generic attention explainability: attention times its gradient, accumulated through the layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aha.core.validation import NonNegativeInt
from aha.methods.attention.rollout import roll_out
from aha.methods.base import Method, layers_from, method
from aha.models import Captures, TargetModel


@method(
    "grad_rollout",
    family="attention",
    needs={"attention", "gradients"},
    reads=Captures(attention=True),
    citation="Chefer, Gur & Wolf, ICCV 2021",
)
@dataclass(frozen=True)
class GradRollout(Method):
    """`R <- R + C^l R` from `R = I`, with `C^l = mean over heads of ReLU(dA^l * A^l)` (eq. 5-6), at the tokens read.

    The map is of `R - I`. At a class token the identity says nothing of patches; where patches are averaged it would
    add the same to each of them, and outweigh the rest.

    Reads: the attention of every block and its gradients.
    Cost: one forward and one backward pass.
    Example: `grad_rollout(start_layer=1)`.

    Attributes:
        start_layer: first block used, 0 being the first of all.
        normalised: divide the rows of each `C^l + I` by their sums, as rollout does, and keep the identity; the
            paper does not.
    """

    start_layer: NonNegativeInt = 0
    normalised: bool = False

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        trace = model.trace(images, attention=True)
        layers = layers_from(self, trace.attention, self.start_layer)  # each (B, heads, T, T)
        slopes = trace.gradients(classes, *layers)
        relevant = [(slope * matrix.detach()).relu().mean(dim=1) for slope, matrix in zip(slopes, layers, strict=True)]
        rolled = roll_out(relevant) if self.normalised else accumulated(relevant)  # (B, T, T)
        return trace.to_grid(trace.read(rolled))  # (B, h, w)


def accumulated(layers: Sequence[Tensor]) -> Tensor:
    """`(I + C^L) ... (I + C^1) - I` for matrices (B, T, T), without ever adding the identity: small values survive."""
    result = torch.zeros_like(layers[0])
    for layer in layers:
        result = result + layer + layer @ result
    return result

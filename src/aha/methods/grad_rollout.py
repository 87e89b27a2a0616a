"""Generic attention explainability: attention times its gradient, accumulated through the layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aha.methods.base import Method, check_start_layer, layers_from, method
from aha.methods.rollout import roll_out
from aha.models import TargetModel


@method("grad_rollout", family="attention", needs={"attention", "gradients"}, citation="Chefer, Gur & Wolf, ICCV 2021")
@dataclass(frozen=True)
class GradRollout(Method):
    """`R <- R + C^l R` from `R = I`, with `C^l = mean over heads of ReLU(dA^l * A^l)` (eq. 5-6), at the tokens read.

    Attributes:
        start_layer: first block used, 0 being the first of all.
        normalised: divide the rows of each `C^l + I` by their sums, as rollout does; the paper does not.
    """

    start_layer: int = 0
    normalised: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_start_layer(self, self.start_layer)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        trace = model.trace(images, attention=True)
        layers = layers_from(self, trace.attention, self.start_layer)  # each (B, heads, T, T)
        slopes = trace.gradients(classes, *layers)
        relevant = [(slope * matrix.detach()).relu().mean(dim=1) for slope, matrix in zip(slopes, layers, strict=True)]
        return trace.to_grid(trace.read(roll_out(relevant, normalised=self.normalised)))  # (B, h, w)

"""Bidirectional attention: how tokens are perceived, times what the prediction feeds back to attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.methods.attention_ig import check_steps, reasoning_feedback
from aha.methods.base import Method, check_start_layer, layers_from, method
from aha.methods.rollout import roll_out
from aha.models import TargetModel


@method(
    "bidirectional",
    family="attention",
    needs={"attention", "gradients"},
    citation="Chen et al. (Beyond Intuition), TMLR 2023",
)
@dataclass(frozen=True)
class Bidirectional(Method):
    """`R * W` at the tokens read, with `R <- R + C^l R` through the layers and W as in `attention_ig`.

    Attributes:
        start_layer: first block used. None is the published choice for twelve blocks, scaled to the model's depth:
            index 3.
        steps: places on the path of W.
    """

    start_layer: int | None = None
    steps: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        check_start_layer(self, self.start_layer or 0)
        check_steps(self, self.steps)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        trace = model.trace(images, attention=True)
        start = len(trace.attention) // 4 if self.start_layer is None else self.start_layer
        layers = layers_from(self, trace.attention, start)  # each (B, heads, T, T)
        slopes = trace.gradients(classes, *layers)
        perceived = []
        for matrix, slope in zip(layers, slopes, strict=True):
            shares = head_importance(matrix.detach(), slope)  # (B, heads)
            perceived.append(torch.einsum("bh,bhij->bij", shares, matrix.detach()))
        feedback, _ = reasoning_feedback(model, images, classes, self.steps)  # (B, T, T)
        return trace.to_grid(trace.read(feedback * roll_out(perceived, normalised=False)))  # (B, h, w)


def head_importance(matrix: Tensor, slope: Tensor) -> Tensor:
    """Each head's share (B, heads) of `mean |A^T dA|`, for attention and its gradient (B, heads, T, T)."""
    strength = (matrix.transpose(-2, -1) @ slope).abs().mean(dim=(-2, -1))  # (B, heads)
    return strength / strength.sum(dim=1, keepdim=True).clamp(min=torch.finfo(strength.dtype).tiny)

"""LeGrad: the positive gradient of layer-wise scores with respect to each layer's attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aha.core.validation import PositiveInt
from aha.errors import SpecError
from aha.methods.base import Method, method
from aha.models import Captures, TargetModel


@method(
    "legrad",
    family="attention",
    needs={"attention", "tokens", "gradients"},
    reads=Captures(attention=True, tokens=True),
    citation="Bousselham et al., ICCV 2025",
)
@dataclass(frozen=True)
class LeGrad(Method):
    """`sum over layers of mean over heads and queries of ReLU(d y^l / d A^l)`, at the patch tokens.

    `y^l` is the class score that the model's own norm and head give to the pooled output of block l. All layers are
    used by default, as in the paper; the published code uses the last two: `legrad(layers=2)`.

    Reads: the attention and tokens of every block, and gradients of the attention.
    Cost: one forward and one backward pass.
    Example: `legrad(layers=2)`.

    Attributes:
        layers: how many of the last blocks; None for all.
        pool: "mean" over all tokens (published code), or "model" for the model's own pooling.
    """

    layers: PositiveInt | None = None
    pool: Literal["mean", "model"] = "mean"

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        trace = model.trace(images, attention=True, tokens=True)
        used = len(trace.attention) if self.layers is None else self.layers
        if used > len(trace.attention):
            raise SpecError(f"legrad: layers={used}, but there are {len(trace.attention)} blocks")
        total = torch.zeros((), device=trace.outputs.device)
        for matrix, tokens in zip(trace.attention[-used:], trace.tokens[-used:], strict=True):
            cotangent = layer_score_gradient(model, images, tokens, classes, self.pool)  # (B, T, D)
            (slopes,) = trace.vjp(tokens, cotangent, matrix)  # (B, heads, T, T)
            total = total + slopes.relu().mean(dim=(1, 2))  # (B, T)
        return trace.to_grid(total)  # (B, h, w)


def layer_score_gradient(
    model: TargetModel, images: Tensor, tokens: Tensor, classes: Tensor, pool: Literal["mean", "each", "model"]
) -> Tensor:
    """Gradient (B, T, D) of a layer's score with respect to its block's output; the other blocks are skipped.

    The score is what the model's own norm and head make of the output: of the mean over all tokens, of each of them,
    then averaged, or pooled as the model does.
    """
    with torch.enable_grad():
        leaf = tokens.detach().requires_grad_()
        if pool == "each":
            outputs = model.mean_output_of_tokens(images, leaf)
        else:
            # Norm and head act on each token alike, so a sequence of equal tokens is read as its mean.
            pooled = leaf.mean(dim=1, keepdim=True).expand_as(leaf) if pool == "mean" else leaf
            outputs = model.outputs_from_tokens(images, pooled)
        scores = model.score.differentiated()(outputs, classes)  # (B,)
        return torch.autograd.grad(scores.sum(), leaf)[0]

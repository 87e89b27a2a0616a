"""InFlow: rollout with measured residual connections and the strongest heads, steered by layer-wise gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.methods.attention.bidirectional import head_importance
from aha.methods.attention.legrad import layer_score_gradient
from aha.methods.base import Method, method
from aha.models import Captures, TargetModel


@method(
    "inflow",
    family="attention",
    needs={"attention", "tokens", "branches", "gradients"},
    reads=Captures(attention=True, tokens=True, residual_mid=True),
    citation="Walker et al., AISTATS 2025",
)
@dataclass(frozen=True)
class InFlow(Method):
    """`R = M^L ... M^1` at the tokens read, `M^l` being what block l mixes, its rows normalised.

    `M = (A diag(b) + diag(a)) (diag(r f) + diag(e))`: a and b are the shares, by norm, of the tokens and of what
    attention adds to them; e and f those of the sum and of what the MLP adds; `r = (f / e) / sum(f / e)`. `A` is the
    largest over heads of attention weighted by the head's importance, times the positive gradient of the layer's score.

    Reads: attention and its gradients, and the tokens at both residual connections of every block.
    Cost: one forward and two backward passes.
    Example: `inflow(mlp=False)`.

    Attributes:
        gradient: steer by the gradient of each layer's score: the model's head on the mean over all tokens, each after
            the model's last norm (`legrad` takes the norm of the mean).
        mlp: count the second residual connection.
    """

    gradient: bool = True
    mlp: bool = True

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        trace = model.trace(images, attention=True, tokens=True, residual_mid=True)
        slopes = trace.gradients(classes, *trace.attention)
        result: Tensor | None = None
        for index, (matrix, slope) in enumerate(zip(trace.attention, slopes, strict=True)):
            shares = head_importance(matrix.detach(), slope)  # (B, heads)
            mixed = torch.einsum("bh,bhij->bhij", shares, matrix.detach()).amax(dim=1)  # (B, T, T)
            before, middle, after = trace.tokens[index], trace.residual_mid[index], trace.tokens[index + 1]  # (B, T, D)
            if self.gradient:
                cotangent = layer_score_gradient(model, images, after, classes, "each")
                (steer,) = trace.vjp(after, cotangent, matrix)  # (B, heads, T, T)
                mixed = (steer.mean(dim=1) * mixed).relu()
            step = block_flow(mixed, before.detach(), middle.detach(), after.detach(), mlp=self.mlp)
            result = step if result is None else step @ result
        assert result is not None
        return trace.to_grid(trace.read(result))  # (B, h, w)


def block_flow(mixed: Tensor, before: Tensor, middle: Tensor, after: Tensor, *, mlp: bool) -> Tensor:
    """The matrix M (B, T, T) of one block from its attention (B, T, T) and its tokens (B, T, D) on three levels."""
    stays, enters = norm_shares(before, middle - before)  # (B, T) each
    flow = mixed * enters[:, None, :] + torch.diag_embed(stays)
    if mlp:
        passes, changes = norm_shares(middle, after - middle)
        ratio = changes / passes
        weight = ratio / ratio.sum(dim=1, keepdim=True)
        flow = flow * (weight * changes + passes)[:, None, :]
    return flow / flow.sum(dim=-1, keepdim=True)


def norm_shares(one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:
    """The shares (B, T) that two parts (B, T, D) have in the sum of their norms."""
    first, second = one.norm(dim=-1), two.norm(dim=-1)
    return first / (first + second), second / (first + second)

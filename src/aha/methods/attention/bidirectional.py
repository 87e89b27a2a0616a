"""Bidirectional attention: how tokens are perceived, times what the prediction feeds back to attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from aha.core.validation import NonNegativeInt
from aha.methods.attention.attention_ig import PathSteps, reasoning_feedback
from aha.methods.attention.rollout import roll_out
from aha.methods.base import Method, layers_from, method
from aha.methods.cost import Cost
from aha.models import Captures, TargetModel, Trace


@method(
    "bidirectional",
    family="attention",
    needs={"attention", "gradients"},
    citation="Chen et al. (Beyond Intuition), TMLR 2023",
)
@dataclass(frozen=True)
class Bidirectional(Method):
    """`R * W` at the tokens read, with `R <- R + C^l R` through the layers and W as in `attention_ig`.

    `C^l` is attention as the pooled token perceives it, in two forms:

    - "head": heads weighted by their share of `mean |A^T dA|`, the form of the tables of MDA, InFlow and AHA;
    - "token": the mean over heads, its columns weighted by `|V_j W_O| / |X_j|`, the length of what a token hands
      on over its own.

    Reads: the attention of every block and its gradients; the form "token", tokens too.
    Cost: `steps` + 1 forward and backward passes.
    Example: `bidirectional(form='token')`.

    Attributes:
        form: see above.
        start_layer: first block used. None is the published choice for twelve blocks, scaled to the model's depth:
            index 3 for heads, 6 for tokens.
        steps: places on the path of W.
    """

    form: Literal["head", "token"] = "head"
    start_layer: NonNegativeInt | None = None
    steps: PathSteps = 20

    @property
    def needs(self) -> frozenset[str]:
        """For tokens, also what attention adds to them."""
        return self.required | ({"tokens", "branches"} if self.form == "token" else set())

    def reads(self, model: TargetModel, size: Sequence[int]) -> Captures:
        by_token = self.form == "token"
        return Captures(attention=True, tokens=by_token, residual_mid=by_token)

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        return Cost(2 * self.steps + 2)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        by_token = self.form == "token"
        trace = model.trace(images, attention=True, tokens=by_token, residual_mid=by_token)
        depth = len(trace.attention)
        default = depth // 2 if by_token else depth // 4
        used = layers_from(self, range(depth), default if self.start_layer is None else self.start_layer)
        perceive = perceived_by_tokens if by_token else partial(perceived_by_heads, classes=classes)
        rolled = roll_out(perceive(trace, used), normalised=False)  # (B, T, T)
        feedback, _ = reasoning_feedback(model, images, classes, self.steps)  # (B, T, T)
        return trace.to_grid(trace.read(feedback * rolled))  # (B, h, w)


def perceived_by_heads(trace: Trace, used: Sequence[int], classes: Tensor) -> list[Tensor]:
    """Attention (B, T, T) of each block, its heads weighted by their importance for the class."""
    layers = [trace.attention[index] for index in used]
    slopes = trace.gradients(classes, *layers)
    return [
        torch.einsum("bh,bhij->bij", head_importance(matrix.detach(), slope), matrix.detach())
        for matrix, slope in zip(layers, slopes, strict=True)
    ]


def perceived_by_tokens(trace: Trace, used: Sequence[int]) -> list[Tensor]:
    """Attention (B, T, T) of each block, mean over heads, its columns weighted by what each token hands on."""
    perceived = []
    for index in used:
        ratios = trace.values(index).norm(dim=-1) / trace.tokens[index].detach().norm(dim=-1)  # (B, T)
        perceived.append(trace.attention[index].detach().mean(dim=1) * ratios[:, None, :])
    return perceived


def head_importance(matrix: Tensor, slope: Tensor) -> Tensor:
    """Each head's share (B, heads) of `mean |A^T dA|`, for attention and its gradient (B, heads, T, T)."""
    strength = (matrix.transpose(-2, -1) @ slope).abs().mean(dim=(-2, -1))  # (B, heads)
    return strength / strength.sum(dim=1, keepdim=True).clamp(min=torch.finfo(strength.dtype).tiny)

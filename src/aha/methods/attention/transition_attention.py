"""Transition attention maps: a Markov chain through attention, times integrated gradients of attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.core.validation import NonNegativeInt
from aha.methods.attention.attention_ig import PathSteps, reasoning_feedback
from aha.methods.base import Method, layers_from, method
from aha.methods.cost import Cost
from aha.models import Captures, TargetModel


@method(
    "transition_attention",
    family="attention",
    needs={"attention", "gradients"},
    reads=Captures(attention=True),
    citation="Yuan et al., NeurIPS XAI workshop 2021",
)
@dataclass(frozen=True)
class TransitionAttention(Method):
    """`s * w`: s the state of the tokens read, carried back through the layers, w their `attention_ig`.

    The state begins as the last attention, mean over heads, and takes `s <- s A^l + s` for each layer before.

    Reads: the attention of every block, and the gradients of the last.
    Cost: `steps` + 1 forward and `steps` backward passes.
    Example: `transition_attention(steps=50)`.

    Attributes:
        start_layer: first block used; 0 in the paper's generator.
        steps: places on the path of the gradients.
        repeat_last: apply the last attention a second time, as the copies behind the tables of MDA and InFlow do.
    """

    start_layer: NonNegativeInt = 0
    steps: PathSteps = 20
    repeat_last: bool = False

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        return Cost(2 * self.steps + 1)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        trace = model.trace(images, attention=True)
        layers = layers_from(self, trace.attention, self.start_layer)
        fused = [matrix.detach().mean(dim=1) for matrix in layers]  # each (B, T, T)
        state = trace.read(fused[-1])  # (B, T)
        for matrix in reversed(fused if self.repeat_last else fused[:-1]):
            state = torch.einsum("bi,bij->bj", state, matrix) + state
        feedback, _ = reasoning_feedback(model, images, classes, self.steps)  # (B, T, T)
        return trace.to_grid(state * trace.read(feedback))  # (B, h, w)

"""AttCAT: hidden states times their gradients, weighted by the attention that each token receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aha.methods.base import Method, method
from aha.models import Captures, TargetModel


@method(
    "attcat",
    family="attention",
    needs={"attention", "tokens", "gradients"},
    reads=Captures(attention=True, tokens=True),
    citation="Qiang et al., NeurIPS 2022",
)
@dataclass(frozen=True)
class AttCAT(Method):
    """`sum over l of a^l_j * (sum over channels of h^l_j * d score / d h^l_j)` (eq. 6-8), signed.

    `a^l_j` is the attention that token j receives in block l, mean over heads and queries.

    Reads: attention, and the tokens of every block with their gradients.
    Cost: one forward and one backward pass.
    Example: `attcat(hidden='input')`.

    Attributes:
        hidden: `h^l` is the "output" of block l, as in the paper, or its "input", as in the published code.
    """

    hidden: Literal["output", "input"] = "output"

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        trace = model.trace(images, attention=True, tokens=True)
        states = trace.tokens[1:] if self.hidden == "output" else trace.tokens[:-1]  # each (B, T, D)
        slopes = trace.gradients(classes, *states)
        total = torch.zeros(states[0].shape[:2], dtype=states[0].dtype, device=states[0].device)  # (B, T)
        for matrix, state, slope in zip(trace.attention, states, slopes, strict=True):
            received = matrix.detach().mean(dim=(1, 2))  # (B, T)
            total = total + received * (state.detach() * slope).sum(dim=-1)
        return trace.to_grid(total)  # (B, h, w)

"""Attention of one block, as it is."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aha.methods.base import Layer, Method, method, pick_block
from aha.models import Captures, TargetModel


@method(
    "raw_attention",
    family="attention",
    needs={"attention"},
    reads=Captures(attention=True),
    citation="Dosovitskiy et al., ICLR 2021",
)
@dataclass(frozen=True)
class RawAttention(Method):
    """Mean over heads of the attention that the class token (or the mean of the pooled tokens) pays to each patch.

    It knows nothing of the class: every class gets the same map.

    Formula: `M_i = mean over heads of A_ri`, r being the tokens read.
    Reads: the attention of one block.
    Cost: one forward pass.
    Example: `raw_attention(layer=-2)`.

    Attributes:
        layer: which block, counted from the end, or its name.
    """

    layer: Layer = -1

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        trace = model.trace(images, attention=True)
        matrix = trace.attention[pick_block(trace, self.layer)].detach()  # (B, heads, T, T)
        rows = trace.read(matrix)  # (B, heads, T)
        return trace.to_grid(rows.mean(dim=1))  # (B, h, w)

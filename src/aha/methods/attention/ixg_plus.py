"""Input times gradient of the tokens, summed over the blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from aha.core.validation import NonNegativeInt
from aha.errors import SpecError
from aha.methods.base import Method, method
from aha.models import Captures, TargetModel, Trace

FirstBlock = NonNegativeInt | Literal["half"]


@method(
    "ixg_plus",
    family="attention",
    needs={"tokens", "gradients"},
    reads=Captures(tokens=True),
    citation="Mehri et al., CVPR workshops 2024",
)
@dataclass(frozen=True)
class IxGPlus(Method):
    """`sum over blocks of sum over channels of X^l * d score / d X^l`, `X^l` being the input of block l; signed.

    Reads: the tokens of every block and their gradients.
    Cost: one forward and one backward pass.
    Example: `ixg_plus(start_layer='half')`.

    Attributes:
        start_layer: first block used: 0 for all of them (PLUS), "half" for the second half (SkipPLUS).
    """

    start_layer: FirstBlock = 0

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return token_ixg(model.trace(images, tokens=True), classes, self.start_layer)  # (B, h, w)


def token_ixg(trace: Trace, classes: Tensor, start_layer: FirstBlock) -> Tensor:
    """The sum over blocks as a map (B, h, w), from a trace with tokens."""
    inputs = trace.tokens[:-1]  # X^1 .. X^L, each (B, T, D)
    first = len(inputs) // 2 if start_layer == "half" else start_layer
    if first >= len(inputs):
        raise SpecError(f"start_layer={start_layer}, but there are {len(inputs)} blocks")
    used = inputs[first:]
    products = [(x * slope).sum(dim=-1) for x, slope in zip(used, trace.gradients(classes, *used), strict=True)]
    return trace.to_grid(sum(products[1:], products[0]).detach())

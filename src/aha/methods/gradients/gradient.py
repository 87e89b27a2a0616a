"""The gradient of the class score with respect to the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from aha.methods.base import Method, method
from aha.models import Captures, TargetModel

ChannelRule = Literal["max_abs", "sum_abs", "sum"]


def over_channels(values: Tensor, rule: ChannelRule) -> Tensor:
    """One value per pixel (B, H, W) from one per channel (B, C, H, W)."""
    if rule == "max_abs":
        return values.abs().amax(dim=1)
    return (values.abs() if rule == "sum_abs" else values).sum(dim=1)


@method(
    "gradient",
    family="gradient",
    needs={"gradients"},
    reads=Captures(inputs=True),
    volumes=True,
    citation="Simonyan et al., ICLR workshop 2014",
)
@dataclass(frozen=True)
class Gradient(Method):
    """`|d score / d x|`, the largest channel per pixel as in the paper; `channels="sum"` keeps the sign.

    Reads: the gradients of the input.
    Cost: one forward and one backward pass.
    Example: `gradient(channels='sum')`.
    """

    channels: ChannelRule = "max_abs"

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return over_channels(model.input_gradients(images, classes), self.channels)  # (B, H, W)

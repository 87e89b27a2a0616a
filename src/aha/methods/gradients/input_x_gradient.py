"""Input times gradient."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aha.methods.base import Method, method
from aha.methods.gradients.gradient import ChannelRule, over_channels
from aha.models import Captures, TargetModel


@method(
    "input_x_gradient",
    family="gradient",
    needs={"gradients"},
    reads=Captures(inputs=True),
    volumes=True,
    citation="Shrikumar et al., 2016",
)
@dataclass(frozen=True)
class InputXGradient(Method):
    """`x * d score / d x`, summed over channels. Depends on where the normalisation puts zero: the mean colour.

    Reads: the input and its gradients.
    Cost: one forward and one backward pass.
    Example: `input_x_gradient`.
    """

    channels: ChannelRule = "sum"

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return over_channels(images * model.input_gradients(images, classes), self.channels)  # (B, H, W)

"""Guided backpropagation: the input gradient along positive signals alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aha.errors import CapabilityError
from aha.methods.base import Method, method
from aha.methods.gradients.gradient import ChannelRule, over_channels
from aha.models import TargetModel


@method(
    "guided_backprop",
    family="gradient",
    needs={"gradients"},
    volumes=True,
    citation="Springenberg et al., ICLR workshop 2015",
)
@dataclass(frozen=True)
class GuidedBackprop(Method):
    """The input gradient, with what each activation hands back clamped at zero: `ReLU(f'(x) g)`.

    For a ReLU this is the paper's rule, `1[x > 0] ReLU(g)`. For GELU, SiLU and the others it is the same clamp in the
    same place, the form that is in use for transformers. Activations are found however they are called; gates, such as
    those of squeeze and excitation, and softmax are left alone.

    Reads: the gradients of the input, with changed activations.
    Cost: one forward and one backward pass.
    Example: `guided_backprop(channels='sum')`.
    """

    channels: ChannelRule = "max_abs"

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return over_channels(guided_gradients(model, images, classes), self.channels)  # (B, H, W)


def guided_gradients(model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
    """Input gradients (B, C, H, W) that pass every activation as positive values only."""
    with model.before_activations(_PositiveGradient.apply) as met:
        gradients = model.input_gradients(images, classes)
    if not met:
        raise CapabilityError(
            f"guided_backprop: {model.spec} calls no known activation function, so there is nothing to guide; "
            "use gradient"
        )
    return gradients


class _PositiveGradient(torch.autograd.Function):
    """Passes values on, and back only those gradients that are positive."""

    @staticmethod
    def forward(_context: Any, values: Tensor) -> Tensor:
        return values.clone()  # a copy, which in-place activations may overwrite

    @staticmethod
    def backward(_context: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clamp(min=0)

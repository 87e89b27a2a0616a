"""LibraGrad: gradients of pruned and scaled paths, which together account for the whole score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aha.methods.attention.ixg_plus import FirstBlock, token_ixg
from aha.methods.base import Method, method
from aha.models import TargetModel


@method(
    "libra_ixg_plus",
    family="attention",
    needs={"tokens", "attention", "gradients"},
    citation="Mehri et al., CVPR 2025",
)
@dataclass(frozen=True)
class LibraIxGPlus(Method):
    """`ixg_plus` with a backward pass in which every operation hands on as much as it got; outputs do not change.

    Attention weights, the gates of GELU and SiLU, and the deviation in layer norms count as constants (pruned paths);
    both factors of a gated product get half of the gradient (scaled paths). Then the sum of `X^l * gradient` is the
    score at every block, up to what biases contribute.

    Reads: the tokens of every block and their gradients, by changed rules; attention decides where they are changed.
    Cost: one forward and one backward pass.
    Example: `libra_ixg_plus(score='logit')`.

    Attributes:
        start_layer: as in `ixg_plus`.
        score: "probability" as in the published preset: the gradient then weighs all classes against each other, and
            fades where the model is certain; of a model whose score is no probability, that score. "logit" explains the
            raw output, for which the sum rule holds.
    """

    start_layer: FirstBlock = 0
    score: Literal["probability", "logit"] = "probability"

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        is_probability = self.score == "probability" and model.score.is_probability
        score = model.score if is_probability else model.score.differentiated()
        model.readout(images.shape[1:])  # found with the model's own gradients, once
        with model.rules(LIBRA, attention_in_parts=True):
            trace = model.trace(images, tokens=True, score=score)
        return token_ixg(trace, classes, self.start_layer)  # (B, h, w)


def constant_softmax(*args: Any, **options: Any) -> Tensor:
    """Attention weights as constants: only the values carry gradient."""
    return F.softmax(*args, **options).detach()


def gelu_with_constant_gate(x: Tensor, approximate: str = "none") -> Tensor:
    """`x Phi(x)` with the gradient `Phi(x)`."""
    return with_constant_gate(x, F.gelu(x, approximate=approximate))


def silu_with_constant_gate(x: Tensor, inplace: bool = False) -> Tensor:
    """`x sigmoid(x)` with the gradient `sigmoid(x)`."""
    return with_constant_gate(x, F.silu(x))


def with_constant_gate(x: Tensor, value: Tensor) -> Tensor:
    """`value` = x times a gate, with the gate as its gradient; at zero, GELU and SiLU have the gate 1/2."""
    gate = torch.where(x == 0, 0.5, value / torch.where(x == 0, 1, x)).detach()
    return with_gradient_of(value, x * gate)


def layer_norm_with_constant_deviation(
    x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, *_: Any
) -> Tensor:
    """Layer norm through which only the mean carries gradient."""
    dims = tuple(range(-len(shape), 0))
    deviation = (x.var(dim=dims, unbiased=False, keepdim=True) + eps).sqrt().detach()
    scaled = (x - x.mean(dim=dims, keepdim=True)) / deviation
    return with_gradient_of(F.layer_norm(x, shape, weight, bias, eps), scaled if weight is None else scaled * weight)


def rms_norm_with_constant_deviation(
    x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """RMS norm as a fixed scaling."""
    value = F.rms_norm(x, shape, weight, eps)
    scale = F.rms_norm(x, shape, None, eps).detach() / torch.where(x == 0, 1, x).detach()
    scaled = x * torch.where(x == 0, 0, scale)
    return with_gradient_of(value, scaled if weight is None else scaled * weight)


def gated_product(a: Any, b: Any, **options: Any) -> Tensor:
    """A product; if both factors are activations of one shape, each gets half of its gradient."""
    if not are_activations(a, b):
        return torch.mul(a, b, **options)
    return with_gradient_of(a * b, (a.detach() * b + a * b.detach()) / 2)


def are_activations(a: Any, b: Any) -> bool:
    """Do both of them depend on the image? A scalar, a parameter or what is broadcast from one does not."""
    both = isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape
    return both and all(x.requires_grad and not isinstance(x, nn.Parameter) for x in (a, b))


def with_gradient_of(value: Tensor, other: Tensor) -> Tensor:
    """The value of one tensor with the gradient of another."""
    return value.detach() + (other - other.detach())


LIBRA: dict[str, Callable[..., Any]] = {
    "softmax": constant_softmax,
    "gelu": gelu_with_constant_gate,
    "silu": silu_with_constant_gate,
    "sigmoid": lambda x: torch.sigmoid(x).detach(),  # the gate of x * sigmoid(c x)
    "layer_norm": layer_norm_with_constant_deviation,
    "rms_norm": rms_norm_with_constant_deviation,
    "mul": gated_product,
}

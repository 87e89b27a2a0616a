"""Relevance propagation: operations whose backward pass hands relevance to their inputs instead of derivatives.

Each function computes what the operation of its name computes. Going back, it takes the relevance R of its output and
shares it out among its inputs; `c_ij = x_i w_ij` is what input i contributes to `z_j = sum_i c_ij`. Shapes and indices
need no rule: what autograd does for them, moving and adding up, is right for relevance too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Back = Callable[..., tuple[Tensor | None, ...]]
"""From the output's relevance and the inputs to the relevance of each input."""
Operation = Callable[[Tensor], Tensor]


class _Propagate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, back: Back, *inputs: Tensor) -> Tensor:
        ctx.back = back
        ctx.save_for_backward(*inputs)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *relevances: Tensor) -> Any:
        with torch.no_grad():
            return None, None, *ctx.back(relevances[0], *ctx.saved_tensors)


def propagate(value: Tensor, back: Back, *inputs: Tensor) -> Tensor:
    """`value`, computed from `inputs`, with `back` as its backward pass; plain, if nothing is being recorded."""
    return _Propagate.apply(value.detach(), back, *inputs)  # type: ignore[no-any-return]


def passed_on(value: Tensor, x: Tensor) -> Tensor:
    """The value of an activation or a norm of x, element by element, whose relevance is that of x."""
    return propagate(value, lambda relevance, _: (relevance,), x)


def quotient(relevance: Tensor, total: Tensor, epsilon: float = 0.0) -> Tensor:
    """`R / (z + epsilon sign(z))`; nothing where z is zero."""
    total = total + epsilon * torch.where(total < 0, -1.0, 1.0).to(total)
    return torch.where(total == 0, 0, relevance / torch.where(total == 0, 1, total))


def transposed(operation: Operation, x: Tensor, relevance: Tensor) -> Tensor:
    """The transpose of a linear operation on tensors like x, applied to a tensor like its output."""
    with torch.enable_grad():
        leaf = torch.zeros_like(x, requires_grad=True)
        return torch.autograd.grad(operation(leaf), leaf, relevance)[0]


def is_signal(x: Any, like: Any) -> bool:
    """Does x depend on the image, in the same shape? Scalars, weights and what is broadcast only scale or shift."""
    return isinstance(x, Tensor) and x.shape == like.shape and x.requires_grad


def product(a: Any, b: Any) -> Tensor:
    """Elementwise `a b`: two signals get half each; a signal that is only scaled keeps all."""
    value = torch.mul(a, b)
    whole = [x for x in (a, b) if isinstance(x, Tensor) and x.shape == value.shape and x.requires_grad]
    signals = [x for x in whole if not isinstance(x, nn.Parameter)] or whole
    if len(signals) == 2:
        return propagate(value, lambda relevance, *_: (relevance / 2, relevance / 2), a, b)
    return passed_on(value, signals[0]) if signals else value


def matrix_product(
    a: Tensor, b: Tensor, linear: Callable[[Tensor, Tensor], Tensor], *, share: float = 0.5, epsilon: float = 0.0
) -> Tensor:
    """`a @ b`: each term in proportion to its size, `share` of it to either factor; 1 if the other is a constant.

    A product with one matrix for all images is a linear layer, and has the rule of one.
    """
    if b.dim() == 2 < a.dim():
        return linear(a, b.transpose(0, 1))
    value = (a @ b).detach()  # it has the backward pass below; the graph need not keep another

    def back(relevance: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        s = share * quotient(relevance, value, epsilon)
        return a * (s @ b.transpose(-2, -1)), b * (a.transpose(-2, -1) @ s)

    return propagate(value, back, a, b)


def pooled(x: Tensor, operation: Operation, *, epsilon: float | None = None) -> Tensor:
    """An average: each input in proportion to its magnitude, or, with an epsilon, to itself."""

    def back(relevance: Tensor, x: Tensor) -> tuple[Tensor]:
        size = x.abs() if epsilon is None else x
        return (size * transposed(operation, x, quotient(relevance, operation(size), epsilon or 0.0)),)

    return propagate(operation(x), back, x)


class Layer(NamedTuple):
    """A linear layer without its bias: what it does to inputs and weights, and its transpose.

    Attributes:
        forward: inputs x and weights to outputs.
        back: a tensor like the outputs, weights and inputs to a tensor like the inputs.
    """

    forward: Callable[[Tensor, Tensor], Tensor]
    back: Callable[[Tensor, Tensor, Tensor], Tensor]


DENSE = Layer(F.linear, lambda values, weight, _: values @ weight)


def positive_sum(x: Tensor, weight: Tensor, layer: Layer) -> Tensor:
    """Sums over the positive contributions of a layer."""
    down = x.clamp(max=0)
    total = layer.forward(x.clamp(min=0), weight.clamp(min=0))
    # After a ReLU there is nothing below zero.
    return total + layer.forward(down, weight.clamp(max=0)) if bool(down.any()) else total


def distribute(
    x: Tensor, weight: Tensor, layer: Layer, to_positive: Tensor, to_negative: Tensor | None = None
) -> Tensor:
    """`sum_j c+_ij p_j + c-_ij n_j`: relevance of the inputs, positive and negative contributions weighed apart."""
    up, down = x.clamp(min=0), x.clamp(max=0)
    more, less = weight.clamp(min=0), weight.clamp(max=0)
    result = up * layer.back(to_positive, more, x)
    if to_negative is not None:
        result = result + up * layer.back(to_negative, less, x)
    if bool(down.any()):
        result = result + down * layer.back(to_positive, less, x)
        if to_negative is not None:
            result = result + down * layer.back(to_negative, more, x)
    return result


def layer_relevance(
    relevance: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    layer: Layer,
    gamma: float | None,
    epsilon: float,
) -> Tensor:
    """Relevance of a layer's inputs by the epsilon rule (gamma = 0), the gamma rule, or z-plus (gamma = None).

    The gamma rule weighs contributions of the sign of `z_j` by `1 + gamma`. Z-plus counts positive ones; outputs that
    have none, which matter behind activations other than ReLU, share by their negative ones: none is lost.
    """
    shift = torch.zeros((), dtype=x.dtype, device=x.device) if bias is None else bias
    if gamma == 0:
        return x * layer.back(quotient(relevance, layer.forward(x, weight) + shift, epsilon), weight, x)
    positive = positive_sum(x, weight, layer)
    if gamma is None:
        total = positive + shift.clamp(min=0)
        lost = torch.where(total == 0, relevance, 0)
        to_negative = quotient(lost, layer.forward(x, weight)) if bool(lost.any()) else None
        return distribute(x, weight, layer, quotient(relevance, total), to_negative)
    plain = layer.forward(x, weight)
    is_up = plain + shift > 0
    favoured = torch.where(is_up, positive + shift.clamp(min=0), plain - positive + shift.clamp(max=0))
    per_output = quotient(relevance, plain + shift + gamma * favoured, epsilon)
    to_positive, to_negative = (per_output * (1 + gamma * favours.to(x)) for favours in (is_up, ~is_up))
    return distribute(x, weight, layer, to_positive, to_negative)


def flat_relevance(relevance: Tensor, x: Tensor, weight: Tensor, layer: Layer) -> Tensor:
    """Each output's relevance spread evenly over the inputs that it sees."""
    ones = torch.ones_like(weight)
    return layer.back(quotient(relevance, layer.forward(torch.ones_like(x), ones)), ones, x)


def box_relevance(
    relevance: Tensor, x: Tensor, weight: Tensor, layer: Layer, low: Tensor, high: Tensor, epsilon: float
) -> Tensor:
    """Relevance of pixels within bounds, `c_ij = x_i w_ij - low_i w+_ij - high_i w-_ij` (Montavon et al. 2017)."""
    more, less = weight.clamp(min=0), weight.clamp(max=0)
    total = layer.forward(x, weight) - layer.forward(low, more) - layer.forward(high, less)
    per_output = quotient(relevance, total, epsilon)
    return (
        x * layer.back(per_output, weight, x)
        - low * layer.back(per_output, more, x)
        - high * layer.back(per_output, less, x)
    )


def passing(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The rule of an operation that works element by element, or as good as: relevance goes straight through."""

    def rule(x: Tensor, *args: Any, **options: Any) -> Tensor:
        options.pop("inplace", None)
        return passed_on(operation(x, *args, **options), x)

    return rule


_ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "selu": F.selu,
    "softplus": F.softplus,
    "prelu": F.prelu,
    "hardswish": F.hardswish,
    "sigmoid": torch.sigmoid,
    "hardsigmoid": F.hardsigmoid,
    "tanh": torch.tanh,
    "layer_norm": F.layer_norm,
    "rms_norm": F.rms_norm,
    "group_norm": F.group_norm,
    "instance_norm": F.instance_norm,
    "div": torch.div,
}

PASSING = {name: passing(operation) for name, operation in _ELEMENTWISE.items()}
"""Rules for activations, norms and divisions by a constant."""

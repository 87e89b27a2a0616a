"""How relevance goes back through each operation of a convolutional network or a transformer (LRP)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple
from weakref import ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aha.models.relevance.propagation import (
    DENSE,
    PASSING,
    Layer,
    box_relevance,
    flat_relevance,
    layer_relevance,
    matrix_product,
    passed_on,
    pooled,
    product,
    propagate,
    quotient,
    transposed,
)

Kind = Literal["epsilon", "gamma", "zplus", "flat", "box"]


class Kinds(NamedTuple):
    """The rules of the first convolution, of the others, and of dense layers."""

    first: Kind
    convolution: Kind
    dense: Kind


@dataclass
class LayerRules:
    """The rules of one forward pass; it knows which convolution comes first, and which one a batch norm follows."""

    kinds: Kinds
    epsilon: float
    gamma: float
    by_value: bool  # how summands and averaged places share: by value or by magnitude
    with_bias: bool = True
    bounds: tuple[Tensor, ...] | None = None
    dense_gamma: float | None = None  # of dense layers; None for that of convolutions
    absorbing: bool = False  # AttnLRP: norms are linear for a given spread, and summands such as positions take a share
    attending: bool = False  # AttnLRP: attention weights are no constants
    _is_first: bool = True
    _last: dict[str, Any] = field(default_factory=dict)  # the last convolution: what it was made of, and its output

    def table(self) -> dict[str, Callable[..., Any]]:
        """Operation -> rule."""
        absorbing = {"layer_norm": self.layer_norm} if self.absorbing else {}
        return {
            **PASSING,
            **absorbing,
            "conv2d": partial(self.convolution, F.conv2d),
            "conv3d": partial(self.convolution, F.conv3d),
            "linear": self.linear,
            "batch_norm": self.batch_norm,
            "add": self.add,
            "mul": product,
            "softmax": self.softmax,
            "matmul": self.matmul,
            "mean": partial(self._average, torch.mean),
            "avg_pool2d": partial(self._average, F.avg_pool2d),
            "avg_pool3d": partial(self._average, F.avg_pool3d),
            "adaptive_avg_pool2d": partial(self._average, F.adaptive_avg_pool2d),
            "adaptive_avg_pool3d": partial(self._average, F.adaptive_avg_pool3d),
        }

    def convolution(
        self,
        operation: Callable[..., Tensor],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *args: Any,
        **options: Any,
    ) -> Tensor:
        """A convolution over places or voxels, the first of them by its own rule."""

        def forward(x: Tensor, weight: Tensor) -> Tensor:
            return operation(x, weight, None, *args, **options)

        layer = Layer(forward, lambda values, weight, x: transposed(lambda leaf: forward(leaf, weight), x, values))
        kind = self.kinds.first if self._is_first else self.kinds.convolution
        self._is_first = False
        shift = None if bias is None else _per_channel(bias.detach(), x)
        value = operation(x, weight, bias, *args, **options)
        output = self._layer(kind, value, x, weight.detach(), shift, layer)
        # Known by a weak reference: an output that is kept by what its own graph refers to is never freed.
        self._last = {"output": ref(output), "x": x, "weight": weight.detach(), "shift": shift, "layer": layer}
        self._last["kind"] = kind
        return output

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """A dense layer, or a convolution of one pixel if x has places or tokens."""
        self._is_first = False
        kind = self.kinds.convolution if x.dim() > 2 else self.kinds.dense
        shift = None if bias is None else bias.detach()
        value = F.linear(x, weight, bias)
        return self._layer(kind, value, x, weight.detach(), shift, DENSE, self.dense_gamma)

    def batch_norm(
        self,
        x: Tensor,
        mean: Tensor | None,
        variance: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Merged with the convolution whose output it reads: `a (w x + b - mean) + bias`; or passed on."""
        value = F.batch_norm(x, mean, variance, weight, bias, training, momentum, eps)
        last = self._last
        if not last or x is not last["output"]() or mean is None or variance is None or training:
            return passed_on(value, x)
        factor = (variance + eps).rsqrt() if weight is None else weight.detach() * (variance + eps).rsqrt()
        shift = -_per_channel(mean, x) if last["shift"] is None else last["shift"] - _per_channel(mean, x)
        shift = _per_channel(factor, x) * shift + (0 if bias is None else _per_channel(bias.detach(), x))
        merged = last["weight"] * _per_channel(factor, x)[:, None]
        return self._layer(last["kind"], value, last["x"], merged, shift, last["layer"])

    def add(self, a: Any, b: Any, **options: Any) -> Tensor:
        """A residual connection; what does not depend on the image only shifts."""
        value: Tensor = torch.add(a, b, **options)
        whole = [x for x in (a, b) if isinstance(x, Tensor) and x.shape == value.shape and x.requires_grad]
        signals = [x for x in whole if not isinstance(x, nn.Parameter)]
        by_value, epsilon = self.by_value, self.epsilon
        if len(signals) == 1 and self.absorbing:
            total = value.detach()
            return propagate(value, lambda relevance, x: (x * quotient(relevance, total, epsilon),), signals[0])
        if len(signals) < 2:
            return passed_on(value, signals[0]) if signals else value

        def back(relevance: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            sizes = (a, b) if by_value else (a.abs(), b.abs())
            s = quotient(relevance, sizes[0] + sizes[1], epsilon if by_value else 0.0)
            return sizes[0] * s, sizes[1] * s

        return propagate(value, back, a, b)

    def softmax(self, x: Tensor, *args: Any, **options: Any) -> Tensor:
        """Attention weights: constants, or shared out among the logits (AttnLRP, eq. 13)."""
        value = F.softmax(x, *args, **options).detach()
        if not self.attending:
            return value
        dim = args[0] if args else options["dim"]

        def back(relevance: Tensor, x: Tensor) -> tuple[Tensor]:
            shown = torch.where(x.isfinite(), x, 0)  # what is masked has no weight
            return (shown * (relevance - value * relevance.sum(dim=dim, keepdim=True)),)

        return propagate(value, back, x)

    def layer_norm(
        self, x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
    ) -> Tensor:
        """The linear layer that it is for a given spread (AttnLRP, section 3.3.3): the epsilon rule, mean included."""
        value, epsilon = F.layer_norm(x, shape, weight, bias, eps).detach(), self.epsilon
        dims = tuple(range(-len(shape), 0))

        def back(relevance: Tensor, x: Tensor) -> tuple[Tensor]:
            slopes = quotient(relevance, value, epsilon) * (1 if weight is None else weight)
            slopes = slopes * (x.var(dim=dims, correction=0, keepdim=True) + eps).rsqrt()
            return (x * (slopes - slopes.mean(dim=dims, keepdim=True)),)

        return propagate(value, back, x)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """A product of matrices; with attention weights, which are constant, all goes to the values."""
        share = 0.5 if a.requires_grad and b.requires_grad else 1.0
        return matrix_product(a, b, self.linear, share=share, epsilon=self.epsilon)

    def _average(self, operation: Callable[..., Tensor], x: Tensor, *args: Any, **options: Any) -> Tensor:
        return pooled(x, lambda y: operation(y, *args, **options), epsilon=self.epsilon if self.by_value else None)

    def _layer(
        self,
        kind: Kind,
        value: Tensor,
        x: Tensor,
        weight: Tensor,
        shift: Tensor | None,
        layer: Layer,
        own_gamma: float | None = None,
    ) -> Tensor:
        # The graph keeps this function, so that it takes along what it needs and not the rules themselves.
        bias, epsilon, bounds = shift if self.with_bias else None, self.epsilon, self.bounds
        gamma = {"gamma": self.gamma if own_gamma is None else own_gamma, "zplus": None}.get(kind, 0.0)

        def back(relevance: Tensor, x: Tensor) -> tuple[Tensor]:
            if kind == "flat":
                return (flat_relevance(relevance, x, weight, layer),)
            if kind == "box":
                low, high = _pixel_bounds(x, bounds)
                return (box_relevance(relevance, x, weight, layer, low, high, epsilon),)
            return (layer_relevance(relevance, x, weight, bias, layer, gamma, epsilon),)

        return propagate(value, back, x)


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    """Values (C,) with an axis for each of the places of x (B, C, *places)."""
    return values.view(-1, *[1] * (x.dim() - 2))


def _pixel_bounds(x: Tensor, bounds: tuple[Tensor, ...] | None) -> tuple[Tensor, Tensor]:
    """Lowest and highest values that pixels can have, as inputs; those that occur, if the model states nothing."""
    if bounds is not None and bounds[0].shape[1] == x.shape[1]:
        return bounds[0].expand_as(x), bounds[1].expand_as(x)
    dims = tuple(range(1, x.dim()))
    return x.amin(dim=dims, keepdim=True).expand_as(x), x.amax(dim=dims, keepdim=True).expand_as(x)

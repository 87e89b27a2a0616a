"""Transformer attribution: relevance of every attention matrix times its gradient, rolled out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.core.validation import NonNegativeInt
from aha.errors import SpecError
from aha.methods.base import Method, method
from aha.models import Captures, TargetModel
from aha.models.relevance.propagation import (
    DENSE,
    PASSING,
    distribute,
    is_signal,
    matrix_product,
    passed_on,
    passing,
    pooled,
    positive_sum,
    product,
    propagate,
    quotient,
)
from aha.models.scores import SCORES, Score


def class_output(outputs: Tensor, classes: Tensor) -> Tensor:
    """The output (B,) that speaks about each class: of two classes with a single output, the same for both."""
    return outputs.gather(1, classes.clamp(max=outputs.shape[1] - 1)[:, None])[:, 0]


# Relevance starts with 1 also where it is a low output that speaks for the class.
OUTPUT = Score("output", class_output)


@method(
    "transformer_attribution",
    family="attention",
    needs={"attention", "gradients"},
    reads=Captures(attention=True),
    citation="Chefer, Gur & Wolf, CVPR 2021",
)
@dataclass(frozen=True)
class TransformerAttribution(Method):
    """`R = (C^L + I) ... (C^s + I)`, `C^l` the head mean of `ReLU(dA^l * relevance of A^l)`; also T-Attr, T-LRP.

    The relevance, 1 at the class's output, goes back through every operation of the model: linear layers by their
    positive contributions, residual connections in proportion and rescaled, the factors of a matrix product with half
    each; activations, norms and softmax pass it on. Biases get none, so its total stays 1.

    Reads: attention, its gradients, and every operation of the network by gradients with other rules.
    Cost: two forward and two backward passes.
    Example: `transformer_attribution(start_layer=1)`.

    Attributes:
        start_layer: first block used; 0 as in the paper and in copies of the code, 1 in the authors' scripts.
        normalise: divide each row of `C^l + I` by its sum, as the copies in later papers' code do.
    """

    start_layer: NonNegativeInt = 0
    normalise: bool = False

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        plain = model.trace(images, attention=True, score=SCORES["logit"])
        if self.start_layer >= len(plain.attention):
            raise SpecError(
                f"transformer_attribution: start_layer={self.start_layer}, but there are {len(plain.attention)} blocks"
            )
        slopes = plain.gradients(classes, *plain.attention[self.start_layer :])
        with model.rules(RULES, attention_in_parts=True):
            trace = model.trace(images, attention=True, inputs=True, score=OUTPUT)  # all that depends on them can tell
        relevances = trace.gradients(classes, *trace.attention[self.start_layer :])  # each (B, heads, T, T)
        layers = [
            (slope * relevance).relu().mean(dim=1)  # (B, T, T)
            for slope, relevance in zip(slopes, relevances, strict=True)
        ]
        steps = [layer + torch.eye(layer.shape[-1]).to(layer) for layer in layers]
        if self.normalise:
            steps = [step / step.sum(dim=-1, keepdim=True) for step in steps]
        return trace.to_grid(trace.read(reduce(lambda result, step: step @ result, steps)))  # (B, h, w)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer; positive contributions alone get relevance, the bias none."""
    weight = weight.detach()

    def back(relevance: Tensor, x: Tensor) -> tuple[Tensor]:
        return (distribute(x, weight, DENSE, quotient(relevance, positive_sum(x, weight, DENSE))),)

    return propagate(F.linear(x, weight, bias), back, x)


def add(a: Any, b: Any, **options: Any) -> Tensor:
    """A residual connection: each summand in proportion, then both rescaled to keep the image's total."""
    value: Tensor = torch.add(a, b, **options)
    if not (isinstance(a, Tensor) and is_signal(a, value) and is_signal(b, value)):
        x = next((x for x in (a, b) if isinstance(x, Tensor) and x.shape == value.shape), None)
        return value if x is None else passed_on(value, x)  # a shift; no signal where both are broadcast

    def back(relevance: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        s = quotient(relevance, a + b)
        shares = a * s, b * s
        dims = tuple(range(1, relevance.dim()))
        sums = [share.sum(dim=dims, keepdim=True) for share in shares]  # per image
        whole = relevance.sum(dim=dims, keepdim=True)
        sizes = [total.abs() / (sums[0].abs() + sums[1].abs()) for total in sums]
        first, second = (
            share * quotient(size * whole, total) for share, size, total in zip(shares, sizes, sums, strict=True)
        )
        return first, second

    return propagate(value, back, a, b)


def mean(x: Tensor, *args: Any, **options: Any) -> Tensor:
    """Pooling: each token in proportion to what it contributes."""
    return pooled(x, lambda x: torch.mean(x, *args, **options), epsilon=0.0)


RULES: dict[str, Callable[..., Tensor]] = {
    **PASSING,
    "softmax": passing(F.softmax),
    "linear": linear,
    "matmul": lambda a, b: matrix_product(a, b, linear),
    "add": add,
    "mul": product,
    "mean": mean,
}

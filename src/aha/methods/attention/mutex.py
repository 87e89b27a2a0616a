"""MUTEX: tokens that are central in the graph of attention, scored by what the model makes of them alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from aha.core.validation import NonNegativeInt, Range
from aha.errors import SpecError
from aha.methods.base import Method, layers_from, method
from aha.methods.cost import Cost
from aha.models import Captures, TargetModel


@method(
    "mutex",
    family="attention",
    needs={"attention", "tokens"},
    reads=Captures(attention=True),
    citation="Marchetti et al., Neural Comput. Appl. 2025",
)
@dataclass(frozen=True)
class Mutex(Method):
    """`sum over masks of score * mask / number of masks`, at each patch, for 54 masks of central tokens.

    Heads are fused by minimum, maximum and sum; in- and out-degrees of each patch are followed through the layers; nine
    statistics of each such series rank the patches, and those from a place in the order on make a mask. A mask's score
    is the class's when the model is given these tokens alone. Patches in no mask get zero.

    Reads: the attention of every block, and outputs of some of the tokens.
    Cost: one forward pass, and at most 54 with some of the tokens.
    Example: `mutex(token_ratio=0.7)`.

    Attributes:
        min_cut: attention below this share of a layer's largest counts as zero.
        token_ratio: where in ascending order a mask begins: with N patches at place `ceil(N token_ratio)`, counted
            from 1, as in the authors' code. So it is the share that a mask leaves out; less where ranks are equal.
        start_layer: first block used.
    """

    min_cut: Annotated[float, Range(0, 1, below=True)] = 0.01
    token_ratio: Annotated[float, Range(0, 1, above=True)] = 0.5
    start_layer: NonNegativeInt = 0

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        return Cost(64)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        trace = model.trace(images, attention=True)
        layers = layers_from(self, trace.attention, self.start_layer)
        if len(layers) < 2:
            raise SpecError("mutex: its statistics need at least two blocks; choose an earlier start_layer")
        layout = trace.structure.blocks[0].layout
        patches = torch.stack([matrix.detach()[..., layout.prefix :, layout.prefix :] for matrix in layers], dim=1)
        series = degrees(patches.double(), self.min_cut)  # (B, 6, L, N)
        kept = best_nodes(statistics(series), self.token_ratio).flatten(1, 2)  # (B, 54, N)
        repeats = kept.shape[1]
        outputs = model.outputs_of_kept_tokens(images.repeat_interleave(repeats, dim=0), kept.flatten(0, 1))
        scores = model.score(outputs, classes.repeat_interleave(repeats)).view(len(images), repeats)
        masks = kept.to(scores.dtype)
        values = torch.einsum("bm,bmn->bn", scores, masks) / masks.sum(dim=1).clamp(min=1)
        return values.view(len(images), *layout.grid)  # (B, h, w)


def degrees(attention: Tensor, min_cut: float) -> Tensor:
    """In- and out-degrees (B, 6, L, N) in the graph of attention (B, L, heads, N, N), heads fused in three ways."""
    series = []
    for fused in (attention.amin(dim=2), attention.amax(dim=2), attention.sum(dim=2)):  # (B, L, N, N)
        cut = fused * (fused >= min_cut * fused.amax(dim=(-2, -1), keepdim=True))
        series += [cut.sum(dim=-2), cut.sum(dim=-1)]
    return torch.stack(series, dim=1)


def statistics(series: Tensor) -> Tensor:
    """Nine statistics (..., 9, N) of each node's series (..., L, N).

    Rounded far above the noise of single precision: several are the same for many nodes, and noise must not rank these.
    """
    total = series.sum(dim=-2)
    shares = series / total.unsqueeze(-2).clamp(min=torch.finfo(series.dtype).tiny)
    centred = series - series.mean(dim=-2, keepdim=True)
    variance = centred.square().mean(dim=-2)
    flat = variance.sqrt() <= 1e-6 * total  # a constant series has no shape
    safe = variance.masked_fill(flat, 1.0)
    shapes = [
        torch.special.entr(shares).sum(dim=-2),
        (centred.pow(3).mean(dim=-2) / safe.pow(1.5)).masked_fill(flat, 0.0),  # skewness
        (centred.pow(4).mean(dim=-2) / safe.square() - 3).masked_fill(flat, 0.0),  # excess kurtosis
    ]
    spread = series.std(dim=-2)
    sizes = [
        series.amax(dim=-2),
        series.amin(dim=-2),
        total,
        spread,
        total / (spread + 1e-8),
        series.median(dim=-2).values,  # the lower of two middle values, as in the authors' code
    ]
    largest = [size.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(series.dtype).tiny) for size in sizes]
    relative = [size / most for size, most in zip(sizes, largest, strict=True)]
    return torch.stack(shapes + relative, dim=-2).round(decimals=5)


def best_nodes(values: Tensor, ratio: float) -> Tensor:
    """Which nodes (..., N) have at least the value at place `ceil(N ratio)` in ascending order."""
    place = math.ceil(values.shape[-1] * ratio)  # from 1
    return values >= values.kthvalue(place, dim=-1, keepdim=True).values

"""Attention rollout: attention multiplied through the layers, the residual connection counted as half."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from aha.core.validation import NonNegativeInt, Range
from aha.methods.base import Method, layers_from, method
from aha.models import Captures, TargetModel


@method(
    "rollout",
    family="attention",
    needs={"attention"},
    reads=Captures(attention=True),
    citation="Abnar & Zuidema, ACL 2020",
)
@dataclass(frozen=True)
class Rollout(Method):
    """`R = B^L ... B^s`, `B^l` being the head mean of `A^l` plus the identity, rows normalised; class-agnostic.

    Reads: the attention of every block.
    Cost: one forward pass.
    Example: `rollout(discard_ratio=0.9)`.

    Attributes:
        start_layer: first block used; 0 is the paper's, 1 that of Chefer et al.'s scripts.
        discard_ratio: share of the smallest entries of each fused matrix set to zero, the class column kept
            (0.9 in the widely copied vit-explain code, 0 in the paper).
    """

    start_layer: NonNegativeInt = 0
    discard_ratio: Annotated[float, Range(0, 1, below=True)] = 0.0

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        trace = model.trace(images, attention=True)
        layers = layers_from(self, trace.attention, self.start_layer)  # each (B, heads, T, T)
        kept = min(1, trace.structure.blocks[0].layout.prefix)  # the class token, where there is one
        means = (matrix.detach().mean(dim=1) for matrix in layers)  # each (B, T, T)
        fused = [discard_smallest(mean, self.discard_ratio, kept) for mean in means]
        return trace.to_grid(trace.read(roll_out(fused)))  # (B, h, w)


def roll_out(layers: Sequence[Tensor], *, normalised: bool = True) -> Tensor:
    """Product of the matrices (B, T, T), each with the identity added and its rows normalised, the last leftmost."""
    result = torch.eye(layers[0].shape[-1], device=layers[0].device, dtype=layers[0].dtype).expand_as(layers[0])
    for layer in layers:
        step = layer + torch.eye(layer.shape[-1], device=layer.device, dtype=layer.dtype)
        result = (step / step.sum(dim=-1, keepdim=True) if normalised else step) @ result
    return result


def discard_smallest(matrix: Tensor, ratio: float, kept: int = 1) -> Tensor:
    """The matrix (B, T, T) with its smallest entries zeroed, except those towards the first `kept` tokens."""
    count = int(matrix[0].numel() * ratio)
    if count == 0:
        return matrix
    smallest = matrix.flatten(1).topk(count, largest=False).indices  # (B, count)
    smallest = smallest.masked_fill(smallest % matrix.shape[-1] < kept, -1)
    keep = torch.ones(matrix.shape[0], matrix[0].numel() + 1, device=matrix.device, dtype=matrix.dtype)
    keep.scatter_(1, smallest % keep.shape[1], 0)  # index -1 falls on the spare last column
    return matrix * keep[:, :-1].view_as(matrix)

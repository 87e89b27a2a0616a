"""From an order of patches and the model's responses along it to values that keep the order (MDA, section 3.2-3.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.methods.machinery.concave import concave_increments

TIE_BREAK = 1e-6


@dataclass(frozen=True)
class Order:
    """What the search found about one image.

    Attributes:
        places: patches (N,), most important first.
        inserted: responses (N + 1,) to the first 0, ..., N of them on the insertion reference.
        deleted: responses (N + 1,) without the first 0, ..., N of them on the deletion reference.
        grid: rows and columns of patches.
    """

    places: Tensor
    inserted: Tensor
    deleted: Tensor
    grid: tuple[int, int]

    def values(self, gamma: float = 0.0, kappa: float = 0.005) -> Tensor:
        """Patch values (h, w), strictly falling along the order."""
        rising = (normalised(self.inserted) + 1 - normalised(self.deleted.flip(0)).flip(0)) / 2  # eq. 7
        magnitudes = densify(order_weighted(concave_increments(rising)), gamma, kappa)  # (N,)
        return torch.zeros_like(magnitudes).scatter_(0, self.places, magnitudes).view(self.grid)


def normalised(responses: Tensor) -> Tensor:
    """A rising curve (N + 1,) from 0 to 1 by its ends, clipped and made monotone, as the MAS metric reads it."""
    responses = responses.double()
    span = (responses[-1] - responses[0]).abs().clamp(min=1e-12)
    return ((responses - responses[0]) / span).clamp(0, 1).cummax(dim=0).values


def order_weighted(increments: Tensor) -> Tensor:
    """`D_i + D_i (N - i) / N` (eq. 10), with a trace of the order where the increments (N,) are zero."""
    count = len(increments)
    left = torch.arange(count - 1, -1, -1, dtype=increments.dtype) / count  # (N - i) / N
    return increments * (1 + left) + TIE_BREAK * (left + 1 / count)


def densify(sparse: Tensor, gamma: float, kappa: float) -> Tensor:
    """Between the sparse values (N,) and their order, from `kappa` on (eq. 11-12)."""
    left = torch.arange(len(sparse) - 1, -1, -1, dtype=sparse.dtype) / len(sparse)
    return (1 - gamma) * sparse + gamma * torch.where(sparse >= kappa, left, sparse)

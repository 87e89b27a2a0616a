"""From an order of patches and the model's responses along it to values that keep the order (MDA, section 3.2-3.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.methods.patch_order.concave import concave_increments
from aha.perturb.perturbation import response_curve

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
        inserted = response_curve(self.inserted.double(), rising=True)
        deleted = response_curve(self.deleted.double(), rising=False)
        rising = (inserted + 1 - deleted) / 2  # eq. 7
        magnitudes = densify(order_weighted(concave_increments(rising)), gamma, kappa)  # (N,)
        return torch.zeros_like(magnitudes).scatter_(0, self.places, magnitudes).view(self.grid)


def order_weighted(increments: Tensor) -> Tensor:
    """`D_i + D_i (N - i) / N` (eq. 10), with a trace of the order where the increments (N,) are zero."""
    count = len(increments)
    left = torch.arange(count - 1, -1, -1, dtype=increments.dtype) / count  # (N - i) / N
    return increments * (1 + left) + TIE_BREAK * (left + 1 / count)


def densify(sparse: Tensor, gamma: float, kappa: float) -> Tensor:
    """Between the sparse values (N,) and their order, from `kappa` on (eq. 11-12)."""
    left = torch.arange(len(sparse) - 1, -1, -1, dtype=sparse.dtype) / len(sparse)
    return (1 - gamma) * sparse + gamma * torch.where(sparse >= kappa, left, sparse)

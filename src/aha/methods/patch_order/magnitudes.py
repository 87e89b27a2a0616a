"""From an order of patches and the model's responses along it to values that keep the order (MDA, section 3.2-3.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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


def concave_increments(curve: Tensor) -> Tensor:
    """Increments (N,) of the concave rising curve from 0 to 1 that is nearest to `curve` (N + 1,) (eq. 9), exactly.

    Such a curve is a mixture of the ramps `min(i / j, 1)`, j = 1 ... N. Weights that need not sum to one, but pay for
    it, `argmin over w >= 0 of |sum over j of w_j (ramp_j - curve)|^2 + (sum of w - 1)^2`, are those of the nearest
    mixture up to their sum: at any sum, the first term asks for that mixture.
    """
    from scipy.optimize import nnls

    count = len(curve) - 1
    steps = torch.arange(1, count + 1, dtype=torch.float64)
    ramps = (torch.arange(count + 1, dtype=torch.float64)[:, None] / steps).clamp(max=1)  # (N + 1, N)
    system = torch.cat([ramps - curve.double().cpu()[:, None], torch.ones(1, count, dtype=torch.float64)])
    goal = torch.zeros(count + 2, dtype=torch.float64)
    goal[-1] = 1
    weights = torch.from_numpy(nnls(system.numpy(), goal.numpy(), maxiter=50 * count)[0])  # (N,)
    return (weights / weights.sum() / steps).flip(0).cumsum(dim=0).flip(0)  # ramp j adds 1 / j to its increments


def order_weighted(increments: Tensor) -> Tensor:
    """`D_i + D_i (N - i) / N` (eq. 10), with a trace of the order where the increments (N,) are zero."""
    count = len(increments)
    left = torch.arange(count - 1, -1, -1, dtype=increments.dtype) / count  # (N - i) / N
    return increments * (1 + left) + TIE_BREAK * (left + 1 / count)


def densify(sparse: Tensor, gamma: float, kappa: float) -> Tensor:
    """Between the sparse values (N,) and their order, from `kappa` on (eq. 11-12)."""
    left = torch.arange(len(sparse) - 1, -1, -1, dtype=sparse.dtype) / len(sparse)
    return (1 - gamma) * sparse + gamma * torch.where(sparse >= kappa, left, sparse)

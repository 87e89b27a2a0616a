"""The nearest concave curve, exactly and without a solver for quadratic programmes."""

from __future__ import annotations

import torch
from torch import Tensor


def concave_increments(curve: Tensor) -> Tensor:
    """Increments (N,) of the concave rising curve from 0 to 1 that is nearest to `curve` (N + 1,) (eq. 9), exactly.

    Such a curve is a mixture of the ramps `min(i / j, 1)`, j = 1 ... N, so that the quadratic programme is the search
    for the nearest point of their convex hull, which Wolfe's algorithm finds in finitely many steps.
    """
    count = len(curve) - 1
    steps = torch.arange(1, count + 1, dtype=torch.float64)
    ramps = (torch.arange(count + 1, dtype=torch.float64)[:, None] / steps).clamp(max=1)  # (N + 1, N)
    weights = nearest_in_hull(ramps - curve.double()[:, None])  # (N,)
    return (weights / steps).flip(0).cumsum(dim=0).flip(0)  # ramp j adds 1 / j to each of the first j increments


def nearest_in_hull(points: Tensor) -> Tensor:
    """Convex weights (M,) of the point nearest to the origin in the hull of `points` (D, M) (Wolfe 1976)."""
    scale = float(points.square().sum(dim=0).max())
    corners = [int(points.square().sum(dim=0).argmin())]
    weights = torch.ones(1, dtype=points.dtype)
    for _ in range(50 * points.shape[1]):  # far more than it ever takes
        nearest = points[:, corners] @ weights  # (D,)
        ahead = points.T @ nearest
        best = int(ahead.argmin())
        if ahead[best] >= nearest.square().sum() - 1e-14 * scale or best in corners:
            break
        corners.append(best)
        weights = torch.cat([weights, weights.new_zeros(1)])
        while True:
            affine = _affine_weights(points[:, corners])
            if (affine > 1e-15).all():
                weights = affine
                break
            outward = affine <= 1e-15
            step = (weights / (weights - affine).clamp(min=1e-300))[outward].min().clamp(max=1)
            weights = (1 - step) * weights + step * affine
            keep = (weights > 1e-15) & ~(outward & (weights <= weights[outward].min()))
            corners = [corner for corner, kept in zip(corners, keep.tolist(), strict=True) if kept]
            weights = weights[keep] / weights[keep].sum()
    return torch.zeros(points.shape[1], dtype=points.dtype).scatter_(0, torch.tensor(corners), weights)


def _affine_weights(points: Tensor) -> Tensor:
    """Weights, of any sign and summing to one, of the point nearest to the origin on the plane through `points`."""
    if points.shape[1] == 1:
        return torch.ones(1, dtype=points.dtype)
    rest = torch.linalg.lstsq(points[:, 1:] - points[:, :1], -points[:, :1]).solution[:, 0]
    return torch.cat([1 - rest.sum()[None], rest])

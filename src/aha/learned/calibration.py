"""Values that mean something: a monotone rescaling after which a map's mass follows the model's response.

Training rewards the order of pixels and nothing else, so that the values themselves say little. How fast the model's
score rises as the first pixels of the order are shown, and falls as they are taken away, is measured once, on
validation images: the mean response over the share of pixels. Its slope is how much a pixel of that rank matters. A map
is rescaled so that its values are these slopes; the order, and so Deletion and Insertion, stay what they were.

Shapes: maps (B, H, W); curves (N, S + 1) over equal steps; response (J,) mass of each equal share of the pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

_FLOOR = 0.02  # part of the mass that is spread evenly: a rescaling must not make unequal pixels equal
_SPARSE = 4  # quantiles are those of every fourth row and column


def mean_response(deletion: Tensor, insertion: Tensor) -> list[float]:
    """Decreasing shares of the mass (S,), from curves (N, S + 1): most important pixels first, sum 1.

    The mean of both curves, each from 0 to 1, and the nearest concave curve to it.
    """
    from scipy.optimize import isotonic_regression

    rising = torch.cat([_unit(-deletion), _unit(insertion)]).double().cpu()
    steps = rising.mean(dim=0).diff()  # (S,)
    falling = torch.from_numpy(isotonic_regression(steps.numpy(), increasing=False).x.copy()).clamp(min=0)
    shares = (1 - _FLOOR) * falling / falling.sum() + _FLOOR * _ramp(len(steps))
    return [round(value, 6) for value in shares.tolist()]


def _unit(curves: Tensor) -> Tensor:
    """Curves (N, S + 1) from 0 to 1, never falling; a flat one becomes a straight line."""
    highest = curves.cummax(dim=-1).values
    low, high = highest[:, :1], highest[:, -1:]
    line = torch.linspace(0, 1, curves.shape[-1]).to(curves)
    return torch.where(high - low > 1e-4, (highest - low) / (high - low).clamp(min=1e-4), line)


def _ramp(count: int) -> Tensor:
    """Strictly decreasing shares (J,) that sum to 1."""
    falling = torch.arange(count, 0, -1, dtype=torch.float64)
    return falling / falling.sum()


def calibrated(maps: Tensor, response: Sequence[float]) -> Tensor:
    """Maps (B, H, W) or (B, D, H, W) of positive values, in the same order, whose mass over the ranks is `response`.

    Piecewise linear between the middles of the J shares of the pixels; beyond the first and the last, it goes on as
    steeply as before, so that equal values stay equal and others do not become so.
    """
    heights = len(response) * torch.tensor(response, dtype=maps.dtype, device=maps.device).flip(0)  # rising, (J,)
    places = (torch.arange(len(response), dtype=maps.dtype, device=maps.device) + 0.5) / len(response)
    knots = torch.quantile(maps[..., ::_SPARSE, ::_SPARSE].flatten(1), places, dim=1).T  # (B, J)
    gaps = knots.diff(dim=1)  # (B, J - 1)
    slopes = heights.diff() / gaps.clamp(min=1e-12)
    above = maps.flatten(1) - knots[:, :1]
    values = heights[0] * torch.exp(slopes[:, :1] * above.clamp(max=0) / heights[0])  # stays positive
    for index in range(len(response) - 1):
        inside = (maps.flatten(1) - knots[:, index, None]).clamp(min=0)
        if index < len(response) - 2:
            inside = inside.minimum(gaps[:, index, None])
        values = values + slopes[:, index, None] * inside
    return values.view_as(maps)

"""Removed pixels as weighted means of their neighbours, all at once: ROAD's linear imputation.

Each removed pixel is the mean of the eight around it, direct neighbours with weight 1/6 and diagonal ones with 1/12;
those beyond the border do not count. Where neighbours are removed too, this is a linear system, symmetric and positive
as soon as one pixel is left. It is solved, for many pictures side by side, by conjugate gradients. Alone they take
hundreds of steps across large holes; with a cycle over coarser and coarser grids before each they take about ten.

Shapes: pixels (R, C, H, W); keep (R, H, W), True where a pixel is known; holes (R, 1, H, W), 1 where it is not.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

_TOLERANCE = 1e-5  # of the residual: values in [0, 1] are right to about 1e-4, far below the published noise of 0.01
_MOST_STEPS = 200
_DAMPING = 0.8
_SMALLEST = 8  # pixels per side of the coarsest grid


class Grid(NamedTuple):
    """One resolution: what is unknown (R, 1, h, w), and the sum of the weights around each pixel (1, 1, h, w)."""

    holes: Tensor
    degrees: Tensor

    def apply(self, values: Tensor) -> Tensor:
        """The system's matrix times values that are zero outside the holes."""
        return self.holes * (self.degrees * values - around(values))

    def smooth(self, values: Tensor, right: Tensor) -> Tensor:
        """One step of the damped Jacobi iteration."""
        return values + _DAMPING / self.degrees * (self.holes * right - self.apply(values))


def imputed(pixels: Tensor, keep: Tensor) -> Tensor:
    """Pixels whose removed ones follow from the others; every row needs at least one that is left."""
    together = 1 if pixels.device.type == "cpu" else len(pixels)  # one picture fits into a CPU's cache, several do not
    parts = zip(torch.split(pixels, together), torch.split(keep, together), strict=True)
    return torch.cat([_imputed(*part) for part in parts])


def _imputed(pixels: Tensor, keep: Tensor) -> Tensor:
    height, width = pixels.shape[-2:]
    known = keep[:, None].to(pixels)  # (R, 1, H, W)
    grids = _grids(1 - known)
    finest = grids[0]
    extra = [0, finest.holes.shape[-1] - width, 0, finest.holes.shape[-2] - height]
    right = finest.holes * around(F.pad(pixels * known, extra))
    found = _solved(grids, right)[..., :height, :width]
    return torch.where(keep[:, None], pixels, found)


def around(values: Tensor) -> Tensor:
    """The weighted sum of the eight neighbours, zero beyond the border: a 1-2-1 filter each way without its centre."""
    padded = F.pad(values, (1, 1, 1, 1))
    rows = padded[..., :-2, :] + 2 * padded[..., 1:-1, :] + padded[..., 2:, :]
    return (rows[..., :-2] + 2 * rows[..., 1:-1] + rows[..., 2:]) / 12 - values / 3


def _grids(holes: Tensor) -> list[Grid]:
    """From fine to coarse, each half as wide; padded on the right and below by what counts as known."""
    height, width = holes.shape[-2:]
    halvings = 0
    while min(height, width) >> (halvings + 1) >= _SMALLEST:
        halvings += 1
    extra = [0, -width % 2**halvings, 0, -height % 2**halvings]
    inside = torch.ones_like(holes[:1])
    grids = [Grid(F.pad(holes, extra), F.pad(around(inside).clamp(min=1 / 12), extra, value=1.0))]
    inside = F.pad(inside, extra)
    for _ in range(halvings):
        inside = F.max_pool2d(inside, 2)
        # Unknown is what is wholly unknown: then corrections vanish at known pixels on every grid.
        grids.append(Grid(-F.max_pool2d(-grids[-1].holes, 2), around(inside).clamp(min=1 / 12)))
    return grids


def _solved(grids: list[Grid], right: Tensor) -> Tensor:
    """Preconditioned conjugate gradients; each picture and channel ends by itself, whatever its neighbours need."""
    values, residual = torch.zeros_like(right), right
    guess = _cycle(grids, residual)
    direction, product = guess, _dot(residual, guess)
    enough = _TOLERANCE**2 * _dot(right, right)
    for _ in range(_MOST_STEPS):
        is_open = _dot(residual, residual) > enough  # (R, C, 1, 1)
        if not bool(is_open.any()):
            break
        image = grids[0].apply(direction)
        length = torch.where(is_open, product / _dot(direction, image).clamp(min=1e-30), 0)
        values, residual = values + length * direction, residual - length * image
        guess = _cycle(grids, residual)
        following = _dot(residual, guess)
        direction = guess + torch.where(is_open, following / product.clamp(min=1e-30), 0) * direction
        product = following
    return values


def _cycle(grids: list[Grid], right: Tensor) -> Tensor:
    """An approximate solution: smoothed, corrected on the coarser grids, smoothed again; symmetric and linear."""
    grid, *coarser = grids
    values = grid.smooth(torch.zeros_like(right), right)
    if not coarser:
        for _ in range(_SMALLEST):
            values = grid.smooth(values, right)
        return values
    rest = grid.holes * right - grid.apply(values)
    values = values + grid.holes * _finer(_cycle(coarser, _coarser(rest)))
    return grid.smooth(values, right)


def _finer(values: Tensor) -> Tensor:
    """Twice as large, bilinear, zero beyond the border."""
    for axis in (-2, -1):
        size = values.shape[axis]
        zero = torch.zeros_like(values.narrow(axis, 0, 1))
        before = torch.cat([zero, values.narrow(axis, 0, size - 1)], dim=axis)
        after = torch.cat([values.narrow(axis, 1, size - 1), zero], dim=axis)
        pairs = torch.stack([0.75 * values + 0.25 * before, 0.75 * values + 0.25 * after], dim=axis + values.dim() + 1)
        values = pairs.flatten(axis + values.dim(), axis + values.dim() + 1)
    return values


def _coarser(values: Tensor) -> Tensor:
    """Half as large: the transpose of `_finer`."""
    for axis in (-2, -1):
        even, odd = values.unfold(axis, 2, 2).unbind(dim=-1)
        size = even.shape[axis]
        zero = torch.zeros_like(even.narrow(axis, 0, 1))
        after = torch.cat([even.narrow(axis, 1, size - 1), zero], dim=axis)
        before = torch.cat([zero, odd.narrow(axis, 0, size - 1)], dim=axis)
        values = 0.75 * (even + odd) + 0.25 * (before + after)
    return values


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner products (R, C, 1, 1)."""
    return (a * b).sum(dim=(2, 3), keepdim=True)

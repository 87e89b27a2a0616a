"""Region grids (paper section 3.2): pixels pooled into cells for sorting, cell masks spread back over pixels.

Sorting pixels would be too expensive and would reward high-frequency artefacts. A grid of G x G cells with a random
size and a random offset is sorted instead; border cells may be partial, so there are at most (G + 1)^2 of them.

Shapes: maps (B, H, W); cell values (B, K); cell masks (..., K); pixel masks (..., H, W).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

GRID_SIZES = (7, 112)  # smallest and largest G: cells of 32 to 2 pixels at 224


@dataclass(frozen=True)
class Regions:
    """A partition of the image: `index` (H, W) is the cell of each pixel, `sizes` (K,) the pixels of each cell."""

    index: Tensor
    sizes: Tensor

    @property
    def count(self) -> int:
        """Number of cells K."""
        return len(self.sizes)

    def pool(self, maps: Tensor) -> Tensor:
        """Mean of maps (B, H, W) over each cell: (B, K)."""
        sums = maps.new_zeros(len(maps), self.count)
        sums = sums.index_add(1, self.index.flatten(), maps.flatten(1))
        return sums / self.sizes

    def spread(self, values: Tensor) -> Tensor:
        """Cell values (..., K) at each of their pixels (..., H, W); up to the cell sizes, the adjoint of `pool`."""
        return values[..., self.index]


def grid_regions(size: tuple[int, int], cells: int, offset: tuple[float, float], like: Tensor) -> Regions:
    """A grid of `cells` along the shorter side of an image (H, W); the offset (y, x) is in cells, within [0, 1).

    No cell is smaller than a pixel: some would be empty.
    """
    side = max(1.0, min(size) / cells)
    rows, columns = (
        torch.floor(torch.arange(length, device=like.device, dtype=torch.float64) / side + shift).long()
        for length, shift in zip(size, offset, strict=True)
    )
    index = rows[:, None] * (int(columns[-1]) + 1) + columns[None, :]
    return Regions(index, torch.bincount(index.flatten()).to(like.dtype))


def random_regions(
    size: tuple[int, int],
    generator: torch.Generator,
    like: Tensor,
    sizes: tuple[int, int] = GRID_SIZES,
    spread: Literal["log", "even"] = "log",
) -> Regions:
    """A grid with a random offset and a G drawn from `sizes`: every scale as often, or every number as often."""
    drawn = float(torch.rand((), generator=generator))
    if spread == "even":
        cells = int(sizes[0] + (sizes[1] + 1 - sizes[0]) * drawn)
    else:
        first, last = math.log(sizes[0]), math.log(sizes[1] + 1)
        cells = int(math.exp(first + (last - first) * drawn))
    dy, dx = torch.rand(2, generator=generator).tolist()
    return grid_regions(size, cells, (dy, dx), like)


def stratified_counts(total: int, steps: int, generator: torch.Generator | None = None) -> Tensor:
    """S increasing counts out of 1..K-1, one from each of S equal strata: its middle, or a random place in it."""
    places = torch.full((steps,), 0.5) if generator is None else torch.rand(steps, generator=generator)
    counts = torch.round((torch.arange(steps) + places) * total / steps).long()
    return counts.clamp(1, total - 1)

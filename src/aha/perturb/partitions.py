"""How an image is divided into parts that are kept or removed as a whole: patches or superpixels.

A partition is a spec like a method: `patches(grid=14)`, `slic(n=50)`.

Shapes: image (C, H, W) model input; index (H, W), the part of each pixel, 0 .. K-1; values (..., K).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from aha.core.registry import Registry
from aha.core.spec import Spec
from aha.core.validation import NonNegativeFloat, PositiveFloat, PositiveInt
from aha.errors import MissingExtra, SpecError
from aha.models import TargetModel

PARTITIONS: Registry[type[Partition]] = Registry("partition")

P = TypeVar("P", bound="type[Partition]")


@dataclass(frozen=True)
class Partition(Spec):
    """Base of all partitions."""

    for_volumes: ClassVar[bool] = False

    @abstractmethod
    def __call__(self, model: TargetModel, image: Tensor) -> Tensor:
        """The part (H, W) of each pixel of an image (C, H, W); every part has at least one pixel."""

    @abstractmethod
    def count(self, size: tuple[int, ...]) -> int:
        """About how many parts an image of this size has, before it is seen."""

    def as_map(self, values: Tensor, index: Tensor) -> Tensor:
        """Values (..., K) of the parts as maps, at the partition's own resolution."""
        return values[..., index]


def partition(name: str) -> Callable[[P], P]:
    """Class decorator that registers a partition under its name."""

    def add(cls: P) -> P:
        cls.name = name
        PARTITIONS.register(name)(cls)
        return cls

    return add


@partition("patches")
@dataclass(frozen=True)
class Patches(Partition):
    """`grid` x `grid` cells of equal size, up to a pixel where the sides cannot be divided evenly.

    A volume is divided along its depth too, into as many cells, or as many as it has slices.
    """

    for_volumes: ClassVar[bool] = True

    grid: PositiveInt = 14

    def __call__(self, model: TargetModel, image: Tensor) -> Tensor:
        """Cells numbered row by row."""
        return patch_index(image.shape[1:], self.grid, image.device)

    def count(self, size: tuple[int, ...]) -> int:
        """All cells."""
        return prod(grid_cells(size, self.grid))

    def as_map(self, values: Tensor, index: Tensor) -> Tensor:
        """One value per cell: (..., grid, grid)."""
        return values.reshape(*values.shape[:-1], *grid_cells(index.shape, self.grid))


@partition("slic")
@dataclass(frozen=True)
class Slic(Partition):
    """About `n` superpixels of similar colour (Achanta et al., 2012), by scikit-image."""

    n: PositiveInt = 50
    compactness: PositiveFloat = 10.0
    sigma: NonNegativeFloat = 1.0

    def count(self, size: tuple[int, ...]) -> int:
        """As many as are asked for, of one pixel at least."""
        return min(self.n, size[0] * size[1])

    def __call__(self, model: TargetModel, image: Tensor) -> Tensor:
        """Superpixels of the picture; of the input stretched to [0, 1] where the normalisation is not known."""
        try:
            from skimage.segmentation import slic
        except ImportError:
            raise MissingExtra("slic", "superpixels") from None
        if model.preprocessing is not None:
            pixels = model.to_pixels(image).clamp(0, 1)
        else:
            pixels = (image - image.amin()) / (image.amax() - image.amin()).clamp(min=1e-12)
        found = slic(
            pixels.permute(1, 2, 0).double().cpu().numpy(),
            n_segments=self.n,
            compactness=self.compactness,
            sigma=self.sigma,
            start_label=0,
            convert2lab=len(pixels) == 3,
            channel_axis=-1,
        )
        # Numbered without gaps: a part that no pixel belongs to would have no influence to find.
        numbers = np.unique(found, return_inverse=True)[1].reshape(found.shape)
        return torch.from_numpy(numbers).to(image.device)


def grid_cells(size: Sequence[int], grid: int) -> tuple[int, ...]:
    """Cells along each axis: `grid` of them, but no more along a volume's depth than it has slices."""
    return (*(min(grid, side) for side in size[:-2]), grid, grid)


def patch_index(size: Sequence[int], grid: int, device: torch.device) -> Tensor:
    """The cell (H, W) of each pixel in a grid of `grid` x `grid` cells over an image of this size."""
    if grid > min(size[-2:]):
        raise SpecError(f"a grid of {grid} x {grid} patches does not fit an image of {size[-2]} x {size[-1]} pixels")
    index = torch.zeros((), dtype=torch.long, device=device)
    for cells, side in zip(grid_cells(size, grid), size, strict=True):
        index = index[..., None] * cells + torch.arange(side, device=device) * cells // side
    return index

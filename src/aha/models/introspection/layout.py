"""How a tensor lays out space: channels first, channels last, or a sequence of tokens.

Shapes: raw (B, C, h, w), (B, h, w, C) or (B, P + h*w, C); maps always (B, C, h, w). Of volumes and clips the same, with
the places (d, h, w) for (h, w).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from einops import rearrange
from torch import Tensor

MAX_PREFIX = 8  # class, distillation and register tokens; DINOv3 has 5 of them


@dataclass(frozen=True)
class Layout:
    """A spatial reading of a raw tensor; `prefix` tokens stand for no place."""

    kind: Literal["NCHW", "NHWC", "NLC"]
    grid: tuple[int, ...]
    prefix: int = 0

    def to_map(self, raw: Tensor) -> Tensor:
        """Raw tensor to map (B, C, h, w)."""
        if self.kind == "NCHW":
            return raw
        if self.kind == "NHWC":
            return rearrange(raw, "b ... c -> b c ...")
        axes, sizes = self._axes
        return rearrange(raw[:, self.prefix :], f"b ({axes}) c -> b c {axes}", **sizes)

    def to_grid(self, values: Tensor) -> Tensor:
        """A value of each token (B, T) as (B, h, w)."""
        axes, sizes = self._axes
        return rearrange(values[:, self.prefix :], f"b ({axes}) -> b {axes}", **sizes)

    @property
    def _axes(self) -> tuple[str, dict[str, int]]:
        """Names of the spatial axes, and their lengths: written out, since exporters do not follow a reshape."""
        names = "dhw"[-len(self.grid) :]
        return " ".join(names), dict(zip(names, self.grid, strict=True))

    def from_map(self, maps: Tensor, raw: Tensor) -> Tensor:
        """The raw tensor again, with its spatial part taken from `maps`; never shares memory with `maps`."""
        if self.kind == "NCHW":
            return maps.clone()
        if self.kind == "NHWC":
            return rearrange(maps, "b c ... -> b ... c").clone()
        return torch.cat([raw[:, : self.prefix], rearrange(maps, "b c ... -> b (...) c")], dim=1)


def read_layout(shape: tuple[int, ...], image: tuple[int, ...], grids: list[tuple[int, ...]]) -> Layout | None:
    """The spatial layout of a tensor of this shape for an image (H, W) or a volume (D, H, W), or None.

    Grids seen so far come first for token sequences: a convolution has usually shown the patch grid already.
    """
    if len(shape) == len(image) + 2:
        if _resembles(shape[2:], image):
            return Layout("NCHW", shape[2:])
        if _resembles(shape[1:-1], image):
            return Layout("NHWC", shape[1:-1])
    if len(shape) == 3:
        grid = token_grid(shape[1], image, grids)
        if grid is not None:
            return Layout("NLC", grid, prefix=shape[1] - prod(grid))
    return None


def token_grid(num_tokens: int, image: tuple[int, ...], grids: list[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The patch grid (h, w) behind a token sequence: one seen before, or that of square patches that tile the image."""
    for grid in reversed(grids):
        if 0 <= num_tokens - prod(grid) <= MAX_PREFIX and prod(grid) > 1:
            return grid
    if len(image) > 2:
        return None  # how deep a patch is cannot be told from their number
    for prefix in range(min(MAX_PREFIX, num_tokens - 4) + 1):
        for patch in range(1, min(image) + 1):
            h, w = image[0] // patch, image[1] // patch
            if h * w == num_tokens - prefix and (h * patch, w * patch) == image:
                return h, w
    return None


def _resembles(size: tuple[int, ...], image: tuple[int, ...]) -> bool:
    """Is this the image's shape at some coarser scale? Padding and valid convolutions may shift it by one.

    How many slices a volume has follows other strides than height and width.
    """
    if prod(size) <= 1 or any(few > many for few, many in zip(size, image, strict=True)):
        return False
    (h, w), (height, width) = size[-2:], image[-2:]
    return abs(h * width - w * height) <= (max(height, width) if height != width else 0)

"""How a tensor lays out space: channels first, channels last, or a sequence of tokens.

Shapes: raw (B, C, h, w), (B, h, w, C) or (B, P + h*w, C); maps always (B, C, h, w).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from einops import rearrange
from torch import Tensor

MAX_PREFIX = 8  # class, distillation and register tokens; DINOv3 has 5 of them


@dataclass(frozen=True)
class Layout:
    """A spatial reading of a raw tensor; `prefix` tokens stand for no place."""

    kind: Literal["NCHW", "NHWC", "NLC"]
    grid: tuple[int, int]
    prefix: int = 0

    def to_map(self, raw: Tensor) -> Tensor:
        """Raw tensor to map (B, C, h, w)."""
        if self.kind == "NCHW":
            return raw
        if self.kind == "NHWC":
            return rearrange(raw, "b h w c -> b c h w")
        h, w = self.grid
        return rearrange(raw[:, self.prefix :], "b (h w) c -> b c h w", h=h, w=w)

    def from_map(self, maps: Tensor, raw: Tensor) -> Tensor:
        """The raw tensor again, with its spatial part taken from `maps`; never shares memory with `maps`."""
        if self.kind == "NCHW":
            return maps.clone()
        if self.kind == "NHWC":
            return rearrange(maps, "b c h w -> b h w c").clone()
        return torch.cat([raw[:, : self.prefix], rearrange(maps, "b c h w -> b (h w) c")], dim=1)


def read_layout(shape: tuple[int, ...], image: tuple[int, int], grids: list[tuple[int, int]]) -> Layout | None:
    """The spatial layout of a tensor of this shape for an image (H, W), or None.

    Grids seen so far come first for token sequences: a convolution has usually shown the patch grid already.
    """
    if len(shape) == 4:
        if _resembles(shape[2:], image):
            return Layout("NCHW", (shape[2], shape[3]))
        if _resembles(shape[1:3], image):
            return Layout("NHWC", (shape[1], shape[2]))
    if len(shape) == 3:
        grid = token_grid(shape[1], image, grids)
        if grid is not None:
            return Layout("NLC", grid, prefix=shape[1] - grid[0] * grid[1])
    return None


def token_grid(num_tokens: int, image: tuple[int, int], grids: list[tuple[int, int]]) -> tuple[int, int] | None:
    """The patch grid (h, w) behind a token sequence: one seen before, or that of square patches that tile the image."""
    for h, w in reversed(grids):
        if 0 <= num_tokens - h * w <= MAX_PREFIX and h * w > 1:
            return h, w
    for prefix in range(min(MAX_PREFIX, num_tokens - 4) + 1):
        for patch in range(1, min(image) + 1):
            h, w = image[0] // patch, image[1] // patch
            if h * w == num_tokens - prefix and (h * patch, w * patch) == image:
                return h, w
    return None


def _resembles(size: tuple[int, ...], image: tuple[int, int]) -> bool:
    """Is this the image's shape at some coarser scale? Padding and valid convolutions may shift it by one."""
    (h, w), (height, width) = size, image
    if h * w <= 1 or h > height or w > width:
        return False
    return abs(h * width - w * height) <= (max(height, width) if height != width else 0)

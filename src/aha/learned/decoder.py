"""The decoder: features, class evidence, a class and the picture become a dense map (paper A.1).

    features, shallow to deep      (B, C_i, h_i, w_i)
      project to `width` channels, conditioned on the class vector, joined by the evidence of their level
      reassemble to strides 4, 8, 16, 32
    fuse from deep to shallow by residual convolutions; the picture's own detail joins at stride 4
    every level adds its correction to one map, which starts from the class evidence
    the map is enlarged from level to level along the picture's outlines
    where the target reads patches, their means are added, so that a patch is not cut in two for little

After Dense Prediction Transformers, with four differences by choice. Group normalisation replaces batch normalisation:
an image's map depends on that image alone, in training, in refinement and on any number of processes. The class also
*scales* features (the paper's concatenation only shifts them), because with the classifier's own weights as class
vectors the product carries evidence. The map starts from an explanation instead of nothing. And it grows like a
Laplacian pyramid, each level correcting the enlarged map of the level below, so that what is smooth stays smooth and
outlines come from the picture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import repeat
from typing import Annotated, Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from aha.core.validation import Range
from aha.learned.upsampling import upsampled_twice

_GUIDE = 8  # features by which places are compared in upsampling
_STEM = 16


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of the decoder.

    Attributes:
        channels: of the encoder's features, shallow to deep; empty without.
        class_dim: of a class vector, or of the facts that stand in for it.
        evidence: maps of class evidence at each level; empty without.
        image_channels: of the picture.
        width: channels of every level.
        stride: pixels per value of the finest level.
        cohesion: weight of the mean over each of the target's patches, added to the map; 0 for a target without.
        kind: "pyramid", this one; or "dpt", the paper's, which reads features and class vectors alone.
    """

    channels: tuple[Annotated[int, Range(1, 2**16)], ...]
    class_dim: Annotated[int, Range(1, 2**16)]
    evidence: tuple[Annotated[int, Range(0, 2**12)], ...] = ()
    image_channels: Annotated[int, Range(1, 64)] = 3
    width: Annotated[int, Range(1, 2**13)] = 32
    stride: Annotated[int, Range(1, 2**10)] = 4
    cohesion: Annotated[float, Range(0, 1e3)] = 0.0
    kind: Literal["pyramid", "dpt"] = "pyramid"

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return len(self.channels or self.evidence)


class Given(NamedTuple):
    """What a map is drawn from.

    Attributes:
        features: of the encoder, shallow to deep, each (B, C_i, h_i, w_i).
        vectors: what stands for the class (B, D), or says how evidence is to be read.
        evidence: of each level (B, E_i, h_i, w_i); empty if the decoder uses none.
        start: the map (B, h, w) that is corrected.
        image: the target's input (B, C, H, W).
    """

    features: list[Tensor]
    vectors: Tensor
    evidence: list[Tensor]
    start: Tensor
    image: Tensor


class ResidualConv(nn.Module):
    """x + conv(gelu(conv(gelu(x)))), as in DPT's fusion blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.second.weight)  # starts as the identity
        nn.init.zeros_(self.second.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C, h, w)."""
        change: Tensor = self.second(F.gelu(self.first(F.gelu(x))))
        return x + change


class Level(nn.Module):
    """Features of one level, projected and joined by evidence, conditioned on the class or on facts c.

    conv(GELU(scale(c) * W f + shift(c) + V e)), or without features conv(GELU(scale(c) * V e + shift(c)))
    """

    def __init__(self, channels: int, class_dim: int, evidence: int, width: int) -> None:
        super().__init__()
        if channels:
            self.norm = nn.GroupNorm(1, channels)
            self.project = nn.Conv2d(channels, width, 1)
        self.condition = nn.Linear(class_dim, 2 * width)
        self.read = nn.Conv2d(evidence, width, 3, padding=1) if evidence else None
        self.smooth = nn.Conv2d(width, width, 3, padding=1)

    def forward(
        self, features: Tensor | None, vectors: Tensor, evidence: Tensor | None, size: tuple[int, int]
    ) -> Tensor:
        """(B, C, h, w), (B, D) and (B, E, h, w) -> (B, width, *size)."""
        scale, shift = self.condition(vectors)[:, :, None, None].chunk(2, dim=1)  # (B, width, 1, 1)
        seen = None if self.read is None else self.read(evidence)
        if features is None:
            x = (1 + scale) * seen + shift
        else:
            x = (1 + scale) * self.project(self.norm(features.contiguous())) + shift
            x = x if seen is None else x + resized(seen, (int(x.shape[-2]), int(x.shape[-1])))
        level: Tensor = self.smooth(resized(F.gelu(x), size))
        return level


class Stem(nn.Module):
    """The picture's own detail: features at stride 2 and 4."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.to_half = nn.Conv2d(channels, _STEM, 3, stride=2, padding=1)
        self.to_quarter = nn.Conv2d(_STEM, width, 3, stride=2, padding=1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) -> (B, 16, H/2, W/2) and (B, width, H/4, W/4)."""
        half = F.gelu(self.to_half(image))
        return half, self.to_quarter(half)


class Decoder(nn.Module):
    """Features, class and picture to maps."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        channels, evidence = (sizes or (0,) * config.levels for sizes in (config.channels, config.evidence))
        self.levels = nn.ModuleList(
            Level(*sizes, width) for sizes in zip(channels, repeat(config.class_dim), evidence, strict=False)
        )
        self.fusions = nn.ModuleList(
            nn.Sequential(ResidualConv(width), nn.GroupNorm(min(8, width), width)) for _ in range(config.levels)
        )
        self.heads = nn.ModuleList(Head(width) for _ in range(config.levels))
        self.stem = Stem(config.image_channels, width)
        self.guide = nn.Conv2d(config.image_channels + _STEM, _GUIDE, 1, bias=False)
        with torch.no_grad():  # starts from colours alone, as joint bilateral upsampling does
            self.guide.weight.mul_(0.1)
            self.guide.weight[: config.image_channels, : config.image_channels] += (
                1.5 * torch.eye(config.image_channels)[:, :, None, None]
            )
        # Negative where evidence points the other way: patch tokens of some transformers do.
        self.evidence_gain = nn.Parameter(torch.ones(()))

    def forward(self, given: Given, size: tuple[int, int], slices: int = 1) -> Tensor:
        """Maps (B, H, W) of the given size; each so many images in turn are slices of one volume, on one scale."""
        half, quarter = self.stem(given.image)
        guides = self._guides(given.image, half)
        strides = [max(self.config.stride, 4 * 2**index) for index in range(self.config.levels)]
        entry = _entry(given.start, size, strides)
        drawn, fused, reached = torch.zeros_like(guides[2][:, :1]), None, 2
        for index in reversed(range(len(strides))):  # deep to shallow
            grid = at_stride(size, strides[index])
            evidence = given.evidence[index] if given.evidence else None
            features = given.features[index] if given.features else None
            level = self.levels[index](features, given.vectors, evidence, grid)
            if index == 0:
                level = level + resized(quarter, grid)
            level = level if fused is None else level + resized(fused, grid)
            drawn = resized(drawn, grid) if fused is None else enlarged(drawn, reached, strides[index], guides)
            fused, reached = self._fused(index, level, slices), strides[index]
            drawn = drawn + self.heads[index](fused)
            if index == entry:
                drawn = drawn + self.evidence_gain * resized(given.start[:, None], grid)
        drawn = resized(enlarged(drawn, reached, 2, guides), size)
        if self.config.cohesion:
            drawn = drawn + self.config.cohesion * patch_means(drawn, (given.start.shape[-2], given.start.shape[-1]))
        return drawn[:, 0]

    def _fused(self, index: int, level: Tensor, slices: int) -> Tensor:
        """The fusion of a level (B, width, h, w), normalised over all slices of a volume: they keep their ranks."""
        fusion: Any = self.fusions[index]
        if slices == 1:
            fused: Tensor = fusion(level)
            return fused
        whole = rearrange(fusion[0](level), "(b d) c h w -> b c d h w", d=slices)
        normalised: Tensor = rearrange(fusion[1](whole), "b c d h w -> (b d) c h w")
        return normalised

    def _guides(self, image: Tensor, half: Tensor) -> dict[int, Tensor]:
        """By stride 2, 4, ..., 32: how places look (B, D, h, w)."""
        looks = self.guide(torch.cat([F.avg_pool2d(image, 2, ceil_mode=True), half], dim=1))
        guides = {2: looks}
        for stride in (4, 8, 16, 32):
            guides[stride] = F.avg_pool2d(guides[stride // 2], 2, ceil_mode=True)
        return guides


class Head(nn.Module):
    """A level's correction of the map: (B, width, h, w) -> (B, 1, h, w)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(width, width // 2, 3, padding=1)
        self.draw = nn.Conv2d(width // 2, 1, 1, bias=False)  # only the order of a map counts: a shift changes nothing
        nn.init.normal_(self.draw.weight, std=1e-3)

    def forward(self, fused: Tensor) -> Tensor:
        """(B, width, h, w) -> (B, 1, h, w)."""
        correction: Tensor = self.draw(F.gelu(self.mix(F.gelu(fused))))
        return correction


def enlarged(drawn: Tensor, reached: int, stride: int, guides: dict[int, Tensor]) -> Tensor:
    """The map (B, 1, h, w) of one stride at a finer one, in steps of two along the guides."""
    while reached > stride:
        drawn = upsampled_twice(drawn, guides[reached], guides[reached // 2])
        reached //= 2
    return drawn


def patch_means(drawn: Tensor, grid: tuple[int, int]) -> Tensor:
    """The map (B, 1, H, W) with every pixel replaced by the mean of its patch, of a grid of patches from the corner on.

    A transformer reads whole patches: a patch that is half there is worth less than half. So pixels of one patch belong
    near each other in the order.
    """
    height, width = int(drawn.shape[-2]), int(drawn.shape[-1])
    patch = (math.ceil(height / grid[0]), math.ceil(width / grid[1]))
    means = F.avg_pool2d(drawn, patch, ceil_mode=True)
    whole = F.interpolate(means, scale_factor=(float(patch[0]), float(patch[1])), mode="nearest")
    return whole[..., :height, :width]


def at_stride(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """The grid of a level."""
    return math.ceil(size[0] / stride), math.ceil(size[1] / stride)


def resized(values: Tensor, size: tuple[int, int]) -> Tensor:
    """(B, C, h, w) -> (B, C, *size), bilinear; as it is where the size fits."""
    if tuple(values.shape[-2:]) == size:
        return values
    return F.interpolate(values, size=size, mode="bilinear", align_corners=False)


def _entry(start: Tensor, size: tuple[int, int], strides: list[int]) -> int:
    """The deepest level whose grid is as fine as the map that learning starts from."""
    fine = [i for i, stride in enumerate(strides) if at_stride(size, stride)[0] >= start.shape[-2]]
    return max(fine, default=0)


def unit_scaled(vectors: Tensor) -> Tensor:
    """Class vectors (..., D) with entries of unit variance: classifiers differ in scale by orders of magnitude."""
    return vectors / vectors.square().mean(dim=-1, keepdim=True).clamp(min=1e-12).sqrt()

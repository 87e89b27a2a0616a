"""The decoder: frozen features and a class become a dense map (paper A.1, after Dense Prediction Transformers).

    features, shallow to deep      (B, C_i, h_i, w_i)
      project to `width` channels, conditioned on the class vector
      reassemble to strides 4, 8, 16, 32
    fuse from deep to shallow by residual convolutions and bilinear upsampling
    refinement head: depthwise-separable and full 3x3 convolutions, then one channel
    bilinear to (H, W)

Three things differ from the paper, by choice. Group normalisation replaces batch normalisation: an image's map depends
on that image alone, in training, in refinement and on any number of processes. The class also *scales* features (the
paper's concatenation only shifts them), because with the classifier's own weights as class vectors the product is what
carries the evidence. And the map starts from the class evidence of the deepest features, so that training refines an
explanation instead of inventing it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of the decoder.

    Attributes:
        channels: of the encoder's features, shallow to deep.
        class_dim: of a class vector.
        width: channels of every level.
        stride: pixels per value of the map before it is upsampled; the finest detail the decoder can draw.
        starts_from_evidence: add the class evidence `w_c . F` of the deepest features.
    """

    channels: tuple[int, ...]
    class_dim: int
    width: int = 64
    stride: int = 16
    starts_from_evidence: bool = True


class ResidualConv(nn.Module):
    """x + conv(relu(conv(relu(x)))), as in DPT's fusion blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        nn.init.zeros_(self.second.weight)  # starts as the identity
        nn.init.zeros_(self.second.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C, h, w)."""
        change: Tensor = self.second(F.relu(self.first(F.relu(x))))
        return x + change


class Level(nn.Module):
    """One level of features, projected and conditioned on the class: GELU(scale(c) * W f + shift(c))."""

    def __init__(self, channels: int, class_dim: int, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        self.project = nn.Conv2d(channels, width, 1)
        self.condition = nn.Linear(class_dim, 2 * width)
        self.smooth = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, features: Tensor, class_vectors: Tensor, size: tuple[int, int]) -> Tensor:
        """(B, C, h, w) and (B, D) -> (B, width, *size)."""
        scale, shift = self.condition(class_vectors)[:, :, None, None].chunk(2, dim=1)  # (B, width, 1, 1)
        x = F.gelu((1 + scale) * self.project(self.norm(features)) + shift)
        x = F.interpolate(x, size=size, mode="bilinear", align_corners=False)
        level: Tensor = self.smooth(x)
        return level


class Decoder(nn.Module):
    """Features and class vectors to maps."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.levels = nn.ModuleList(Level(channels, config.class_dim, width) for channels in config.channels)
        self.fusions = nn.ModuleList(nn.Sequential(ResidualConv(width), ResidualConv(width)) for _ in config.channels)
        self.head = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
            nn.Conv2d(width, width, 1, bias=False),
            nn.GroupNorm(8, width),
            nn.GELU(),
            nn.Conv2d(width, width // 2, 3, padding=1, bias=False),
            nn.GroupNorm(8, width // 2),
            nn.GELU(),
            nn.Conv2d(width // 2, 1, 1, bias=False),  # only the order of a map counts: a shift changes nothing
        )
        # Negative where evidence points the other way: patch tokens of some transformers do.
        self.evidence_gain = nn.Parameter(torch.ones(()))

    def forward(self, features: Sequence[Tensor], class_vectors: Tensor, size: tuple[int, int]) -> Tensor:
        """Encoder features and class vectors (B, D) to maps (B, H, W).

        Vectors (B, 2, D) are one that describes the class, and one along which its evidence is measured.
        """
        class_vectors = unit_scaled(class_vectors)
        class_vectors, directions = (
            class_vectors.unbind(dim=1) if class_vectors.dim() == 3 else (class_vectors, class_vectors)
        )
        grids = [self._grid(size, len(features) - 1 - depth) for depth in range(len(features))]  # deep to shallow
        fused: Tensor | None = None
        for depth, grid in enumerate(grids):
            index = len(features) - 1 - depth
            level = self.levels[index](features[index], class_vectors, grid)
            fused = level if fused is None else level + F.interpolate(fused, grid, mode="bilinear", align_corners=False)
            fused = self.fusions[index](fused)
        assert fused is not None
        drawn = self.head(fused)  # (B, 1, h, w)
        if self.config.starts_from_evidence and features[-1].shape[1] == class_vectors.shape[1]:
            evidence = class_evidence(features[-1], directions)[:, None]
            drawn = drawn + self.evidence_gain * F.interpolate(
                evidence, drawn.shape[-2:], mode="bilinear", align_corners=False
            )
        return F.interpolate(drawn, size=size, mode="bilinear", align_corners=False)[:, 0]

    def _grid(self, size: tuple[int, int], index: int) -> tuple[int, int]:
        """Size of a level: strides 4, 8, 16, 32 from shallow to deep, none finer than the map's own stride."""
        stride = max(self.config.stride, 4 * 2**index)
        return math.ceil(size[0] / stride), math.ceil(size[1] / stride)


def unit_scaled(vectors: Tensor) -> Tensor:
    """Class vectors (..., D) with entries of unit variance: classifiers differ in scale by orders of magnitude."""
    return vectors / vectors.square().mean(dim=-1, keepdim=True).clamp(min=1e-12).sqrt()


def class_evidence(features: Tensor, class_vectors: Tensor) -> Tensor:
    """Standardised evidence (B, h, w) for the class at each place: the product of features and class weights."""
    values = torch.einsum("bchw,bc->bhw", features, class_vectors.to(features))
    centred = values - values.mean(dim=(1, 2), keepdim=True)
    return centred / centred.square().mean(dim=(1, 2), keepdim=True).clamp(min=1e-12).sqrt()

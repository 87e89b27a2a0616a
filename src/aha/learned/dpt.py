"""The decoder as the paper prints it (A.1): a Dense Prediction Transformer over features and a class embedding.

    features of four blocks, each joined by the class vector   (B, C + D, h, w)
      linear to `width` channels, GELU                         (B, width, h, w)
      reassembled at strides 4, 8, 16, 32
    fused from deep to shallow: residual convolution units, bilinear enlarging by two
      3 x 3 convolution to width / 2 channels at the highest resolution
    head: depthwise-separable convolution and a 3 x 3 convolution, each with batch normalisation and GELU, then 1 x 1

What the paper leaves open follows DPT: transposed convolutions to the finer strides, a strided one to the coarser, two
residual units for each fusion. `decoder.py` is the default, which also reads class evidence and the picture.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aha.learned.decoder import DecoderConfig, Given, at_stride, resized


class ResidualUnit(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) -> (B, C, h, w)."""
        change: Tensor = self.second(F.relu(self.first(F.relu(x))))
        return x + change


class DPTDecoder(nn.Module):
    """Features and a class vector to maps."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        width, half = config.width, max(1, config.width // 2)
        self.projections = nn.ModuleList(nn.Conv2d(c + config.class_dim, width, 1) for c in config.channels)
        self.reassemblies = nn.ModuleList(_reassembly(index, width) for index in range(config.levels))
        self.before = nn.ModuleList(ResidualUnit(width) for _ in range(config.levels))
        self.after = nn.ModuleList(ResidualUnit(width) for _ in range(config.levels))
        self.narrow = nn.Conv2d(width, half, 3, padding=1)
        self.head = nn.Sequential(
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False),
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.GELU(),
            nn.Conv2d(half, max(1, half // 2), 3, padding=1, bias=False),
            nn.BatchNorm2d(max(1, half // 2)),
            nn.GELU(),
            nn.Conv2d(max(1, half // 2), 1, 1),
        )

    def forward(self, given: Given, size: tuple[int, int]) -> Tensor:
        """Maps (B, H, W) of the given size."""
        fused: Tensor | None = None
        for index in reversed(range(self.config.levels)):  # deep to shallow
            features = given.features[index]
            vectors = given.vectors[:, :, None, None].expand(-1, -1, *features.shape[-2:])
            level = F.gelu(self.projections[index](torch.cat([features, vectors], dim=1)))
            grid = at_stride(size, 4 * 2**index)
            level = self.before[index](resized(self.reassemblies[index](level), grid))
            fused = self.after[index](level if fused is None else level + resized(fused, grid))
        assert fused is not None
        drawn: Tensor = self.head(resized(self.narrow(resized(fused, at_stride(size, 2))), size))
        return drawn[:, 0]


def _reassembly(index: int, width: int) -> nn.Module:
    """From the encoder's grid of stride 16 to strides 4, 8, 16, 32; other grids are resized to it afterwards."""
    if index < 2:
        factor = 4 // 2**index
        return nn.ConvTranspose2d(width, width, factor, stride=factor)
    return nn.Identity() if index == 2 else nn.Conv2d(width, width, 3, stride=2, padding=1)

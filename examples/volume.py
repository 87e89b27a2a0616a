"""A network for volumes and clips, and which voxels it relies on.

    python examples/volume.py [PHOTOGRAPH]

A two-dimensional classifier is inflated (Carreira & Zisserman, CVPR 2017): each kernel is repeated along the third
axis and divided by its depth, so that a clip whose frames are all the same gets the scores of the photograph.
"""

from __future__ import annotations

import sys
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aha

DEPTH = 3  # of the kernels that see more than one pixel


class Inflated(nn.Module):
    """A convolution of volumes (B, C, D, H, W); beyond the first and the last slice, the volume begins again."""

    def __init__(self, flat: nn.Conv2d) -> None:
        super().__init__()
        deep = 1 if flat.kernel_size == (1, 1) else DEPTH
        self.around = deep // 2
        self.conv = nn.Conv3d(
            flat.in_channels,
            flat.out_channels,
            (deep, *flat.kernel_size),
            (1, *flat.stride),
            (0, *flat.padding),
            bias=False,
        )
        with torch.no_grad():
            self.conv.weight.copy_(flat.weight[:, :, None].expand_as(self.conv.weight) / deep)

    def forward(self, volumes: Tensor) -> Tensor:
        """Features (B, C, D, h, w)."""
        if self.around:
            volumes = F.pad(volumes, (0, 0, 0, 0, self.around, self.around), mode="circular")
        return self.conv(volumes)


def inflated(network: nn.Module) -> nn.Module:
    """A copy of a ResNet of timm or torchvision that reads volumes (B, C, D, H, W) with the same weights."""
    made = deepcopy(network).eval()
    made.pretrained_cfg = None  # it speaks of photographs
    for parent in list(made.modules()):
        for name, part in list(parent.named_children()):
            if isinstance(part, nn.Conv2d):
                setattr(parent, name, Inflated(part))
            elif isinstance(part, nn.BatchNorm2d):
                deep = nn.BatchNorm3d(part.num_features, part.eps).eval()
                deep.load_state_dict(part.state_dict())
                setattr(parent, name, nn.Sequential(deep, *[p for p in part.children()]))
            elif isinstance(part, nn.MaxPool2d):
                sides = [(1, side, side) for side in (part.kernel_size, part.stride)]
                setattr(parent, name, nn.MaxPool3d(*sides, (0, part.padding, part.padding)))
            elif "Pool" in type(part).__name__:
                setattr(parent, name, nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten()))
    return made

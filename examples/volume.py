"""A network for volumes and clips, and which voxels it relies on.

    python examples/volume.py OUT [WEIGHTS of timm:resnet18, random ones without]

A two-dimensional classifier is inflated (Carreira & Zisserman, CVPR 2017): each kernel is repeated along the third
axis and divided by its depth, so that a clip whose frames are all the same gets the scores of the photograph.
"""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import aha
from aha.demo import photographs

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
            dtype=flat.weight.dtype,
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
                setattr(parent, name, deep)
            elif isinstance(part, nn.MaxPool2d):
                setattr(parent, name, nn.MaxPool3d((1, 3, 3), (1, 2, 2), (0, 1, 1)))
            elif "Pool" in type(part).__name__:
                setattr(parent, name, nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten()))
    return made


def clip_of(*shots: tuple[Path, int]) -> np.ndarray:
    """Frames (D, H, W, 3): each photograph, for so many of them."""
    frames = [np.asarray(Image.open(path).convert("RGB").resize((224, 224))) for path, _ in shots]
    return np.repeat(np.stack(frames), [count for _, count in shots], axis=0)


def main(out: Path, weights: Path | None = None) -> None:
    """A clip that cuts from a cup of coffee to a cat, and which voxels are evidence for the cat."""
    flat = aha.load_model("timm:resnet18", weights=weights, pretrained=weights is not None)
    stated = flat.stated_preprocessing()
    model = aha.load_model(
        inflated(flat.module),
        input_size=(3, 8, 224, 224),
        mean=stated.mean,
        std=stated.std,
        class_names=flat.class_names,
    )
    coffee, cat = photographs(["coffee.png", "chelsea.png"])
    clip = clip_of((coffee, 4), (cat, 4))
    found = aha.explain(model, clip, "grad_cam", target="Egyptian cat")
    evidence = found.maps[0].clamp(min=0).sum(dim=(1, 2))
    print(f"{found!r}: {found.caption()}")
    print(f"evidence in the frames that show the cat: {float(evidence[4:].sum() / evidence.sum()):.0%}")
    out.mkdir(parents=True, exist_ok=True)
    found.montage(count=8).save(out / "volume.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)

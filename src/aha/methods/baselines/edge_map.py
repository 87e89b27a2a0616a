"""Sobel edges: looks like an explanation and knows nothing of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.methods.base import Method, method
from aha.models import TargetModel


@method("edge_map", family="baseline", volumes=True, citation="Adebayo et al., NeurIPS 2018 (edge detector control)")
@dataclass(frozen=True)
class EdgeMap(Method):
    """Magnitude of the Sobel gradient of the channel mean.

    Formula: `sqrt((K_x * m)^2 + (K_y * m)^2)`, m being the mean of the channels and K the two Sobel kernels.
    Reads: the image.
    Cost: no pass.
    Example: `edge_map`.
    """

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        axes = images.dim() - 2
        grey = F.pad(images.mean(dim=1, keepdim=True), (1, 1) * axes, mode="replicate")  # (B, 1, H+2, W+2)
        slope, smooth = images.new_tensor([[-1.0, 0.0, 1.0], [1.0, 2.0, 1.0]])
        convolve = F.conv2d if axes == 2 else F.conv3d
        squares = [
            convolve(grey, _outer([slope if axis == own else smooth for axis in range(axes)])[None, None]).square()
            for own in range(axes)
        ]
        return torch.cat(squares, dim=1).sum(dim=1).sqrt()  # (B, H, W)


def _outer(lines: Sequence[Tensor]) -> Tensor:
    """The product of one line for each axis."""
    return reduce(lambda made, line: made[..., None] * line, lines)

"""Sobel edges: looks like an explanation and knows nothing of the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.methods.base import Method, method
from aha.models import TargetModel


@method("edge_map", family="baseline", citation="Adebayo et al., NeurIPS 2018 (edge detector control)")
@dataclass(frozen=True)
class EdgeMap(Method):
    """Magnitude of the Sobel gradient of the channel mean.

    Formula: `sqrt((K_x * m)^2 + (K_y * m)^2)`, m being the mean of the channels and K the two Sobel kernels.
    Reads: the image.
    Cost: no pass.
    Example: `edge_map`.
    """

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        grey = F.pad(images.mean(dim=1, keepdim=True), (1, 1, 1, 1), mode="replicate")  # (B, 1, H+2, W+2)
        across = images.new_tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
        kernels = torch.stack([across, across.T])[:, None]  # (2, 1, 3, 3)
        return F.conv2d(grey, kernels).square().sum(dim=1).sqrt()  # (B, H, W)

"""HiResCAM: features times gradients, place by place."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aha.methods.base import method
from aha.methods.cam.base import WeightedStage


@method("hires_cam", family="cam", needs={"features", "gradients"}, volumes=True, citation="Draelos & Carin, 2020")
@dataclass(frozen=True)
class HiResCAM(WeightedStage):
    """`ReLU(sum over channels of gradient * feature)`; equals Grad-CAM where the features are averaged and classified.

    Reads: the features of one stage and their gradients.
    Cost: one forward and one backward pass.
    Example: `hires_cam(layer=-2)`.

    Attributes:
        layer: which stage, counted from the end, or the name of a module.
    """

    def drawn(self, features: Tensor, gradients: Tensor) -> Tensor:
        return (gradients * features).sum(dim=1).relu()  # (B, h, w)

"""LayerCAM: features times their positive gradients, place by place."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aha.methods.base import method
from aha.methods.cam.base import WeightedStage


@method(
    "layer_cam", family="cam", needs={"features", "gradients"}, volumes=True, citation="Jiang et al., IEEE TIP 2021"
)
@dataclass(frozen=True)
class LayerCAM(WeightedStage):
    """`ReLU(sum over channels of ReLU(gradient) * feature)` (eq. 6-7), meant for shallow layers as well as deep ones.

    One layer's map, as it is: the paper's scaling by tanh (eq. 8) serves to add maps of several layers.

    Reads: the features of one stage and their gradients.
    Cost: one forward and one backward pass.
    Example: `layer_cam(layer=-3)`.

    Attributes:
        layer: which stage, counted from the end, or the name of a module.
    """

    def drawn(self, features: Tensor, gradients: Tensor) -> Tensor:
        return (gradients.relu() * features).sum(dim=1).relu()  # (B, h, w)

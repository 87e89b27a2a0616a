"""LayerCAM: features times their positive gradients, place by place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from aha.methods.base import Layer, Method, method
from aha.methods.cam.grad_cam import features_and_gradients, pick_stage
from aha.models import Captures, TargetModel


@method(
    "layer_cam", family="cam", needs={"features", "gradients"}, volumes=True, citation="Jiang et al., IEEE TIP 2021"
)
@dataclass(frozen=True)
class LayerCAM(Method):
    """`ReLU(sum over channels of ReLU(gradient) * feature)` (eq. 6-7), meant for shallow layers as well as deep ones.

    One layer's map, as it is: the paper's scaling by tanh (eq. 8) serves to add maps of several layers.

    Reads: the features of one stage and their gradients.
    Cost: one forward and one backward pass.
    Example: `layer_cam(layer=-3)`.

    Attributes:
        layer: which stage, counted from the end, or the name of a module.
    """

    layer: Layer = -1

    def reads(self, model: TargetModel, size: Sequence[int]) -> Captures:
        return Captures(features=(pick_stage(model, size, self.layer),))

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        features, gradients = features_and_gradients(model, images, classes, self.layer)  # (B, C, h, w) each
        return (gradients.relu() * features).sum(dim=1).relu()  # (B, h, w)

"""Grad-CAM++: features weighted by their positive gradients, places sharing one object counted once."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aha.core.axes import place_axes
from aha.methods.base import method
from aha.methods.cam.base import WeightedStage


@method(
    "grad_cam_pp",
    family="cam",
    needs={"features", "gradients"},
    volumes=True,
    citation="Chattopadhay et al., WACV 2018",
)
@dataclass(frozen=True)
class GradCAMPlusPlus(WeightedStage):
    """`sum over k of w_k F_k` with `w_k = sum over places of alpha_k ReLU(g_k)` (eq. 5, 19).

    `alpha_k = g^2 / (2 g^2 + S_k g^3)`, with `S_k` the sum of channel k, is what the paper's higher derivatives come to
    for the score `exp(z)`. All of it is derived for features that are not negative. Features with signs (GELU, SiLU,
    tokens) ask for two decisions that change nothing where the derivation holds: `S_k` is taken as at least zero, or
    the denominator could pass through zero; and the paper's last ReLU is left out, for it would leave many maps empty.
    pytorch-grad-cam decides otherwise in both.

    Reads: the features of one stage and their gradients.
    Cost: one forward and one backward pass.
    Example: `grad_cam_pp(layer=-2)`.

    Attributes:
        layer: which stage, counted from the end, or the name of a module.
    """

    def drawn(self, features: Tensor, gradients: Tensor) -> Tensor:
        return (channel_weights(features, gradients) * features).sum(dim=1)  # (B, h, w)


def channel_weights(features: Tensor, gradients: Tensor) -> Tensor:
    """Grad-CAM++'s weights (B, C, 1, 1) of features and gradients (B, C, h, w).

    Only positive gradients count, and there `alpha` is `1 / (2 + S g)`.
    """
    total = features.sum(dim=place_axes(features), keepdim=True).clamp(min=0)  # (B, C, 1, 1)
    positive = gradients.relu()
    return (positive / (2 + total * positive)).sum(dim=place_axes(features), keepdim=True)

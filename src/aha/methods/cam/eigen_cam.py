"""Eigen-CAM: features projected on their first principal direction."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from aha.methods.base import method
from aha.methods.cam.base import StageMethod, pick_stage
from aha.models import TargetModel


@method("eigen_cam", family="cam", needs={"features"}, volumes=True, citation="Muhammad & Yeasin, IJCNN 2020")
@dataclass(frozen=True)
class EigenCAM(StageMethod):
    """`F v_1`, with `v_1` the first right singular vector of the features, places as rows (eq. 2-4); class-agnostic.

    A singular vector has no sign of its own: the map is positive where the features are strong.

    Reads: the features of one stage.
    Cost: one forward pass.
    Example: `eigen_cam(centred=True)`.

    Attributes:
        layer: which stage, counted from the end, or the name of a module.
        centred: subtract each channel's mean first, as pytorch-grad-cam does; the paper does not.
    """

    centred: bool = False

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        (features,), _ = model.features(images, [pick_stage(model, images.shape[1:], self.layer)])  # (B, C, h, w)
        return first_projection(features, centred=self.centred)  # (B, h, w)


def first_projection(features: Tensor, *, centred: bool) -> Tensor:
    """Features (B, C, h, w) along their first right singular vector (B, h, w), positive where they are strong."""
    rows = rearrange(features, "b c ... -> b (...) c").double()  # double: close singular values stay apart
    used = rows - rows.mean(dim=1, keepdim=True) if centred else rows
    left, values, _ = torch.linalg.svd(used, full_matrices=False)
    projected = left[..., 0] * values[..., :1]  # (B, h*w): F v_1 = s_1 u_1
    agreement = (projected * rows.norm(dim=-1)).sum(dim=-1, keepdim=True)  # (B, 1)
    signed = torch.where(agreement < 0, -projected, projected)
    return signed.view(len(signed), *features.shape[2:]).to(features.dtype)

"""Guided Grad-CAM: fine detail from guided backpropagation, the place from Grad-CAM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from aha.core.axes import resized
from aha.methods.base import Method, method
from aha.methods.cam.grad_cam import GradCAM
from aha.methods.gradients.gradient import ChannelRule, over_channels
from aha.methods.gradients.guided_backprop import guided_gradients
from aha.models import Captures, TargetModel


@method("guided_grad_cam", family="gradient", needs={"gradients"}, volumes=True, citation="Selvaraju et al., ICCV 2017")
@dataclass(frozen=True)
class GuidedGradCAM(Method):
    """Guided backpropagation times Grad-CAM, which is enlarged bilinearly as in the paper (captum repeats values).

    Formula: `guided_backprop * grad_cam`.
    Reads: the gradients of the input, and what `cam` reads.
    Cost: one forward and one backward pass, and those of `cam`.
    Example: `guided_grad_cam(cam=layer_cam)`.

    Attributes:
        cam: the coarse map; any other method may take its place.
    """

    cam: Method = field(default_factory=GradCAM)
    channels: ChannelRule = "max_abs"

    def reads(self, model: TargetModel, size: Sequence[int]) -> Captures:
        return self.cam.reads(model, size)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        places = resized(self.cam(model, images, classes), images.shape[2:])[:, None]  # (B, 1, H, W)
        return over_channels(places * guided_gradients(model, images, classes), self.channels)  # (B, H, W)

"""Grad-CAM for convolutional networks, and its three forms for vision transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from aha.core.axes import place_axes
from aha.methods.base import Layer, Method, method, pick_block
from aha.methods.cam.base import features_and_gradients, pick_stage
from aha.models import Captures, TargetModel


@method("grad_cam", family="cam", needs={"features", "gradients"}, volumes=True, citation="Selvaraju et al., ICCV 2017")
@dataclass(frozen=True)
class GradCAM(Method):
    """Features weighted by their mean class gradient, positive part (eq. 1-2).

    Transformers have three forms in use, which are not the same method:

    - "attention": mean over heads of `A * dA` of the last block, read at the class token (the form of the MDA and
      InFlow code, and by its numbers of AHA's tables);
    - "pooled_attention": the same with one gradient weight per head, its mean over patches (Chefer et al.);
    - "features": patch tokens as a feature map, normalised as the last attention reads them (pytorch-grad-cam with a
      reshape transform).

    The default, "auto", is "attention" where the model gives attention and "features" elsewhere.

    Formula: `ReLU(sum over k of a_k F_k)`, `a_k` being the mean over places of `d score / d F_k`.
    Reads: the features of one stage, or the attention of one block, and their gradients.
    Cost: one forward and one backward pass.
    Example: `grad_cam(layer='layer3')`.

    Attributes:
        form: see above.
        layer: which stage or block, counted from the end, or the name of a module; -1 is the deepest
            that carries spatial evidence.
    """

    form: Literal["auto", "features", "attention", "pooled_attention"] = "auto"
    layer: Layer = -1

    @property
    def needs(self) -> frozenset[str]:
        """Attention for the attention forms, features otherwise."""
        return frozenset({"gradients", "attention" if "attention" in self.form else "features"})

    def reads(self, model: TargetModel, size: Sequence[int]) -> Captures:
        if self._reads_attention(model, size):
            return Captures(attention=True)
        return Captures(features=(pick_stage(model, size, self.layer),))

    def _reads_attention(self, model: TargetModel, size: Sequence[int]) -> bool:
        if self.form != "auto":
            return "attention" in self.form
        structure = model.structure(size)
        is_block = not isinstance(self.layer, str) or structure.block_named(self.layer) is not None
        return is_block and "attention" in structure.capabilities

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        if not self._reads_attention(model, images.shape[1:]):
            features, gradients = features_and_gradients(model, images, classes, self.layer)
            weights = gradients.mean(dim=place_axes(features), keepdim=True)  # (B, C, 1, 1)
            return (weights * features).sum(dim=1).relu()  # (B, h, w)
        trace = model.trace(images, attention=True)
        matrix = trace.attention[pick_block(trace, self.layer)]  # (B, heads, T, T)
        (gradient,) = trace.gradients(classes, matrix)
        rows, slopes = trace.read(matrix), trace.read(gradient)  # (B, heads, T)
        if self.form == "pooled_attention":
            prefix = trace.structure.blocks[0].layout.prefix
            slopes = slopes[..., prefix:].mean(dim=-1, keepdim=True)  # (B, heads, 1)
        return trace.to_grid((rows * slopes).mean(dim=1)).relu()  # (B, h, w)

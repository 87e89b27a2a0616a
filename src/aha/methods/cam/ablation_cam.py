"""Ablation-CAM: features weighted by what the score loses without each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aha.methods.base import method
from aha.methods.cam.base import StageMethod, pick_stage
from aha.methods.cost import CHANNELS, Cost
from aha.models import TargetModel
from aha.perturb.masking import MaskedModel, Scale, explain_each


@method("ablation_cam", family="cam", needs={"features"}, volumes=True, citation="Ramaswamy & Desai, WACV 2020")
@dataclass(frozen=True)
class AblationCAM(StageMethod):
    """Sum of the channels weighted by `(y - y_k) / |y|`, y_k being the score without channel k; positive part.

    The paper divides by y itself, which turns every sign around where the logit is negative; for positive logits the
    two are the same. A channel is ablated by setting it to zero, as in the paper. pytorch-grad-cam puts a very large
    negative number in its place where a layer has negative values, which such networks never see.

    Reads: the features of one stage.
    Cost: one forward pass, and the layers behind the stage once for each of its channels.
    Example: `ablation_cam(layer=-2)`.

    Attributes:
        layer: which stage, counted from the end, or the name of a module; -1 is the deepest
            that carries spatial evidence.
        score: the logit, as published, or the reported score.
    """

    score: Scale = "logit"

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        return Cost(CHANNELS)

    def refusal(self, model: TargetModel, size: Sequence[int] | None = None) -> str:
        is_inside = model.explained is not None and bool(model.explained.inside)
        return "it runs the last part of the network alone, and the target reads another part" if is_inside else ""

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return explain_each(self._explain, model, images, classes, scale=self.score)

    def _explain(self, masked: MaskedModel) -> Tensor:
        model, image = masked.model, masked.image
        stage = pick_stage(model, image.shape, self.layer)
        (features,), outputs = model.features(image[None], [stage])
        channels = features[0]  # (C, h, w)

        def without(part: slice) -> Tensor:
            gone = torch.arange(len(channels), device=channels.device)[part]
            maps = channels.repeat(len(gone), *[1] * channels.dim())
            maps[torch.arange(len(gone)), gone] = 0
            return masked.read(model.outputs_from_features(image, stage, maps))

        whole = masked.read(outputs)  # (1, k)
        lost = whole - torch.cat(model.chunks.run(without, len(channels)))  # (C, k)
        weights = (lost / whole.abs().clamp(min=1e-12)).to(channels)
        return (weights.T @ channels.flatten(1)).relu().view(-1, *channels.shape[1:])  # (k, h, w)

"""Score-CAM: features weighted by how well the model recognises the image through each of them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aha.core.axes import per_image, resized
from aha.methods.base import method
from aha.methods.cam.base import StageMethod, pick_stage
from aha.methods.cost import CHANNELS, Cost
from aha.models import TargetModel
from aha.perturb.masking import MaskedModel, Scale, explain_each


@method("score_cam", family="cam", needs={"features"}, volumes=True, citation="Wang et al., CVPR Workshops 2020")
@dataclass(frozen=True)
class ScoreCAM(StageMethod):
    """Sum of the channels, weighted by a softmax over the scores of the image masked by each; positive part (alg. 1).

    A mask is a channel enlarged to the image's size and scaled to [0, 1]; it multiplies the normalised
    image, so that masked pixels show the model's mean colour. The paper takes the score's increase over a baseline
    image: a constant per image, which the softmax ignores. pytorch-grad-cam enlarges with aligned corners instead.

    Formula: `ReLU(sum over k of a_k F_k)`, `a = softmax(score(x * mask_k))`.
    Reads: the features of one stage.
    Cost: one forward pass, and one for each channel.
    Example: `score_cam(layer=-2)`.

    Attributes:
        layer: which stage, counted from the end, or the name of a module; -1 is the deepest
            that carries spatial evidence.
        score: the logit, as published, or the reported score, whose softmax is nearly uniform.
    """

    score: Scale = "logit"

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        return Cost(CHANNELS)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return explain_each(self._explain, model, images, classes, scale=self.score)

    def _explain(self, masked: MaskedModel) -> Tensor:
        stage = pick_stage(masked.model, masked.image.shape, self.layer)
        (features,), _ = masked.model.features(masked.image[None], [stage])
        channels = features[0].to(masked.image)  # (C, h, w)

        def masks(part: slice) -> Tensor:
            return unit_range(resized(channels[part], masked.size))

        weights = masked.scores(masks, len(channels)).to(channels).softmax(dim=0)  # (C, k)
        return (weights.T @ channels.flatten(1)).relu().view(-1, *channels.shape[1:])  # (k, h, w)


def unit_range(maps: Tensor, floor: float = 1e-8) -> Tensor:
    """Maps (m, H, W) scaled to [0, 1], each by its own range; a constant map becomes zero."""
    low, high = per_image(maps.flatten(1).amin(dim=1), maps), per_image(maps.flatten(1).amax(dim=1), maps)
    return (maps - low) / (high - low + floor)

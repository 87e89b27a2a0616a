"""Finer-CAM: Grad-CAM of what tells a class from those most like it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aha.core.axes import per_image, place_axes
from aha.core.validation import NonNegativeFloat, PositiveInt
from aha.errors import CapabilityError
from aha.methods.base import Layer, Method, method
from aha.methods.cam.base import pick_stage
from aha.methods.cost import Cost
from aha.models import Captures, TargetModel


@method("finer_cam", family="cam", needs={"features", "gradients"}, volumes=True, citation="Zhang et al., CVPR 2025")
@dataclass(frozen=True)
class FinerCAM(Method):
    """Grad-CAM of `y_c - alpha * y_d`, the mean over the rival classes d weighted by their probabilities.

    The rivals are those whose scores are nearest to the explained class's own, as in the published code; there the
    weights take part in the derivative, here they are constants, which keeps the map a combination of Grad-CAM's.

    Reads: the features of one stage and their gradients.
    Cost: one forward pass and `rivals` + 1 backward passes.
    Example: `finer_cam(alpha=0.6)`.

    Attributes:
        alpha: strength of the comparison; 0 is Grad-CAM in its form for features.
        rivals: how many classes to compare with.
        layer: which stage, counted from the end, or the name of a module.
    """

    alpha: NonNegativeFloat = 1.0
    rivals: PositiveInt = 3
    layer: Layer = -1

    def reads(self, model: TargetModel, size: Sequence[int]) -> Captures:
        return Captures(features=(pick_stage(model, size, self.layer),))

    def cost(self, model: TargetModel, size: tuple[int, ...]) -> Cost:
        return Cost(2 + self.rivals)

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        stage = pick_stage(model, images.shape[1:], self.layer)
        trace = model.trace(images, features=[stage])
        features = trace.features[stage]  # (B, C, h, w)
        count = trace.score.num_classes(trace.outputs)
        if count < 2:
            raise CapabilityError(f"finer_cam compares classes; {model.spec} has one output only")
        with torch.no_grad():
            every = [trace.scores(torch.full_like(classes, index)) for index in range(count)]
            scores = torch.stack(every, dim=1)  # (B, K)
        (gradients,) = trace.gradients(classes, features)
        others = nearest_classes(scores, classes, min(self.rivals, count - 1))  # (B, D)
        shares = scores.gather(1, others).softmax(dim=1)  # (B, D): of their probabilities
        for other, share in zip(others.T, shares.T, strict=True):
            (theirs,) = trace.gradients(other, features)
            gradients = gradients - self.alpha * per_image(share, theirs) * theirs
        weights = gradients.mean(dim=place_axes(features), keepdim=True)  # (B, C, 1, 1)
        return (weights * features).sum(dim=1).relu()  # (B, h, w)


def nearest_classes(scores: Tensor, classes: Tensor, count: int) -> Tensor:
    """The classes (B, count) whose scores (B, K) lie nearest to that of each image's own class, nearest first."""
    classes = classes.to(scores.device)[:, None]
    distances = (scores - scores.gather(1, classes)).abs()
    return distances.scatter(1, classes, torch.inf).topk(count, dim=1, largest=False).indices

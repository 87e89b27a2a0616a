"""The common ground of class activation maps: the stage that is read, its features and their gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from aha.errors import SpecError
from aha.methods.base import Layer, Method, pick_layer, why_no_layer
from aha.models import Captures, TargetModel


@dataclass(frozen=True)
class StageMethod(Method):
    """Base of the methods that read the features of one stage, counted from the end, or named by a module."""

    layer: Layer = -1

    def reads(self, model: TargetModel, size: Sequence[int]) -> Captures:
        return Captures(features=(pick_stage(model, size, self.layer),))


@dataclass(frozen=True)
class WeightedStage(StageMethod):
    """Base of the methods that draw a map from the features of a stage and their class gradients, and no more."""

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return self.drawn(*features_and_gradients(model, images, classes, self.layer))  # (B, h, w)

    @abstractmethod
    def drawn(self, features: Tensor, gradients: Tensor) -> Tensor:
        """Maps (B, h, w) from features and gradients, (B, C, h, w) each."""


def features_and_gradients(model: TargetModel, images: Tensor, classes: Tensor, layer: Layer) -> tuple[Tensor, Tensor]:
    """One stage's features (B, C, h, w), counted back from the deepest useful one, and their class gradients."""
    stage = pick_stage(model, images.shape[1:], layer)
    trace = model.trace(images, features=[stage])
    (gradients,) = trace.gradients(classes, trace.features[stage])
    return trace.features[stage], gradients


def pick_stage(model: TargetModel, size: Sequence[int], layer: Layer) -> int:
    """The stage for inputs of this size (C, H, W), counted back from the deepest on whose places the outputs depend.

    A layer that is named may be any whose output keeps places.
    """
    if isinstance(layer, str):
        found = model.structure(size).spot_named(layer)
        if found is None:
            raise SpecError(f"layer={layer!r} does not exist: {why_no_layer(model, size, layer)}")
        return found
    return pick_layer(range(model.cam_stage(size) + 1), layer)

"""`region`: the score of a class over some of the pixels, for segmentation.

Shapes: scores (B, K, h, w) of the network; weights (h, w) that sum to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from aha.core.pictures import read_image
from aha.errors import TargetError
from aha.models import TargetModel
from aha.models.explained import Answer, Explained
from aha.models.loading.preprocessing import Geometry
from aha.targets.base import Held, Number, Shown, class_index, objective
from aha.targets.dense import dense_scores


@objective("region")
@dataclass(frozen=True)
class Region(Number):
    """The mean score of a class over a box, over a mask, or over the segment that the network predicts.

    The pixels are chosen on the image itself and stay the same while it is perturbed.

    Attributes:
        cls: the class; by default, of a box or mask, the one with the highest mean score there.
        box: x0, y0, x1, y1 in pixels of the image.
        mask: a file or an array of the image's size; above 0 is the region.
        at: x, y of a pixel: only the connected part of the segment that holds it.
        of: "logit", or "probability", whose curves lie between 0 and 1.
    """

    cls: int | str | None = None
    box: tuple[float, float, float, float] | None = None
    mask: str | Held | None = None
    at: tuple[float, float] | None = None
    of: Literal["logit", "probability"] = "logit"

    is_per_image = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "mask", Held.of(self.mask))
        super().__post_init__()
        if self.box is not None and self.mask is not None:
            raise TargetError("region: give a box or a mask, not both")
        if self.box is not None and not (self.box[0] < self.box[2] and self.box[1] < self.box[3]):
            raise TargetError(f"region: box={self.box} is not x0, y0, x1, y1 with x0 < x1 and y0 < y1")
        if self.cls is None and self.box is None and self.mask is None:
            raise TargetError("region: name a class, a box or a mask, such as region(cls=12)")

    def view(self, model: TargetModel, shown: Shown | None = None) -> TargetModel:
        """The model with the mean score as its only output."""
        function = self.function(model, shown)
        return model.explaining(Explained(str(self), function, is_probability=self.of == "probability"))

    def function(self, model: TargetModel, shown: Shown | None) -> Callable[[Answer], Tensor]:
        """Mean over the pixels that are chosen on the image, if there is one."""
        weights = None if shown is None else self._given(shown.geometry)  # (H, W), of the input
        fixed: tuple[int, Tensor] | None = None
        if shown is not None:
            fixed = self._found(model, self._scores_of(model, shown), weights, shown.geometry)

        def mean(answer: Answer) -> Tensor:
            scores = self._scaled(dense_scores(answer.read))
            if fixed is None:
                everywhere = torch.ones(answer.size, device=scores.device) if weights is None else weights
                cls = 0 if self.cls is None else class_index(model, self.cls, scores.shape[1])
                return (scores[:, cls] * _on_grid(everywhere, scores)).sum(dim=(1, 2))
            return (scores[:, fixed[0]] * fixed[1].to(scores)).sum(dim=(1, 2))

        return mean

    def _scaled(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=1) if self.of == "probability" else scores

    def _scores_of(self, model: TargetModel, shown: Shown) -> Tensor:
        """Scores (1, K, h, w) of the image as it is."""
        kept: list[Tensor] = []

        def keep(answer: Answer) -> Tensor:
            kept.append(dense_scores(answer.read).detach())
            return kept[-1].flatten(1)[:, :1]

        model.explaining(Explained("scores of places", keep)).outputs(shown.inputs.to(model.device))
        return kept[-1]

    def _given(self, geometry: Geometry) -> Tensor | None:
        """The pixels (H, W) of the model's input that the caller names."""
        height, width = geometry.model
        if self.box is not None:
            x0, y0, x1, y1 = geometry.boxes_to_model(torch.tensor([self.box]))[0].tolist()
            rows, columns = _covered(height, y0, y1), _covered(width, x0, x1)
            return _not_empty(rows[:, None] * columns[None, :], self)
        if self.mask is None:
            return None
        values = self.mask.values if isinstance(self.mask, Held) else np.asarray(read_image(self.mask))
        values = torch.from_numpy(np.asarray(values > 0))
        values = values.any(dim=2) if values.dim() == 3 else values
        if tuple(values.shape) != geometry.original:
            wanted = " x ".join(map(str, geometry.original))
            raise TargetError(f"the mask has {' x '.join(map(str, values.shape))} pixels, the image {wanted}")
        return _not_empty(geometry.to_model(values.float()), self)

    def _found(
        self, model: TargetModel, scores: Tensor, given: Tensor | None, geometry: Geometry
    ) -> tuple[int, Tensor]:
        """The class, and weights (h, w) that are fixed on the image with these scores (1, K, h, w)."""
        count = scores.shape[1]
        cls = None if self.cls is None else class_index(model, self.cls, count)
        if given is not None:
            weights = _on_grid(given, scores)
            best = (scores[0] * weights).sum(dim=(1, 2)).argmax() if cls is None else cls
            return int(best), weights
        assert cls is not None
        segment = (scores[0].argmax(dim=0) == cls).float()  # (h, w)
        if not segment.any():
            there = int(scores[0].mean(dim=(1, 2)).argmax())
            raise TargetError(f"{self}: no pixel is predicted as class {cls} here; try a box, or class {there}")
        if self.at is not None:
            segment = self._part(segment, geometry)
        return cls, segment / segment.sum()

    def _part(self, segment: Tensor, geometry: Geometry) -> Tensor:
        """The connected part of a segment (h, w), corners included, that holds the pixel `at`."""
        assert self.at is not None
        x, y = self.at
        left, top = geometry.boxes_to_model(torch.tensor([[x, y, x, y]]))[0, :2].tolist()
        height, width = segment.shape
        row = min(height - 1, int(top / geometry.model[0] * height))
        column = min(width - 1, int(left / geometry.model[1] * width))
        if not segment[row, column]:
            raise TargetError(f"{self}: the pixel at {self.at} is not in the segment")
        part = torch.zeros_like(segment)
        part[row, column] = 1
        while True:
            grown = F.max_pool2d(part[None, None], 3, stride=1, padding=1)[0, 0] * segment
            if torch.equal(grown, part):
                return part
            part = grown


def _covered(count: int, start: float, end: float) -> Tensor:
    """How much of each of `count` pixels lies between two coordinates."""
    edges = torch.arange(count + 1, dtype=torch.float32)
    return (edges[1:].clamp(max=end) - edges[:-1].clamp(min=start)).clamp(min=0)


def _not_empty(pixels: Tensor, region: Region) -> Tensor:
    if not bool(pixels.any()):
        raise TargetError(f"{region}: the model sees none of these pixels")
    return pixels


def _on_grid(pixels: Tensor, scores: Tensor) -> Tensor:
    """Pixels (H, W) as weights (h, w) of the places of scores (B, K, h, w): how much of each place is covered."""
    weights = F.interpolate(pixels[None, None].to(scores), size=scores.shape[-2:], mode="area")[0, 0]
    return weights / weights.sum()

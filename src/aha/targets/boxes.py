"""`box`: the score of a detection.

The similarity of D-RISE (Petsiuk et al., CVPR 2021): overlap with the box times the score of the class, of the best
candidate. It stays defined when the box moves or vanishes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aha.errors import TargetError
from aha.models import TargetModel
from aha.models.explained import Answer, Explained
from aha.targets.base import Number, Shown, class_index, objective
from aha.targets.detections import Candidates, candidates, overlap, parts_read


@objective("box")
@dataclass(frozen=True)
class Box(Number):
    """The largest product of overlap and class score among all candidates of a detector, from 0 to 1.

    Attributes:
        x0, y0, x1, y1: corners in pixels of the image.
        cls: the class; by default, the one that is detected there.
    """

    x0: float
    y0: float
    x1: float
    y1: float
    cls: int | str | None = None

    is_per_image = True
    is_probability = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.x0 < self.x1 and self.y0 < self.y1):
            raise TargetError(f"{self}: the corners are x0, y0, x1, y1 with x0 < x1 and y0 < y1")

    @property
    def box(self) -> tuple[float, float, float, float]:
        """The corners."""
        return self.x0, self.y0, self.x1, self.y1

    def inside(self, model: TargetModel) -> tuple[str, ...]:
        """Where torchvision's detectors have their candidates."""
        return parts_read(model.module)

    def function(self, model: TargetModel, shown: Shown | None) -> Callable[[Answer], Tensor]:
        """The best candidate's product."""
        corners, cls = torch.tensor(self.box), self.cls
        if shown is not None:
            corners = shown.geometry.boxes_to_model(corners[None])[0]
            if not bool((corners[2:] > corners[:2]).all()):
                raise TargetError(f"{self}: the model sees none of this box")
            if cls is None:
                cls = self._detected(model, shown, corners)

        def best(answer: Answer) -> Tensor:
            return torch.stack([_best(model, found, corners, cls) for found in candidates(model.module, answer)])

        return best

    def _detected(self, model: TargetModel, shown: Shown, corners: Tensor) -> int:
        """The class of the best candidate on the image itself."""

        def products(answer: Answer) -> Tensor:
            return torch.stack([_products(one, corners).amax(dim=0) for one in candidates(model.module, answer)])

        view = model.explaining(Explained("classes of the box", products, self.inside(model)))
        return int(view.outputs(shown.inputs.to(model.device)).argmax())


def _products(found: Candidates, corners: Tensor) -> Tensor:
    """Overlap times score (N, K) of each candidate and class."""
    return overlap(found.boxes, corners.to(found.boxes)) * found.scores


def _best(model: TargetModel, found: Candidates, corners: Tensor, cls: Any) -> Tensor:
    products = _products(found, corners)
    if cls is not None:
        products = products[:, class_index(model, cls, products.shape[1])]
    return products.amax() if products.numel() else found.scores.sum()

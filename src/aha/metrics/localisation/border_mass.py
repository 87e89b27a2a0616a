"""Border mass: how much of a map lies along the edges and in the corners of the image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from aha.core.validation import Range
from aha.errors import MetricError
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case
from aha.metrics.localisation.base import SMALLEST_MASS, map_of, positive_share

LessThanHalf = Annotated[float, Range(0, 0.5, above=True, below=True)]


def border(shape: tuple[int, int], width: float) -> Tensor:
    """Where (H, W) the frame is whose breadth is a share of each side."""
    found = torch.ones(shape, dtype=torch.bool)
    rows, columns = (max(1, round(side * width)) for side in shape)
    found[rows:-rows, columns:-columns] = False
    return found


def corners(shape: tuple[int, int], width: float) -> Tensor:
    """Where (H, W) the four corners are, each as wide and as high as a share of the sides."""
    found = torch.zeros(shape, dtype=torch.bool)
    rows, columns = (max(1, round(side * width)) for side in shape)
    for vertical in (slice(rows), slice(-rows, None)):
        for horizontal in (slice(columns), slice(-columns, None)):
            found[vertical, horizontal] = True
    return found


@metric(
    "border_mass",
    columns={"border_mass": "neither", "corner_mass": "neither"},
    citation="DeGrave et al., Nature Machine Intelligence 2021",
)
@dataclass(frozen=True)
class BorderMass(Metric):
    """The share of the map's positive mass in a frame and in the four corners, relative to their share of the image.

    1 is what a uniform map has, 2 twice that. Tokens, watermarks, rulers and borders of scans are mostly there, and so
    are shortcuts that use them (DeGrave et al.); objects mostly are not. A description, not a quality: an object may
    reach the edge. A constant offset of the map moves both numbers towards 1.

    Attributes:
        width: breadth of the frame, as a share of each side.
        corner: side of a corner, as a share of each side.
    """

    for_volumes: ClassVar[bool] = False

    width: LessThanHalf = 0.1
    corner: LessThanHalf = 0.15

    def __call__(self, case: Case) -> list[Value]:
        values = map_of(case)
        if float(values.relu().sum()) < SMALLEST_MASS:
            raise MetricError(f"{case.sample.name}: the map of {case.method} has no positive mass")
        shape, everywhere = (values.shape[0], values.shape[1]), torch.ones_like(values)
        regions = {"border_mass": border(shape, self.width), "corner_mass": corners(shape, self.corner)}
        return [
            Value(name, positive_share(values, region, everywhere) / float(region.double().mean()))
            for name, region in regions.items()
        ]

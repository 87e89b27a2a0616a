"""Pointing game: does the most important pixel lie on the object?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.core.validation import NonNegativeInt
from aha.errors import MetricError
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case
from aha.metrics.localisation.base import box_region, counted_pixels, map_of, mask_region


def grown(region: Tensor, radius: int) -> Tensor:
    """The pixels (H, W) at most `radius` away from a region (H, W), by Euclidean distance."""
    if radius == 0:
        return region
    offsets = torch.arange(-radius, radius + 1)
    disc = (offsets[:, None] ** 2 + offsets[None, :] ** 2 <= radius**2).float()
    return F.conv2d(region[None, None].float(), disc[None, None], padding=radius)[0, 0] > 0.5


@metric(
    "pointing_game",
    columns={"pointing_game": "higher"},
    looks_at={"mask", "boxes"},
    citation="Zhang et al., ECCV 2016",
)
@dataclass(frozen=True)
class PointingGame(Metric):
    """1 if the map's largest pixel lies on the object, else 0; of several largest pixels, the share that does.

    The object is its mask, or the union of its boxes where there is no mask; ignored pixels are never pointed at. Maps
    that are constant on patches tie over whole patches, hence the share. A constant map gets the object's area.

    Attributes:
        tolerance: a pixel at most this far from the object still counts; Zhang et al. use 15, CAAP none.
    """

    tolerance: NonNegativeInt = 0

    def __call__(self, case: Case) -> list[Value]:
        if case.sample.mask is None and case.sample.boxes is None:
            raise MetricError(f"{case.sample.name}: the pointing game needs a mask or boxes")
        region = mask_region(case) if case.sample.mask is not None else box_region(case)
        counted = counted_pixels(case)
        values = map_of(case)
        largest = counted & (values == values[counted].max())  # (H, W)
        return [Value("pointing_game", float(grown(region, self.tolerance)[largest].double().mean()))]

"""Energy in the box: the share of the map's positive mass that lies in the object's boxes."""

from __future__ import annotations

from dataclasses import dataclass

from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case
from aha.metrics.localisation.base import box_region, counted_pixels, map_of, positive_share


@metric(
    "energy_in_box",
    columns={"energy_in_box": "higher"},
    needs={"boxes"},
    looks_at={"mask"},
    citation="Wang et al. (Score-CAM), CVPR workshops 2020",
)
@dataclass(frozen=True)
class EnergyInBox(Metric):
    """Positive mass inside the union of the boxes / total positive mass; 0 for a map with less mass than 1e-7.

    Chance is the area of the boxes, which is large on ImageNet. The paper leaves out images whose box covers more than
    half of them; that choice is the caller's. A constant offset of the map changes the number.
    """

    def __call__(self, case: Case) -> list[Value]:
        return [Value("energy_in_box", positive_share(map_of(case), box_region(case), counted_pixels(case)))]

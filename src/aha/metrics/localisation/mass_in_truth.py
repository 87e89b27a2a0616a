"""Mass in truth: the share of a map that lies on the pixels that matter."""

from __future__ import annotations

from dataclasses import dataclass

from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case
from aha.metrics.localisation.base import counted_pixels, map_of, mask_region, positive_share


@metric(
    "mass_in_truth",
    columns={"mass_in_truth": "higher"},
    needs={"mask"},
    citation="Arras, Osman and Samek (CLEVR-XAI), Information Fusion 2022",
)
@dataclass(frozen=True)
class MassInTruth(Metric):
    """Sum of the map's absolute values inside the mask / sum over all of it; 0 for a map with less mass than 1e-7.

    Chance is the mask's share of the image. A constant offset of the map changes the number. Ignored pixels do not
    count.
    """

    def __call__(self, case: Case) -> list[Value]:
        share = positive_share(map_of(case).abs(), mask_region(case), counted_pixels(case))
        return [Value("mass_in_truth", share)]

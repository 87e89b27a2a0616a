"""VAR's region scores: how much of the blurred map lies in the region, and how well its support covers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case
from aha.metrics.localisation.base import (
    cell_region,
    check_blur,
    counted_pixels,
    map_of,
    mask_region,
    positive_share,
    ratio,
    smoothed,
)

Support = Literal["mean", "positive"]


def support_of(values: Tensor, rule: Support) -> Tensor:
    """Where (H, W) a map speaks for the class: above the mean of its positive values, or anywhere above zero."""
    is_positive = values > 0
    if rule == "positive" or not bool(is_positive.any()):
        return is_positive
    return values > values[is_positive].mean() * (1 + 1e-9)  # a constant map stays below, whatever its rounding


@metric(
    "region",
    columns={
        "region_attribution": "higher",
        "region_iou": "higher",
        "region_f1": "higher",
        "region_precision": "higher",
        "region_recall": "higher",
    },
    looks_at={"mask"},
    citation="VAR, arXiv 2503.07346; Rao et al., CVPR 2022",
)
@dataclass(frozen=True)
class RegionScores(Metric):
    """Region attribution (positive mass inside / total) and IoU, F1, precision and recall of the map's support.

    The region is the object's mask, or in a mosaic the cell of the explained class. The map is blurred first and cut
    at zero afterwards; a map with less mass than 1e-7 scores 0 (Rao et al.). Ignored pixels do not count.

    The paper states neither the blur's deviation (2 is what OpenCV takes for an 11x11 kernel) nor how the support is
    obtained. With "positive" a noise map covers about half the image, and so IoU 0.2 in a 2x2 mosaic means nothing.

    Attributes:
        kernel: side of the Gaussian blur; 1 for none.
        sigma: its deviation.
        support: pixels above the "mean" of the positive values, or all "positive" ones.
    """

    kernel: int = 11
    sigma: float = 2.0
    support: Support = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_blur(self.name, self.kernel, self.sigma)

    def __call__(self, case: Case) -> list[Value]:
        region = mask_region(case) if case.sample.mask is not None else cell_region(case)
        counted = counted_pixels(case)
        region = region & counted
        blurred = smoothed(map_of(case), self.kernel, self.sigma)
        support = support_of(blurred, self.support) & counted
        both, covered, area = (int(part.sum()) for part in (support & region, support, region))
        return [
            Value("region_attribution", positive_share(blurred, region, counted)),
            Value("region_iou", ratio(both, covered + area - both)),
            Value("region_f1", ratio(2 * both, covered + area)),
            Value("region_precision", ratio(both, covered)),
            Value("region_recall", ratio(both, area)),
        ]

"""ImageNet-Segmentation: the map, cut at its mean, as a segmentation of the object."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from aha.metrics.base import Metric, Pooled, Value, metric
from aha.metrics.case import Case
from aha.metrics.localisation.base import average_precision, counted_pixels, mask_region, ratio

COUNTS = ("fg_intersection", "fg_union", "bg_intersection", "bg_union", "correct_pixels", "labelled_pixels")


class Overlap(NamedTuple):
    """Pixel counts of one image, or summed over a dataset; the fields are `COUNTS`."""

    fg_intersection: float
    fg_union: float
    bg_intersection: float
    bg_union: float
    correct_pixels: float
    labelled_pixels: float

    @property
    def miou(self) -> float:
        """Mean of the IoU of object and background; an IoU without any pixel is 0, as in the published code."""
        return (ratio(self.fg_intersection, self.fg_union) + ratio(self.bg_intersection, self.bg_union)) / 2

    @property
    def pixel_accuracy(self) -> float:
        """Share of the labelled pixels on the right side."""
        return ratio(self.correct_pixels, self.labelled_pixels)

    @property
    def f1(self) -> float:
        """F1 of the object: twice the intersection over the sum of both areas."""
        return ratio(2 * self.fg_intersection, self.fg_intersection + self.fg_union)


def overlap(predicted: Tensor, truth: Tensor) -> Overlap:
    """Counts for a predicted and a true object (n,), both bool."""
    fg_both, fg_any = int((predicted & truth).sum()), int((predicted | truth).sum())
    total = truth.numel()
    return Overlap(fg_both, fg_any, total - fg_any, total - fg_both, fg_both + total - fg_any, total)


def f1_of_rows(predicted: Tensor, truth: Tensor, counted: Tensor) -> float:
    """Mean over the rows of pixels of the F1 of a predicted and a true object (H, W), all bool, where it is counted."""
    both, either = predicted & truth & counted, (predicted & counted).int() + (truth & counted).int()
    scores = 2 * both.sum(dim=1) / either.sum(dim=1).clamp(min=1)
    return float(scores[counted.any(dim=1)].double().mean())


@metric(
    "segmentation",
    columns={
        "pixel_accuracy": "higher",
        "miou": "higher",
        "segmentation_ap": "higher",
        "segmentation_f1": "higher",
        "segmentation_f1_rows": "higher",
        **dict.fromkeys(COUNTS, "neither"),
    },
    bounds=(0.0, math.inf),
    needs={"mask"},
    citation="Chefer et al., CVPR 2021; Guillaumin et al., IJCV 2014",
)
@dataclass(frozen=True)
class Segmentation(Metric):
    """Pixel accuracy, IoU, average precision and F1 of `map > mean(map)`, the map scaled to [0, 1].

    Published mIoU and pixel accuracy are ratios of counts summed over the whole dataset: `dataset_miou` and
    `dataset_pixel_accuracy`. The per-image columns `miou` and `pixel_accuracy` weigh every image alike and differ.

    `segmentation_ap` is the published "mAP": average precision over both classes at once, [1 - map, map] against
    [background, object]; chance is about one half. `segmentation_f1` is the F1 of the image. The published "F1" is
    `segmentation_f1_rows`: its code hands over an image where a batch is expected, and so takes the mean of the F1 of
    each row of pixels, 0 for those that neither the map nor the object reaches. The threshold is always the mean over
    all pixels of the map; one chosen per image by the truth would be an oracle. Ignored pixels do not count.
    """

    def __call__(self, case: Case) -> list[Value]:
        unit = case.unit_map().cpu().double()  # (H, W)
        counted = counted_pixels(case)
        truth = mask_region(case)[counted]  # (n,)
        counts = overlap((unit > unit.mean())[counted], truth)
        scores = unit[counted]
        both = average_precision(torch.cat([~truth, truth]), torch.cat([1 - scores, scores]))
        return [
            Value("pixel_accuracy", counts.pixel_accuracy),
            Value("miou", counts.miou),
            Value("segmentation_ap", both),
            Value("segmentation_f1", counts.f1),
            Value("segmentation_f1_rows", f1_of_rows(unit > unit.mean(), mask_region(case), counted)),
            *(Value(name, float(count)) for name, count in zip(COUNTS, counts, strict=True)),
        ]

    def over_dataset(self, values: Mapping[str, Sequence[float]]) -> dict[str, Pooled]:
        if not all(values.get(name) for name in COUNTS):
            return {}
        total = Overlap(*(math.fsum(values[name]) for name in COUNTS))
        n = len(values[COUNTS[0]])
        return {"dataset_miou": Pooled(total.miou, n), "dataset_pixel_accuracy": Pooled(total.pixel_accuracy, n)}

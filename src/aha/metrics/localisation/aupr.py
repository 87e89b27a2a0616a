"""AUPR1 and AUPR0: how well the map ranks object pixels above the background, and the background below."""

from __future__ import annotations

from dataclasses import dataclass

from aha.errors import MetricError
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case
from aha.metrics.localisation.base import average_precision, counted_pixels, map_of, mask_region


@metric("aupr", columns={"aupr1": "higher", "aupr0": "higher"}, needs={"mask"}, citation="CAAP, arXiv 2603.13652")
@dataclass(frozen=True)
class AUPR(Metric):
    """Average precision of the map for the object (`aupr1`) and of its negative for the background (`aupr0`).

    The paper does not say which area it means; here it is scikit-learn's average precision, where tied pixels count
    together. Chance is the share of object pixels (`aupr1`) or of background pixels (`aupr0`), so values of images
    with large and small objects are not comparable. The scale of the map does not matter, its sign does.
    """

    def __call__(self, case: Case) -> list[Value]:
        counted = counted_pixels(case)
        labels = mask_region(case)[counted]  # (n,)
        if bool(labels.all()):
            raise MetricError(f"{case.sample.name}: the object mask leaves no background")
        scores = map_of(case)[counted]
        return [
            Value("aupr1", average_precision(labels, scores)),
            Value("aupr0", average_precision(~labels, -scores)),
        ]

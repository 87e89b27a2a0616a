"""Precision at k: how many of the k most important pixels are truly important, where k of them are."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case
from aha.metrics.localisation.base import counted_pixels, map_of, mask_region


def precision_at(values: Tensor, truth: Tensor, k: int) -> float:
    """Share of the k largest values (n,) that are in the truth (n,), bool; tied ones at the limit count in part."""
    limit = values.topk(k).values[-1]
    above, tied = values > limit, values == limit
    places = k - int(above.sum())  # that the tied pixels share
    hits = float(truth[above].sum()) + places * float(truth[tied].double().mean())
    return hits / k


@metric(
    "precision_at_k",
    columns={"precision_at_k": "higher"},
    needs={"mask"},
    citation="Clark, Wilming and Haufe (XAI-TRIS), Machine Learning 2024",
)
@dataclass(frozen=True)
class PrecisionAtK(Metric):
    """Share of the k pixels with the largest absolute values that lie in the mask, which has k pixels.

    Chance is the mask's share of the image. Pixels that tie for the last places share them, so that a constant map
    scores chance. Ignored pixels do not count.
    """

    def __call__(self, case: Case) -> list[Value]:
        counted, truth = counted_pixels(case), mask_region(case)
        return [Value("precision_at_k", precision_at(map_of(case).abs()[counted], truth[counted], int(truth.sum())))]

"""Repeatability: is the map the same when it is made again, by another seed, in a batch, in another precision?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.core.validation import PositiveInt
from aha.errors import MetricError
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case
from aha.metrics.statistics import spearman


@metric(
    "repeatability",
    columns={
        "repeat_again": "higher",
        "repeat_seeds": "higher",
        "repeat_batch": "higher",
        "repeat_precision": "higher",
    },
    bounds=(-1.0, 1.0),
    needs={"method"},
    citation="Arun et al., Radiology: Artificial Intelligence 2021",
)
@dataclass(frozen=True)
class Repeatability(Metric):
    """Spearman correlation between the map and the same map made again, with one thing changed at a time.

    `repeat_again` changes nothing. `repeat_seeds` draws with other seeds, the mean over them; a method that draws
    nothing has 1. `repeat_batch` makes the map in the middle of a batch of other images. `repeat_precision` runs passes
    without gradients in bfloat16 (in float32 if the model is in half precision); methods that read gradients alone have
    1. A constant map has no ranks and is refused; if one of those that are made again is constant, it counts as 0.

    Attributes:
        seeds: how many other seeds.
    """

    seeds: PositiveInt = 2

    def __call__(self, case: Case) -> list[Value]:
        if case.explain is None or case.reseeded is None:
            raise MetricError(f"{case.sample.name}: repeatability needs the method, not only its map")
        if bool(case.values.min() == case.values.max()):
            raise MetricError(f"{case.sample.name}: the map of {case.method} is constant, so it has no ranks")
        model, image = case.model, case.sample.inputs
        # The image between its mirror images: what the method makes of the neighbours must not matter.
        batch = torch.stack([image.flip(-1), image, image.flip(-2)])  # (3, C, H, W)
        other = model.in_precision("bfloat16" if model.precision == "float32" else "float32")
        one, target = image[None], torch.tensor([case.target], device=model.device)
        seeds = range(case.seed + 1, case.seed + 1 + self.seeds)
        by_seeds = [self._alike(case, case.reseeded(seed)(model, one, target)[0]) for seed in seeds]
        return [
            Value("repeat_again", self._alike(case, case.explain(model, one, target)[0])),
            Value("repeat_seeds", sum(by_seeds) / len(by_seeds)),
            Value("repeat_batch", self._alike(case, case.explain(model, batch, target.expand(3))[1])),
            Value("repeat_precision", self._alike(case, case.explain(other, one, target)[0])),
        ]

    def _alike(self, case: Case, values: Tensor) -> float:
        if not bool(values.isfinite().all()):
            raise MetricError(f"{case.sample.name}: a repeated map of {case.method} is not finite")
        return float(spearman(case.values.flatten(), values.to(case.values).flatten()).nan_to_num(0.0))

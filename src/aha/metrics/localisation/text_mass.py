"""Text mass: how much of a map lies where the image may show text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from aha.errors import MetricError
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case
from aha.metrics.localisation.base import SMALLEST_MASS, map_of, positive_share
from aha.metrics.localisation.text_like import text_like


@metric(
    "text_mass",
    columns={"text_mass": "neither", "text_share": "neither"},
    citation="DeGrave et al., Nature Machine Intelligence 2021",
)
@dataclass(frozen=True)
class TextMass(Metric):
    """The share of the map's positive mass on text-like places, and the share of the image that these are.

    Tags, captions, dates and watermarks name a source or a class, so that a network can use them instead of what the
    image shows. A classical detector finds horizontal printed words of three letters or more with clear contrast; it
    misses faint, slanted and joined writing, and takes rows of bars for words. Both numbers are 0 where it finds
    nothing, which does not mean that there is nothing. A description, not a quality: text may be what the class is.
    """

    for_volumes: ClassVar[bool] = False

    def __call__(self, case: Case) -> list[Value]:
        values = map_of(case)
        if float(values.relu().sum()) < SMALLEST_MASS:
            raise MetricError(f"{case.sample.name}: the map of {case.method} has no positive mass")
        places = _places(case)
        return [
            Value("text_mass", positive_share(values, places, torch.ones_like(values))),
            Value("text_share", float(places.double().mean())),
        ]


def _places(case: Case) -> Tensor:
    """Where (H, W) the image may show text; found once for all of its maps."""
    kept = case.sample.cache.get(TextMass.name)
    if not isinstance(kept, Tensor):
        kept = case.sample.cache[TextMass.name] = text_like(case.sample.pixels)
    return kept

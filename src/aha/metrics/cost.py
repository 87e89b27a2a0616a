"""Cost: what it took to make the map."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aha.errors import MetricError
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case


@metric(
    "cost",
    columns={"seconds": "lower", "forward_images": "lower", "backward_images": "lower"},
    bounds=(0.0, math.inf),
)
@dataclass(frozen=True)
class Cost(Metric):
    """Seconds per map, and images sent forward and backward through the model per map.

    Seconds depend on machine, batch size and what else is running, and include the first call's warm-up; the counts do
    not, and compare between machines. Whoever makes the maps measures them, so maps from elsewhere have no cost.
    """

    def __call__(self, case: Case) -> list[Value]:
        found = {
            "seconds": case.seconds,
            "forward_images": case.forward_images,
            "backward_images": case.backward_images,
        }
        unknown = [name for name, value in found.items() if value is None]
        if unknown:
            raise MetricError(f"{case.sample.name}: {', '.join(unknown)} of {case.method} are unknown")
        return [Value(name, float(value)) for name, value in found.items() if value is not None]

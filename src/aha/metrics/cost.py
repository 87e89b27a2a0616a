"""Cost: what it took to make the map."""

from __future__ import annotations

import math
from dataclasses import dataclass

from aha.errors import MetricError
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case


@metric(
    "cost",
    columns={"seconds": "lower", "forward_images": "lower", "backward_images": "lower", "peak_megabytes": "lower"},
    bounds=(0.0, math.inf),
)
@dataclass(frozen=True)
class MapCost(Metric):
    """Seconds per map, images sent forward and backward through the model per map, and peak memory per map.

    Seconds depend on machine, batch size and what else is running, and include the first call's warm-up; the counts do
    not, and compare between machines. Memory is that of the batch divided by its maps (`PeakMemory` says how it is
    measured), and is left out where it is unknown. Whoever makes the maps measures them, so maps from elsewhere
    have no cost.
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
        values = [Value(name, float(value)) for name, value in found.items() if value is not None]
        if case.peak_bytes is not None:
            values.append(Value("peak_megabytes", case.peak_bytes / 1e6))
        return values

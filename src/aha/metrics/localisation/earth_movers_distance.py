"""Earth mover's distance: how far a map's mass would have to be carried to lie evenly on the pixels that matter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from aha.core.validation import PositiveInt
from aha.errors import MetricError
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case
from aha.metrics.localisation.base import SMALLEST_MASS, counted_pixels, map_of, mask_region

_NEGLIGIBLE = 1e-12  # of a mass of one: not worth a variable


def transport_cost(mass: NDArray[np.float64], goal: NDArray[np.float64], places: NDArray[np.float64]) -> float:
    """The least sum of mass times distance that turns one distribution (n,) into another (n,), at places (n, 2).

    What both have at a place stays there, which the triangle inequality allows; the rest is a small linear programme.
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    excess = mass - goal
    sources, sinks = np.flatnonzero(excess > _NEGLIGIBLE), np.flatnonzero(excess < -_NEGLIGIBLE)
    if not len(sources) or not len(sinks):
        return 0.0
    distances = np.linalg.norm(places[sources][:, None] - places[sinks][None], axis=-1)  # (s, t)
    columns = np.arange(distances.size)
    rows_out, rows_in = columns // len(sinks), len(sources) + columns % len(sinks)
    entries = (np.ones(2 * distances.size), (np.r_[rows_out, rows_in], np.r_[columns, columns]))
    given, taken = excess[sources], -excess[sinks]
    taken = taken * (given.sum() / taken.sum())  # equal but for rounding, which the solver would refuse
    limits = np.r_[given, taken]
    found = linprog(distances.ravel(), A_eq=coo_array(entries), b_eq=limits, method="highs")
    if not found.success:
        raise MetricError(f"the transport of the map's mass was not found: {found.message}")
    return float(found.fun)


@metric(
    "earth_movers_distance",
    columns={"earth_movers_distance": "lower"},
    needs={"mask"},
    citation="Clark, Wilming and Haufe (XAI-TRIS), Machine Learning 2024",
)
@dataclass(frozen=True)
class EarthMoversDistance(Metric):
    """Earth mover's distance from the map's absolute values to an even mass on the mask, both of total 1.

    Distances are Euclidean, in units of the image's diagonal: 0 is perfect, 1 the worst that there is. (XAI-TRIS
    reports 1 less this number.) Unlike precision and mass it tells a map that is a little off from one that is far
    away. Large images are summed to cells first, since the exact transport between all pixels would take minutes. An
    empty map is at the distance of an even one. Ignored pixels do not count.

    Attributes:
        grid: most cells along a side.
    """

    grid: PositiveInt = 16

    def __call__(self, case: Case) -> list[Value]:
        counted, truth = counted_pixels(case), mask_region(case)
        values = map_of(case).abs() * counted
        if float(values.sum()) < SMALLEST_MASS:
            values = counted.double()
        height, width = values.shape
        size = min(height, self.grid), min(width, self.grid)
        mass, goal = (self._cells(part, size) for part in (values, truth.double()))
        rows, columns = np.mgrid[: size[0], : size[1]]
        places = np.stack([(rows + 0.5) * height / size[0], (columns + 0.5) * width / size[1]], axis=-1).reshape(-1, 2)
        diagonal = float(np.hypot(height, width))
        return [Value("earth_movers_distance", transport_cost(mass, goal, places) / diagonal)]

    @staticmethod
    def _cells(values: Tensor, size: tuple[int, int]) -> NDArray[np.float64]:
        """Shares (n,) of the mass in each cell."""
        cells = F.adaptive_avg_pool2d(values[None], size)[0].flatten()
        found: NDArray[np.float64] = (cells / cells.sum()).numpy()
        return found

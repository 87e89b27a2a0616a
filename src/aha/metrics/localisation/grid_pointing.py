"""Grid pointing game: in a mosaic, how much of a class's map lies in the cell that shows the class?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from aha.metrics.base import Metric, Pooled, Value, metric
from aha.metrics.case import Case
from aha.metrics.localisation.base import cell_region, check_blur, counted_pixels, map_of, positive_share, smoothed


@metric(
    "grid_pointing",
    columns={"grid_pointing": "higher"},
    needs={"grid"},
    looks_at={"mask"},
    citation="Rao et al., CVPR 2022, eq. 1",
)
@dataclass(frozen=True)
class GridPointing(Metric):
    """Positive mass in the explained class's cell / total positive mass; 0 for a map with less mass than 1e-7.

    Chance is `1 / n^2` for n x n cells. Maps must explain a class that the mosaic shows; `aha.data.mosaics` builds
    mosaics of distinct classes. The paper reports the distribution, so median and quartiles stand beside the mean.

    Attributes:
        kernel: side of a Gaussian blur of the map; 1, as in the paper's main results, is none. Wide kernels raise the
            scores of input gradients strongly, so a blurred number compares only with equally blurred ones.
        sigma: deviation of the blur.
    """

    kernel: int = 1
    sigma: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_blur(self.name, self.kernel, self.sigma)

    def __call__(self, case: Case) -> list[Value]:
        values = smoothed(map_of(case), self.kernel, self.sigma)
        return [Value("grid_pointing", positive_share(values, cell_region(case), counted_pixels(case)))]

    def over_dataset(self, values: Mapping[str, Sequence[float]]) -> dict[str, Pooled]:
        shares = values.get("grid_pointing")
        if not shares:
            return {}
        places = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
        found = torch.tensor(shares, dtype=torch.float64).quantile(places).tolist()
        names = ("grid_pointing_q1", "grid_pointing_median", "grid_pointing_q3")
        return {name: Pooled(value, len(shares)) for name, value in zip(names, found, strict=True)}

"""Stability: does the map survive a little noise on the image?"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.core.seeds import generator_of
from aha.core.validation import PositiveFloat, PositiveInt
from aha.errors import MetricError
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case
from aha.metrics.statistics import spearman


def noisy_copies(inputs: Tensor, n: int, sigma: float, seed: int) -> Tensor:
    """Copies (n, C, H, W) of inputs (C, H, W) with Gaussian noise of `sigma` times their value range.

    Drawn on the CPU and only by shape: every image and every method of one size gets the same noise.
    """
    noise = torch.randn((n, *inputs.shape), generator=generator_of(seed)).to(inputs)
    return inputs + sigma * (inputs.max() - inputs.min()) * noise


@metric(
    "stability",
    columns={"stability_spearman": "higher", "stability_change": "lower"},
    bounds=(-1.0, float("inf")),
    needs={"method"},
    citation="Alvarez-Melis and Jaakkola, 2018; Yeh et al., NeurIPS 2019",
)
@dataclass(frozen=True)
class Stability(Metric):
    """Mean Spearman correlation, and largest relative L2 change, between the map and the maps of noisy copies.

    The class stays the explained one, even where the noise changes the prediction. Random methods use the same seed for
    all copies, so that their own randomness does not count. A map that ignores the image is perfectly stable, so this
    means something only beside `randomisation`. A noisy copy whose map is constant counts as correlation 0.

    Attributes:
        n: noisy copies.
        sigma: deviation of the noise as a share of the input's value range.
    """

    n: PositiveInt = 4
    sigma: PositiveFloat = 0.05

    def __call__(self, case: Case) -> list[Value]:
        if case.explain is None:
            raise MetricError(f"{case.sample.name}: stability needs the method, not only its map")
        if bool(case.values.min() == case.values.max()):
            raise MetricError(f"{case.sample.name}: the map of {case.method} is constant, so it has no ranks")
        copies = noisy_copies(case.sample.inputs, self.n, self.sigma, case.seed)
        classes = torch.full((self.n,), case.target, device=case.model.device)
        maps = case.explain(case.model, copies, classes).to(case.values)  # (n, H, W)
        if not bool(maps.isfinite().all()):
            raise MetricError(f"{case.sample.name}: maps of {case.method} under noise are not finite")
        clean = case.values.flatten()  # (N,)
        similar = torch.stack([spearman(clean, values.flatten()) for values in maps]).nan_to_num(0.0)  # (n,)
        change = (maps.flatten(1) - clean).norm(dim=1) / clean.norm()
        return [Value("stability_spearman", float(similar.mean())), Value("stability_change", float(change.max()))]

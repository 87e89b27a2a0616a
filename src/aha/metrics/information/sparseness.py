"""Sparseness: on how few pixels a map rests."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from aha.errors import MetricError
from aha.metrics.base import Metric, Value, metric
from aha.metrics.case import Case


def gini(mass: Tensor) -> float:
    """Gini index of masses (n,) >= 0: 0 if all are equal, `1 - 1/n` if one has everything."""
    ordered = mass.flatten().sort().values
    n = len(ordered)
    weights = (n - torch.arange(1, n + 1, dtype=ordered.dtype, device=ordered.device) + 0.5) / n
    return float(1 - 2 * (ordered / ordered.sum() * weights).sum())


def relative_entropy(mass: Tensor) -> float:
    """Entropy of masses (n,) >= 0, as a share of the largest possible: 1 if all are equal, 0 if one has everything."""
    shares = mass.flatten() / mass.sum()
    return float(torch.special.entr(shares).sum() / math.log(len(shares)))


@metric(
    "sparseness",
    columns={"gini": "neither", "entropy": "neither", "zero_share": "neither"},
    citation="Chalasani et al., ICML 2020",
)
@dataclass(frozen=True)
class Sparseness(Metric):
    """Gini index and normalised entropy of |map|, and the share of pixels that are exactly zero.

    A description, not a quality: a sparse map may be wrong and a dense one right. It helps to read other columns, since
    average drop favours dense maps, and rank correlations shrink where many pixels tie at zero.
    """

    def __call__(self, case: Case) -> list[Value]:
        mass = case.values.detach().cpu().double().abs()
        if not bool(mass.any()):
            raise MetricError(
                f"{case.sample.name}: the map of {case.method} is zero everywhere, so it has no sparseness"
            )
        return [
            Value("gini", gini(mass)),
            Value("entropy", relative_entropy(mass)),
            Value("zero_share", float((mass == 0).double().mean())),
        ]

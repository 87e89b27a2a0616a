"""Sparseness and cost, and what holds for the description of every metric here."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import entropy
from torch import Tensor, nn

import aha
from aha.errors import MetricError
from aha.metrics import METRICS, Case, Sample, load_metric

SIDE = 8


def case(values: Tensor, **known: float) -> Case:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 3))
    model = aha.load_model(module, input_size=(SIDE, SIDE), mean=[0.5] * 3, std=[0.5] * 3)
    judged = Case(Sample(model, "image", torch.zeros(3, SIDE, SIDE)), 0, values)
    for name, value in known.items():
        setattr(judged, name, value)
    return judged


def numbers(metric: str, judged: Case) -> dict[str, float]:
    return {value.column: value.value for value in load_metric(metric)(judged)}


def one_pixel() -> Tensor:
    values = torch.zeros(SIDE, SIDE)
    values[3, 5] = -2.0
    return values


def slow_gini(values: Tensor) -> float:
    """Mean absolute difference of all pairs over twice the mean."""
    mass = values.abs().flatten().double()
    return float((mass[:, None] - mass[None, :]).abs().mean() / (2 * mass.mean()))


@pytest.mark.parametrize("seed", range(3))
def test_sparseness_against_other_formulas(seed: int) -> None:
    values = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(seed)) ** 3
    values[:2] = 0
    found = numbers("sparseness", case(values))
    assert found["gini"] == pytest.approx(slow_gini(values))
    mass = values.double().abs().flatten().numpy()
    assert found["entropy"] == pytest.approx(entropy(mass) / math.log(SIDE * SIDE))
    assert found["zero_share"] == 0.25


def test_sparseness_of_the_extremes() -> None:
    n = SIDE * SIDE
    assert numbers("sparseness", case(torch.ones(SIDE, SIDE))) == pytest.approx(
        {"gini": 0.0, "entropy": 1.0, "zero_share": 0.0}, abs=1e-12
    )
    assert numbers("sparseness", case(one_pixel())) == pytest.approx(
        {"gini": 1 - 1 / n, "entropy": 0.0, "zero_share": 1 - 1 / n}
    )
    with pytest.raises(MetricError, match="zero everywhere"):
        numbers("sparseness", case(torch.zeros(SIDE, SIDE)))


def test_sparseness_does_not_depend_on_scale_or_sign() -> None:
    values = torch.randn(SIDE, SIDE)
    assert numbers("sparseness", case(values)) == pytest.approx(numbers("sparseness", case(-1e-9 * values)))


def test_cost_is_handed_on() -> None:
    known = {"seconds": 0.25, "forward_images": 20, "backward_images": 1.5}
    assert numbers("cost", case(one_pixel(), **known)) == known
    with pytest.raises(MetricError, match="backward_images of map are unknown"):
        numbers("cost", case(one_pixel(), seconds=0.1, forward_images=3))


NAMES = (
    "aupr",
    "class_sensitivity",
    "cost",
    "energy_in_box",
    "grid_pointing",
    "information_curve",
    "pointing_game",
    "randomisation",
    "region",
    "segmentation",
    "sparseness",
    "stability",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_metric_is_its_text(name: str) -> None:
    metric = load_metric(name)
    assert load_metric(str(metric)) == metric
    assert METRICS[name].__module__.rpartition(".")[2] == name
    assert metric.columns and set(metric.columns.values()) <= {"higher", "lower", "neither"}
    assert metric.bounds[0] < metric.bounds[1]


def test_columns_belong_to_one_metric_each() -> None:
    columns = [column for name in METRICS for column in METRICS[name].columns]
    assert len(columns) == len(set(columns))

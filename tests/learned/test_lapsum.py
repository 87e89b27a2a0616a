"""LapSum: the sum it promises, its hard limit, its gradient, and the threshold against plain bisection."""

from __future__ import annotations

import pytest
import torch

from aha.learned.lapsum import laplace_cdf, soft_masks_lapsum, thresholds
from aha.learned.loss import ObjectiveConfig, soft_masks
from aha.learned.ordering import standardised
from aha.learned.regions import grid_regions


def scores(count: int, power: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return standardised(torch.rand(2, count, generator=generator, dtype=torch.float64) ** power)


@pytest.mark.parametrize("count", [5, 49, 784])
@pytest.mark.parametrize("temperature", [0.1, 0.01, 1e-4])
@pytest.mark.parametrize("power", [1.0, 6.0])
def test_masks_sum_to_k_exactly(count: int, temperature: float, power: float) -> None:
    counts = torch.tensor([1, 2, count // 2, count - 1])
    masks = soft_masks_lapsum(scores(count, power), counts, temperature)
    assert masks.shape == (2, 4, count)
    assert float(masks.min()) >= 0 and float(masks.max()) <= 1
    assert torch.allclose(masks.sum(dim=-1), counts.double().expand(2, -1), atol=1e-9)
    assert bool((masks.diff(dim=1) >= -1e-12).all())


def test_thresholds_are_those_of_bisection() -> None:
    units, wanted = scores(30, 3.0) / 0.05, torch.tensor([[0.3, 4.0, 17.5, 29.8]], dtype=torch.float64).expand(2, -1)
    low, high = torch.full_like(wanted, -1e3), torch.full_like(wanted, 1e3)
    for _ in range(200):
        middle = (low + high) / 2
        is_low = laplace_cdf(units[:, None] - middle[..., None]).sum(dim=-1) > wanted
        low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
    assert torch.allclose(thresholds(units, wanted), low, atol=1e-6)


def test_cold_masks_are_hard_masks() -> None:
    values, counts = scores(36), torch.tensor([3, 10, 35])
    ranks = values.argsort(dim=-1, descending=True).argsort(dim=-1)
    hard = (ranks[:, None] < counts[:, None]).double()
    assert float((soft_masks_lapsum(values, counts, 1e-12) - hard).abs().mean()) < 1e-3


def test_gradient_is_that_of_the_solution() -> None:
    raw = torch.rand(2, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: soft_masks_lapsum(x, torch.tensor([1, 3, 6]), 0.1), (raw,))


def test_flat_and_extreme_scores_stay_finite_in_single_precision() -> None:
    for raw in (torch.ones(1, 784), torch.eye(1, 784) * 1000.0):
        leaf = raw.clone().requires_grad_()
        masks = soft_masks_lapsum(standardised(leaf), torch.tensor([1, 300, 783]), 0.01)
        masks.square().sum().backward()
        assert bool(masks.isfinite().all()) and bool(leaf.grad.isfinite().all())


def test_the_objective_takes_it_by_name_with_seeded_noise() -> None:
    maps, counts = torch.rand(1, 28, 28), torch.tensor([5, 20])
    regions = grid_regions((28, 28), 7, (0.0, 0.0), maps)
    config = ObjectiveConfig(order="lapsum", noise=0.5)
    quiet = soft_masks(maps, regions, counts, 0.05, config)
    noisy, again = (soft_masks(maps, regions, counts, 0.05, config, [torch.Generator().manual_seed(3)]) for _ in "ab")
    assert torch.equal(noisy, again) and not torch.allclose(noisy, quiet, atol=1e-3)
    assert torch.allclose(noisy.sum(dim=-1), counts.float()[None], atol=1e-3)

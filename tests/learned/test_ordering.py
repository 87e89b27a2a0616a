"""Soft orders: their hard limit, what they conserve, their gradients, and the agreement of their two forms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aha.learned.ordering import (
    gumbel_noise,
    soft_masks_binned,
    soft_masks_full,
    soft_permutation,
    standardised,
    target_positions,
)
from aha.learned.regions import stratified_counts

FORMS = [soft_masks_full, soft_masks_binned]


def scores(count: int, batch: int = 2, power: float = 1.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return standardised(torch.rand(batch, count, generator=generator, dtype=torch.float64) ** power)


def spaced(count: int, seed: int = 0) -> Tensor:
    """Scores that are the target positions themselves, in some order."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return standardised(target_positions(count, torch.zeros(1, dtype=torch.float64))[order][None])


def hard_masks(values: Tensor, counts: Tensor) -> Tensor:
    ranks = values.argsort(dim=-1, descending=True).argsort(dim=-1)
    return (ranks[:, None, :] < counts[:, None]).double()


@pytest.mark.parametrize("form", FORMS)
def test_cold_orders_are_hard_orders(form) -> None:
    values, counts = spaced(36), torch.tensor([3, 10, 20, 35])
    soft = form(values, counts, 1e-5, iterations=200)
    assert torch.allclose(soft, hard_masks(values, counts), atol=1e-3)


def test_cold_permutation_sorts() -> None:
    values = spaced(25, seed=3)
    matrix = soft_permutation(values, 1e-5, iterations=200)
    assert torch.equal(matrix.argmax(dim=1)[0], values[0].argsort(descending=True))
    assert torch.allclose(torch.einsum("bij,bi->bj", matrix, values), values.sort(descending=True).values, atol=1e-3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("temperature", [0.1, 0.03])
def test_masks_lie_in_the_unit_interval_grow_with_k_and_sum_to_k(form, temperature: float) -> None:
    counts = torch.tensor([1, 5, 20, 48])
    masks = form(scores(49), counts, temperature, iterations=200)
    assert masks.shape == (2, 4, 49)
    assert float(masks.min()) >= 0 and float(masks.max()) <= 1 + 1e-9
    assert bool((masks.diff(dim=1) >= -1e-9).all())
    assert torch.allclose(masks.sum(dim=-1), counts.double().expand(2, -1), atol=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_regions_come_last_so_masks_stay_in_bounds_far_from_convergence(form) -> None:
    masks = form(scores(196, power=6.0), stratified_counts(196, 16), 0.003, iterations=3)
    assert float(masks.min()) >= 0 and float(masks.max()) <= 1 + 1e-9


def test_rows_and_columns_sum_to_one() -> None:
    matrix = soft_permutation(scores(40), 0.05, iterations=300)
    for axis in (1, 2):
        assert torch.allclose(matrix.sum(dim=axis), torch.ones(2, 40, dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_shift_and_scale_of_the_map_do_not_matter(form) -> None:
    raw, counts = torch.rand(2, 64, dtype=torch.float64), stratified_counts(64, 8)
    plain, moved = (form(standardised(values), counts, 0.02) for values in (raw, 7.0 * raw - 3.0))
    assert torch.allclose(plain, moved, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_gradients(form) -> None:
    raw = torch.rand(1, 9, dtype=torch.float64, requires_grad=True)
    counts = torch.tensor([2, 5, 8])
    assert torch.autograd.gradcheck(lambda x: form(standardised(x), counts, 0.05, iterations=8), (raw,))


@pytest.mark.parametrize("form", FORMS)
def test_flat_scores_share_equally_and_have_finite_gradients(form) -> None:
    raw = torch.ones(1, 16, requires_grad=True)
    masks = form(standardised(raw), torch.tensor([4, 8]), 0.05)
    assert torch.allclose(masks[0, 0], torch.full((16,), 0.25), atol=1e-3)
    masks.square().sum().backward()
    assert bool(raw.grad.isfinite().all())


@pytest.mark.parametrize("count", [49, 196, 784])
@pytest.mark.parametrize("steps", [8, 16, 32])
@pytest.mark.parametrize("temperature", [0.1, 0.03, 0.01])
@pytest.mark.parametrize("power", [1.0, 4.0])
def test_the_two_forms_agree(count: int, steps: int, temperature: float, power: float) -> None:
    """Stated tolerance: on average 0.01 per region and step; from the paper's 16 steps on, nowhere more than 0.06."""
    values, counts = scores(count, batch=1, power=power), stratified_counts(count, steps)
    full, binned = (form(values, counts, temperature) for form in FORMS)
    assert float((full - binned).abs().mean()) < 0.01
    if steps >= 16:
        assert float((full - binned).abs().max()) < 0.06


def test_binned_gradients_point_the_same_way() -> None:
    directions = []
    weights = torch.rand(1, 16, 196, dtype=torch.float64)
    for form in FORMS:
        raw = scores(196, batch=1).clone().requires_grad_()
        (form(raw, stratified_counts(196, 16), 0.03) * weights).sum().backward()
        directions.append(raw.grad.flatten())
    assert float(torch.cosine_similarity(*directions, dim=0)) > 0.99


def test_binned_is_finite_in_float32_for_extreme_scores() -> None:
    raw = torch.zeros(1, 784)
    raw[0, 0] = 1000.0  # one peak: standardised to 28 deviations
    raw.requires_grad_()
    masks = soft_masks_binned(standardised(raw), stratified_counts(784, 16), 0.01)
    masks.sum().backward()
    assert bool(masks.isfinite().all()) and bool(raw.grad.isfinite().all())


def test_noise_is_seeded_and_explores() -> None:
    values, counts = scores(49).float(), stratified_counts(49, 8)
    draws = [gumbel_noise((2, 49, 9), torch.Generator().manual_seed(seed), values) for seed in (1, 1, 2)]
    masks = [soft_masks_binned(values, counts, 0.03, noise=noise) for noise in draws]
    assert torch.equal(masks[0], masks[1]) and not torch.allclose(masks[0], masks[2], atol=1e-3)
    assert float(draws[0].mean()) == pytest.approx(0.5772, abs=0.15)


def test_counts_are_stratified() -> None:
    middles = stratified_counts(160, 16)
    assert middles.tolist() == [5 + 10 * i for i in range(16)]
    for seed in range(5):
        drawn = stratified_counts(160, 16, torch.Generator().manual_seed(seed))
        assert bool((drawn.diff() >= 0).all()) and drawn.min() >= 1 and drawn.max() <= 159
        assert bool(((drawn - middles).abs() <= 5).all())

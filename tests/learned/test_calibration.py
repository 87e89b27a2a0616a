"""Calibrated maps: the same order, and a mass that follows the response."""

from __future__ import annotations

import torch

from aha.learned.calibration import calibrated, mean_response


def test_the_order_stays_and_values_are_positive() -> None:
    maps = torch.randn(3, 48, 48, generator=torch.Generator().manual_seed(0)).double()
    found = calibrated(maps, [0.5, 0.3, 0.15, 0.05])
    assert float(found.min()) > 0
    for before, after in zip(maps, found, strict=True):
        assert torch.equal(before.flatten().argsort(stable=True), after.flatten().argsort(stable=True))


def test_the_mass_follows_the_response() -> None:
    maps = torch.rand(1, 128, 128, generator=torch.Generator().manual_seed(0))
    response = [0.4, 0.3, 0.2, 0.1]
    ordered = calibrated(maps, response).flatten().sort(descending=True).values
    shares = ordered.view(4, -1).sum(dim=1) / ordered.sum()
    assert torch.allclose(shares, torch.tensor(response), atol=0.03)


def test_a_flat_map_stays_flat_and_finite() -> None:
    found = calibrated(torch.ones(1, 16, 16), [0.7, 0.3])
    assert bool(found.isfinite().all()) and float(found.max() - found.min()) == 0


def test_the_response_is_the_slope_of_the_curves() -> None:
    """Straight curves carry the same everywhere (up to the floor that keeps values apart); a jump carries all."""
    line = torch.linspace(0, 1, 5)[None]
    even = torch.tensor(mean_response(1 - line, line))
    assert torch.allclose(even, torch.full((4,), 0.25), atol=0.01) and bool((even.diff() < 0).all())
    jump = torch.tensor([[0.0, 1.0, 1.0, 1.0, 1.0]])
    assert mean_response(1 - jump, jump)[0] > 0.97


def test_noise_in_the_curves_is_no_response() -> None:
    falling = torch.tensor([[0.9, 0.5, 0.6, 0.2, 0.1]])
    found = torch.tensor(mean_response(falling, falling.flip(-1)))
    assert bool((found > 0).all()) and abs(float(found.sum()) - 1) < 1e-5 and bool((found.diff() <= 0).all())

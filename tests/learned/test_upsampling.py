"""Upsampling along outlines: what it must keep, and where it must stop."""

from __future__ import annotations

import pytest
import torch

from aha.learned.upsampling import upsampled_twice


def guides(size: int, contrast: float) -> tuple[torch.Tensor, torch.Tensor]:
    """A picture of two halves, at the coarse and at the fine grid; the border lies on a border of coarse cells."""
    fine = torch.zeros(1, 1, 2 * size, 2 * size)
    fine[..., size:] = contrast
    return torch.nn.functional.avg_pool2d(fine, 2), fine


@pytest.mark.parametrize("contrast", [0.0, 5.0])
def test_a_flat_map_stays_flat(contrast: float) -> None:
    coarse, fine = guides(4, contrast)
    assert torch.allclose(upsampled_twice(torch.full((1, 2, 4, 4), 3.0), coarse, fine), torch.full((1, 2, 8, 8), 3.0))


def test_values_stop_at_an_outline_and_flow_where_there_is_none() -> None:
    values = torch.zeros(1, 1, 4, 4)
    values[..., 2:] = 1.0
    sharp = upsampled_twice(values, *guides(4, 9.0))[0, 0]
    assert float(sharp[:, :4].max()) < 1e-3 and float(sharp[:, 4:].min()) > 1 - 1e-3
    smooth = upsampled_twice(values, *guides(4, 0.0))[0, 0]
    assert 0.1 < float(smooth[4, 3]) < 0.5 < float(smooth[4, 4]) < 0.9  # the same step, spread over the border


def test_it_agrees_with_a_direct_sum() -> None:
    generator = torch.Generator().manual_seed(0)
    values, fine = torch.randn(1, 1, 3, 4, generator=generator), torch.randn(1, 2, 6, 8, generator=generator)
    coarse = torch.nn.functional.avg_pool2d(fine, 2)
    found = upsampled_twice(values, coarse, fine)
    y, x = 3, 5  # lies in cell (1, 2), below and right of its middle
    weights, total = 0.0, 0.0
    for cy in range(3):
        for cx in range(1, 4):
            far = (cy - (1 + 0.25)) ** 2 + (cx - (2 + 0.25)) ** 2
            unlike = float((coarse[0, :, cy, cx] - fine[0, :, y, x]).square().sum())
            weight = float(torch.exp(torch.tensor(-far / (2 * 0.7**2) - unlike)))
            weights, total = weights + weight, total + weight * float(values[0, 0, cy, cx])
    assert float(found[0, 0, y, x]) == pytest.approx(total / weights, rel=1e-5)


def test_odd_sizes() -> None:
    assert upsampled_twice(torch.rand(2, 1, 3, 4), torch.rand(2, 5, 3, 4), torch.rand(2, 5, 5, 7)).shape == (2, 1, 5, 7)

"""Ranks, masks, references and the engine, against arithmetic and against direct slow versions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.ndimage import gaussian_filter
from torch import Tensor, nn

from aha.errors import SpecError
from aha.models import load_model
from aha.perturb.perturbation import (
    area,
    blend,
    deletion_masks,
    grid_of,
    insertion_masks,
    perturbed_outputs,
    rank_pixels,
    step_counts,
)
from aha.perturb.references import REFERENCES, load_reference, rise_kernel
from fakes import tiny_vit


@pytest.fixture
def model():
    return load_model(tiny_vit(), input_size=32, mean=[0.5, 0.4, 0.3], std=[0.2, 0.3, 0.4])


def test_ranks_order_distinct_values() -> None:
    values = torch.rand(7, 5)
    ranks = rank_pixels(values)
    assert sorted(ranks.flatten().tolist()) == list(range(35))
    by_rank = values.flatten()[ranks.flatten().argsort()]
    assert torch.equal(by_rank, values.flatten().sort(descending=True).values)


def test_ties_are_broken_by_the_stated_rule() -> None:
    flat = torch.zeros(6, 6)
    assert torch.equal(rank_pixels(flat, ties="raster").flatten(), torch.arange(36))
    one, again, other = (rank_pixels(flat, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, again) and not torch.equal(one, other)
    partly = flat.clone()
    partly[3, 3] = 1
    assert rank_pixels(partly, seed=5)[3, 3] == 0


def test_cells_are_ranked_whole() -> None:
    cells = torch.tensor([[1.0, 4.0], [3.0, 2.0]])
    values = cells.repeat_interleave(3, 0).repeat_interleave(2, 1)  # cells of 3 x 2 pixels
    assert grid_of(values) == (2, 2)
    ranks = rank_pixels(values, grid=(2, 2))
    first = (ranks < 6).nonzero()
    assert first.min(0).values.tolist() == [0, 2] and first.max(0).values.tolist() == [2, 3]
    assert grid_of(torch.rand(6, 4)) is None
    assert grid_of(torch.ones(6, 4)) == (1, 1)


def test_masks_are_complements_and_nested() -> None:
    ranks = rank_pixels(torch.rand(8, 8))
    counts = torch.tensor([0, 10, 64])
    gone, shown = deletion_masks(ranks, counts), insertion_masks(ranks, counts)
    assert torch.equal(gone, ~shown)
    assert shown.sum(dim=(1, 2)).tolist() == [0, 10, 64]
    assert bool((shown[1] <= shown[2]).all())


def test_steps_end_at_everything() -> None:
    assert step_counts(10, 5) == [0, 2, 4, 6, 8, 10]
    assert step_counts(3, 224) == [0, 1, 2, 3]
    assert step_counts(50176, 224)[1] == 224


def test_area_is_the_trapezoid_rule() -> None:
    x = torch.linspace(0, 1, 11, dtype=torch.float64)
    assert area(x, x) == pytest.approx(0.5)
    values = torch.rand(11, dtype=torch.float64)
    expected = (values.sum() - values[0] / 2 - values[-1] / 2) / 10
    assert float(area(x, values)) == pytest.approx(float(expected))
    assert float(area(x[1:-1], torch.ones(9, dtype=torch.float64))) == pytest.approx(1.0)  # a part of the range


def test_soft_blend_agrees_with_the_hard_one_at_its_ends() -> None:
    image, reference = torch.rand(2, 3, 4, 4), torch.rand(2, 3, 4, 4)
    keep = torch.rand(2, 4, 4) > 0.5
    assert torch.allclose(blend(image, reference, keep), blend(image, reference, keep.float()))


def test_engine_equals_one_by_one_and_is_differentiable(model) -> None:
    pixels, references, masks = torch.rand(2, 3, 32, 32), torch.rand(2, 3, 32, 32), torch.rand(6, 32, 32)
    owners = torch.tensor([0, 0, 0, 1, 1, 0])
    masks.requires_grad_()
    model.chunks.size = 4
    outputs = perturbed_outputs(model, pixels, references, owners, lambda part: masks[part])
    for row, owner in enumerate(owners):
        mixed = pixels[owner] * masks[row] + references[owner] * (1 - masks[row])
        inputs = (mixed - torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)) / torch.tensor([0.2, 0.3, 0.4]).view(3, 1, 1)
        assert torch.allclose(outputs[row], model.module(inputs[None])[0], atol=1e-4)
    (slope,) = torch.autograd.grad(outputs[:, 0].sum(), masks)
    assert bool((slope.abs().amax(dim=(1, 2)) > 0).all())


@pytest.mark.parametrize(("size", "sigma"), [(11, 5.0), (31, 31.0), (5, 1.0)])
def test_rise_kernel_is_scipys(size: int, sigma: float) -> None:
    impulse = np.zeros((size, size))
    impulse[size // 2, size // 2] = 1
    ours = np.outer(rise_kernel(size, sigma), rise_kernel(size, sigma))
    np.testing.assert_allclose(ours, gaussian_filter(impulse, sigma), atol=1e-12)


def test_rise_blur_is_a_zero_padded_convolution_after_normalisation(model) -> None:
    pixels = torch.rand(1, 3, 32, 32)
    kernel = torch.from_numpy(np.outer(rise_kernel(11, 5.0), rise_kernel(11, 5.0))).float()
    inputs = model.to_inputs(pixels)
    direct = F.conv2d(inputs, kernel.expand(3, 1, 11, 11), padding=5, groups=3)
    ours = model.to_inputs(load_reference("rise_blur")(model, pixels, torch.tensor([0])))
    assert torch.allclose(ours, direct, atol=1e-5)


# One reads a file, one may fail, and one is made of the other images of the batch.
@pytest.mark.parametrize("name", [n for n in REFERENCES if n not in ("image", "adaptive_blur", "neighbours")])
def test_references_have_the_images_shape_and_leave_it_alone(name: str, model) -> None:
    pixels = torch.rand(2, 3, 32, 32)
    kept = pixels.clone()
    found = load_reference(name)(model, pixels, torch.tensor([0, 1]))
    assert found.shape == pixels.shape and bool(found.isfinite().all()) and torch.equal(pixels, kept)
    alone = load_reference(name)(model, pixels[1:], torch.tensor([1]))
    assert torch.allclose(found[1:], alone, atol=1e-6)  # independent of the neighbours
    assert load_reference(str(load_reference(name))) == load_reference(name)


def test_zero_is_not_black(model) -> None:
    pixels = torch.rand(1, 3, 32, 32)
    zero = load_reference("zeros_normalised")(model, pixels, torch.tensor([0]))
    assert torch.allclose(zero[0, :, 0, 0], torch.tensor([0.5, 0.4, 0.3]))
    assert float(load_reference("black")(model, pixels, torch.tensor([0])).abs().max()) == 0


class _Brightness(nn.Module):
    """Two classes: the contrast of the picture, and a constant."""

    def forward(self, x: Tensor) -> Tensor:
        contrast = x.flatten(1).std(dim=1)
        return torch.stack([contrast * 40 - 4, torch.zeros_like(contrast)], dim=1)


def test_adaptive_blur_grows_until_the_class_is_gone() -> None:
    model = load_model(_Brightness(), input_size=64, mean=[0.5] * 3, std=[0.5] * 3)
    pixels = torch.rand(2, 3, 64, 64)
    pixels[1] = 0.5 + 0.02 * (pixels[1] - 0.5)  # no contrast: hidden by the smallest blur
    chosen = load_reference("adaptive_blur(smallest=3, largest=41, threshold=0.05)")
    blurred = chosen(model, pixels, torch.tensor([0, 0]))
    scores = model.scores(model.to_inputs(blurred), torch.tensor([0, 0]))
    assert bool((scores <= 0.05).all())
    stubborn = load_reference("adaptive_blur(smallest=3, largest=5, threshold=0.0)")
    assert bool(stubborn(model, pixels, torch.tensor([1, 1])).isnan().all())


@pytest.mark.parametrize("options", ["smallest=30", "smallest=0", "smallest=31, largest=29"])
def test_adaptive_blur_refuses_kernels_that_cannot_be(options: str) -> None:
    with pytest.raises(SpecError, match="adaptive_blur"):
        load_reference(f"adaptive_blur({options})")


def test_adaptive_blur_looks_at_probabilities_whatever_the_score() -> None:
    pixels, classes = torch.rand(2, 3, 64, 64), torch.tensor([0, 0])
    chosen = load_reference("adaptive_blur(smallest=3, largest=41, threshold=0.05)")

    def blurred(score: str) -> Tensor:
        return chosen(
            load_model(_Brightness(), input_size=64, mean=[0.5] * 3, std=[0.5] * 3, score=score), pixels, classes
        )

    assert blurred("softmax").isfinite().all()
    assert torch.equal(blurred("softmax"), blurred("log_softmax"))
    assert torch.equal(blurred("softmax"), blurred("logit"))
    with pytest.raises(SpecError, match="a regression has none"):
        blurred("regression")


@pytest.mark.parametrize("text", ["blur(kernel=4)", "blur(sigma=0)", "rise_blur(kernel=-3)", "fog"])
def test_bad_references_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        load_reference(text)


def test_mean_fits_the_channels() -> None:
    grey = load_model(nn.Flatten(), input_size=4, mean=[0.5], std=[0.5])
    found = load_reference("mean")(grey, torch.rand(1, 1, 4, 4), torch.tensor([0]))
    assert float(found[0, 0, 0, 0]) == pytest.approx((0.485 + 0.456 + 0.406) / 3)
    with pytest.raises(SpecError, match="channels"):
        load_reference("mean(colour=(0.1, 0.2))")(grey, torch.rand(1, 1, 4, 4), torch.tensor([0]))

"""Extremal perturbations against the published algorithm, written out pixel by pixel, and where the answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor, nn

from aha.errors import SpecError
from aha.methods import load_method
from aha.methods.perturbation.extremal_perturbation import between, cropped, smooth_masks, sorted_goal
from aha.metrics.statistics import spearman
from aha.models import load_model
from fakes import SIZE, TinyCNN, randomised


def slow_weights(side: int) -> tuple[Tensor, Tensor]:
    """How much each pixel sees of each parameter (pixels, parameters), and which ones it looks at, with the margins.

    TorchRay's geometry: a parameter every 7 pixels, the first at pixel 0; the mask goes on for sigma = 21 pixels to all
    sides, up to a parameter's place; a pixel looks at the parameters up to 4 away from the one that it follows.
    """
    count = math.ceil(side / 7)
    pixels, places = torch.arange(-21, 7 * (count + 2) + 1), torch.arange(-7, count + 7)
    apart = pixels[:, None] - 7 * places  # (pixels, parameters): along one side
    looks = (pixels.div(7, rounding_mode="floor")[:, None] - places).abs() <= 4
    distance = (apart[:, None, :, None] ** 2 + apart[None, :, None] ** 2).double().sqrt() / 21
    kernel = torch.where(distance < 0.5, 1.0, (-2 * (distance - 0.5) ** 2).exp())
    both = looks[:, None, :, None] & looks[None, :, None]
    return kernel.flatten(2).flatten(0, 1), both.flatten(2).flatten(0, 1)


def slow_masks(parameters: Tensor, weights: tuple[Tensor, Tensor]) -> Tensor:
    """Smooth maxima with a coldness of 20; parameters beyond the border are zero."""
    kernel, looks = weights
    padded = nn.functional.pad(parameters, (7, 7, 7, 7)).flatten(1)
    faded = kernel * padded[:, None]  # (m, pixels, parameters)
    share = (20 * faded).masked_fill(~looks, -math.inf).softmax(dim=2)
    side = math.isqrt(len(kernel))
    return (share * faded).sum(dim=2).view(-1, side, side)


def slow_blurs(image: Tensor) -> Tensor:
    """Eight degrees of a Gaussian with zeros around, from 20 pixels to none (8, C, H, W)."""
    values = image.numpy()
    found = [gaussian_filter(values, (0, sigma, sigma), mode="constant") for sigma in np.linspace(20, 0, 8)[:-1]]
    return torch.from_numpy(np.stack([*found, values]))


def slow_extremal(module: nn.Module, image: Tensor, label: int, areas: list[float], steps: int) -> Tensor:
    """The published loop, by autograd through the model and torch's own optimiser: masks (areas, H, W)."""
    side = image.shape[-1]
    weights, blurs = slow_weights(side), slow_blurs(image)
    count = math.ceil(side / 7)
    parameters = torch.ones(len(areas), count, count, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([parameters], lr=0.01, momentum=0.9, dampening=0.9)
    strength = 300.0
    for step in range(steps):
        whole = slow_masks(parameters, weights)
        masks = whole[:, 21 : 21 + side, 21 : 21 + side]
        shown = torch.zeros(len(areas), *image.shape, dtype=torch.float64)
        for level in range(8):  # linear between two neighbouring degrees
            shown = shown + (1 - (7 * masks - level).abs()).clamp(min=0)[:, None] * blurs[level]
        score = module(shown.flip(3) if step % 2 == 0 else shown)[:, label].sum()
        loss = -score
        for mask, area in zip(whole.flatten(1), areas, strict=True):
            goal = torch.ones_like(mask)
            goal[: int(len(mask) * (1 - area))] = 0
            loss = loss + strength * ((mask.sort().values - goal) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        parameters.data.clamp_(0, 1)
        strength *= 1.0035
    return masks.detach()


def test_masks_are_smooth_maxima_of_what_a_pixel_sees() -> None:
    parameters = torch.rand(2, 2, 2, generator=torch.Generator().manual_seed(0)).double()
    assert torch.allclose(smooth_masks(parameters), slow_masks(parameters, slow_weights(14)), atol=1e-12)
    spot = torch.zeros(1, 9, 9)
    spot[0, 4, 4] = 1.0
    mask = smooth_masks(spot)[0]
    assert mask.shape == (14 * 7 + 1, 14 * 7 + 1)
    middle = 21 + 4 * 7
    assert float(mask.max()) == pytest.approx(1.0, abs=0.01)
    assert float(mask[middle - 7 : middle + 8, middle - 7 : middle + 8].min()) > 0.98, "flat within half of sigma"
    assert (mask[middle, middle + 15 : middle + 34].diff() < 0).all()


def test_goals_and_crops() -> None:
    assert sorted_goal(0.25, 8).tolist() == [0] * 6 + [1] * 2
    masks = smooth_masks(torch.rand(1, 5, 6))
    assert cropped(masks, (32, 41)).shape == (1, 32, 41)


def test_masks_choose_between_degrees() -> None:
    degrees = torch.tensor([0.0, 1.0, 4.0]).view(3, 1, 1, 1).expand(3, 1, 2, 2)
    shown = between(degrees, torch.tensor([[[0.0, 0.25], [0.75, 1.0]]]))
    assert shown.flatten().tolist() == [0.0, 0.5, 2.5, 4.0]


@pytest.mark.parametrize(("steps", "tolerance"), [(1, 1e-9), (12, 5e-3)])
def test_it_is_the_published_algorithm(images: Tensor, steps: int, tolerance: float) -> None:
    """Up to the order of equal values, of which the first masks have many: the area's gradient hangs on it a little."""
    module, images = randomised(TinyCNN()).double(), images[:1].double()
    method = load_method(f"extremal_perturbation(areas=(0.1, 0.3), steps={steps})")
    (found,) = method(load_model(module), images, torch.tensor([4]))
    expected = slow_extremal(module, images[0], 4, [0.1, 0.3], steps).mean(dim=0)
    assert found.shape == (SIZE, SIZE)
    assert float((found - expected).abs().max()) < tolerance
    assert float(spearman(found.flatten(), expected.flatten())) > 0.98


class Spot(nn.Module):
    """Looks at the middle of the picture only."""

    def forward(self, x: Tensor) -> Tensor:
        bright = x[:, 0, 28:56, 28:56].mean(dim=(1, 2))  # the same when mirrored
        return torch.stack([20 * bright, -bright], dim=1)


def test_it_finds_the_only_place_that_counts() -> None:
    """And not the border, whose parameters are the cheapest where the area is taken without a margin."""
    method = load_method("extremal_perturbation(areas=(0.1,), steps=120, reference=zeros_normalised)")
    (found,) = method(load_model(Spot()), torch.ones(1, 3, 84, 84), torch.tensor([0]))
    inner, border = found[28:56, 28:56], torch.ones(84, 84, dtype=torch.bool)
    border[14:70, 14:70] = False
    assert float(inner.mean()) > 0.8
    assert float(found[border].mean()) < 0.1
    assert float(found.mean()) == pytest.approx(0.1 * (126 / 84) ** 2, abs=0.06), "the area counts the margin too"


@pytest.mark.parametrize("text", ["areas=()", "areas=(0.0,)", "areas=(1.0,)", "steps=0", "levels=1"])
def test_bad_parameters_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="extremal_perturbation"):
        load_method(f"extremal_perturbation({text})")

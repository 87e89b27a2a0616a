"""Extremal perturbations against a plain optimisation loop, and on a model whose only evidence is known."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aha.errors import SpecError
from aha.methods import load_method
from aha.methods.extremal_perturbation import smooth_masks, sorted_goals
from aha.models import load_model
from fakes import SIZE, TinyCNN, randomised


def slow_masks(parameters: Tensor) -> Tensor:
    """Place by place, from distances in pixels."""
    h, w = parameters.shape[1:]
    result = []
    for y in range(h):
        for x in range(w):
            values = []
            for v in range(y - 4, y + 5):
                for u in range(x - 4, x + 5):
                    distance = 7 * math.hypot(v - y, u - x)
                    fade = math.exp(-2 * max(0.0, distance / 21 - 0.5) ** 2)
                    inside = 0 <= v < h and 0 <= u < w
                    values.append(fade * parameters[:, v, u] if inside else torch.zeros(len(parameters)).double())
            stacked = torch.stack(values)
            result.append((stacked * (20 * stacked).softmax(dim=0)).sum(dim=0))
    return torch.stack(result, dim=1).view_as(parameters)


def test_masks_are_smooth_maxima() -> None:
    parameters = torch.rand(2, 5, 6, generator=torch.Generator().manual_seed(0)).double()
    assert torch.allclose(smooth_masks(parameters), slow_masks(parameters), atol=1e-12)
    spot = torch.zeros(1, 9, 9)
    spot[0, 4, 4] = 1.0
    mask = smooth_masks(spot)[0]
    assert float(mask.max()) == pytest.approx(1.0, abs=0.01)
    assert float(mask[3:6, 3:6].min()) == pytest.approx(1.0, abs=0.01), "flat within half of sigma"
    assert (mask[4, 5:].diff() < 0).all()
    assert float(mask[4, 8]) < 0.2


def test_goals() -> None:
    assert sorted_goals((0.25, 0.5), 8).tolist() == [[0] * 6 + [1] * 2, [0] * 4 + [1] * 4]


def test_it_is_gradient_ascent_on_its_objective(images: Tensor) -> None:
    """End to end by autograd through the model and torch's own optimiser."""
    module = randomised(TinyCNN()).double()
    images = images.double()
    classes = torch.tensor([0, 1, 2, 4])
    expected = []
    for image, chosen in zip(images, classes.tolist(), strict=True):
        parameters = torch.ones(2, 5, 5, dtype=torch.float64, requires_grad=True)
        optimiser = torch.optim.SGD([parameters], lr=0.01, momentum=0.9, dampening=0.9)
        weight = 300.0
        for step in range(6):
            masks = smooth_masks(parameters)
            shown = F.interpolate(masks[:, None], size=(SIZE, SIZE), mode="bilinear") * image
            score = module(shown.flip(3) if step % 2 == 0 else shown)[:, chosen]
            misfit = (masks.flatten(1).sort(dim=1).values - sorted_goals((0.1, 0.3), 25)) ** 2
            loss = weight * misfit.mean(dim=1).sum() - score.sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            parameters.data.clamp_(0, 1)
            weight *= 1.0035
        expected.append(smooth_masks(parameters).mean(dim=0).detach())
    method = load_method("extremal_perturbation(areas=(0.1, 0.3), steps=6, reference=zeros_normalised)")
    found = method(load_model(module), images, classes)
    assert (found - torch.stack(expected)).abs().max() < 1e-9


def test_it_finds_the_only_place_that_counts() -> None:
    class Corner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            bright = x[:, 0, 28:, 28:].mean(dim=(1, 2)) + x[:, 0, 28:, :28].mean(dim=(1, 2))  # alike when mirrored
            return torch.stack([20 * bright, -bright], dim=1)

    method = load_method("extremal_perturbation(areas=(0.4,), steps=150, reference=zeros_normalised)")
    found = method(load_model(Corner()), torch.ones(1, 3, 56, 56), torch.tensor([0]))[0]
    assert found.shape == (8, 8)
    assert float(found[5:].mean()) > 0.8
    assert float(found[:3].mean()) < 0.3
    assert float(found.mean()) == pytest.approx(0.4, abs=0.15)


@pytest.mark.parametrize("text", ["areas=()", "areas=(0.0,)", "areas=(1.0,)", "steps=0"])
def test_bad_parameters_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="extremal_perturbation"):
        load_method(f"extremal_perturbation({text})")

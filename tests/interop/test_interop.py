"""Our methods inside other people's pipelines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import Saliency
from captum.metrics import infidelity, sensitivity_max
from torch import Tensor, nn

import aha
from aha.interop import CaptumAttribution, explain_func
from fakes import CLASSES, SIZE, TinyCNN, randomised, tiny_vit


@pytest.fixture(params=["cnn", "vit"])
def module(request: pytest.FixtureRequest) -> nn.Module:
    return randomised(TinyCNN()) if request.param == "cnn" else tiny_vit()


def test_attributions_have_the_shape_of_the_inputs_and_sum_to_the_map(module: nn.Module, images: Tensor) -> None:
    classes = torch.tensor([0, 1, 2, 3])
    found = CaptumAttribution(module, "grad_cam").attribute(images, target=classes)
    assert found.shape == images.shape
    assert torch.allclose(found.sum(dim=1), aha.explain(module, images, "grad_cam", classes).maps, atol=1e-6)


def test_targets_as_captum_takes_them(module: nn.Module, images: Tensor) -> None:
    attribution = CaptumAttribution(module, "gradient(channels='sum')")
    classes = torch.tensor([2] * 4)
    expected = attribution.attribute(images, target=classes)
    assert torch.equal(attribution.attribute(images, target=2), expected)
    assert torch.equal(attribution.attribute(images, target=torch.tensor(2)), expected)
    with torch.no_grad():
        best = module(images).argmax(dim=1)
    assert torch.equal(attribution.attribute(images), attribution.attribute(images, target=best))
    one = attribution.attribute(images[:1], target=torch.tensor([2]))
    assert torch.allclose(one, expected[:1], atol=1e-6)


def test_captum_metrics_accept_it(images: Tensor) -> None:
    module = randomised(TinyCNN())
    attribution = CaptumAttribution(module, "input_x_gradient")

    def perturb(inputs: Tensor) -> tuple[Tensor, Tensor]:
        noise = 0.01 * torch.randn_like(inputs)
        return noise, inputs - noise

    found = infidelity(module, perturb, images, attribution.attribute(images, target=1), target=1, n_perturb_samples=3)
    assert found.shape == (4,) and found.isfinite().all()
    most = sensitivity_max(attribution.attribute, images, target=1, n_perturb_samples=2)
    assert most.shape == (4,) and most.isfinite().all()


def test_it_is_a_drop_in_for_captums_own(images: Tensor) -> None:
    module = randomised(TinyCNN())
    theirs = Saliency(module).attribute(images.clone().requires_grad_(), target=1, abs=False)
    ours = CaptumAttribution(module, "gradient(channels='sum')").attribute(images, target=1)
    assert torch.allclose(ours.sum(dim=1), theirs.sum(dim=1), atol=1e-6)


@pytest.mark.parametrize("as_arrays", [True, False])
def test_quantus_calls(module: nn.Module, images: Tensor, as_arrays: bool) -> None:
    inputs: Any = images.numpy() if as_arrays else images
    classes: Any = np.array([0, 1, 2, 3]) if as_arrays else torch.tensor([0, 1, 2, 3])
    found = explain_func(module, inputs, classes, method="grad_cam", device="cpu", softmax=False)
    assert found.shape == (4, 1, SIZE, SIZE) and found.dtype == np.float32
    expected = aha.explain(module, images, "grad_cam", torch.tensor([0, 1, 2, 3])).numpy()
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-6)
    same = explain_func(module, inputs, CLASSES - 1)
    np.testing.assert_allclose(same[:, 0], aha.explain(module, images, "grad_cam", CLASSES - 1).numpy(), atol=1e-6)
    one = explain_func(module, inputs[:1], classes[:1])
    np.testing.assert_allclose(one, found[:1], atol=1e-5)

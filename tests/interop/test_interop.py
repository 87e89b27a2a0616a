"""Our methods inside other people's pipelines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from captum.attr import IntegratedGradients as CaptumIntegratedGradients
from captum.attr import LayerGradCam, Saliency
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


@pytest.mark.parametrize("baselines", [None, 0, 0.3, "one", "each"])
def test_integrated_gradients_with_captums_words(images: Tensor, baselines: Any) -> None:
    module, generator = randomised(TinyCNN()).double(), torch.Generator().manual_seed(3)
    inputs, classes = images.double(), torch.tensor([0, 1, 2, 3])
    given = {"one": images[:1] * 0.5, "each": torch.rand(images.shape, generator=generator)}.get(baselines, baselines)
    start = given.double() if isinstance(given, Tensor) else given
    options: dict[str, Any] = {"baselines": start, "n_steps": 24, "return_convergence_delta": True}
    theirs, off = CaptumIntegratedGradients(module).attribute(inputs, target=classes, method="gausslegendre", **options)
    ours, delta = CaptumAttribution(module, "integrated_gradients").attribute(inputs, target=classes, **options)
    assert torch.allclose(ours.sum(dim=1), theirs.sum(dim=1), atol=1e-5)
    assert delta.shape == (4,) and torch.allclose(delta, off, atol=1e-4)
    coarse = CaptumAttribution(module, "integrated_gradients").attribute(inputs, classes, baselines=start, n_steps=2)
    assert not torch.allclose(coarse, ours, atol=1e-4)


def test_baselines_may_be_references_by_name(images: Tensor) -> None:
    attribution = CaptumAttribution(randomised(TinyCNN()), "integrated_gradients")
    expected = aha.explain(attribution.model, images, "integrated_gradients(reference=blur, steps=4)").maps
    found = attribution.attribute((images,), baselines="blur", n_steps=4)[0]
    assert torch.allclose(found.sum(dim=1), expected, atol=1e-6)


def test_layers_as_captum_takes_them(images: Tensor) -> None:
    module = randomised(TinyCNN())
    expected = LayerGradCam(module, module.stem).attribute(images, target=1, relu_attributions=True)
    for layer in (module.stem, "stem"):
        found = CaptumAttribution(module, "grad_cam", layer).attribute(images, target=1).sum(dim=1)
        enlarged = nn.functional.interpolate(expected, (SIZE, SIZE), mode="bilinear")[:, 0]
        assert torch.allclose(found, enlarged, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "options", "says"),
    [
        ("grad_cam", {"n_steps": 3}, "grad_cam has no steps; leave out n_steps="),
        ("gradient", {"baselines": 0}, "gradient has no reference; leave out baselines="),
        ("grad_cam", {"return_convergence_delta": True}, "is for methods whose values sum to"),
        ("gradient_shap", {"return_convergence_delta": True}, "is for methods whose values sum to"),
        (
            "integrated_gradients",
            {"baselines": torch.zeros(2, 3)},
            r"baselines=\(2, 3\) for inputs of \(4, 3, 32, 32\)",
        ),
        ("integrated_gradients", {"baselines": torch.zeros(3, 3, 32, 32)}, "3 baselines for 4 inputs"),
    ],
)
def test_what_captums_words_do_not_mean(method: str, options: dict[str, Any], says: str, images: Tensor) -> None:
    with pytest.raises(aha.AhaError, match=says) as caught:
        CaptumAttribution(randomised(TinyCNN()), method).attribute(images, target=1, **options)
    assert "\n" not in str(caught.value)


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

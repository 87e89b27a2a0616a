"""Methods of the input gradient against captum, hooks on the model's own activations, and arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captum.attr import GradientShap
from captum.attr import GuidedBackprop as CaptumGuidedBackprop
from captum.attr import GuidedGradCam as CaptumGuidedGradCam
from timm.layers import QuickGELU
from torch import Tensor, nn

import aha
from agreement import CHOSEN, agrees, native
from aha.errors import CapabilityError, SpecError
from aha.methods import load_method
from aha.methods.base import seeded_generator
from aha.methods.gradients.guided_backprop import guided_gradients
from aha.models import load_model
from fakes import CLASSES, SIZE, FunctionalCNN, LinearModel, TinyCNN, changes, randomised, snapshot, tiny_vit

hooks_are_set = pytest.mark.filterwarnings("ignore:Setting backward hooks on ReLU")


@pytest.fixture
def cnn() -> nn.Module:
    module = randomised(TinyCNN())
    for part in module.modules():  # captum cannot follow in-place activations
        if isinstance(part, nn.ReLU):
            part.inplace = False
    return module


# Guided backpropagation


@hooks_are_set
def test_guided_backprop_equals_captum(cnn: nn.Module, images: Tensor) -> None:
    theirs = CaptumGuidedBackprop(cnn).attribute(images.clone().requires_grad_(), target=CHOSEN)
    agrees(native(cnn, images, "guided_backprop"), theirs.abs().amax(dim=1))
    agrees(native(cnn, images, "guided_backprop(channels='sum')"), theirs.sum(dim=1))
    assert not torch.allclose(native(cnn, images, "guided_backprop"), native(cnn, images, "gradient"), rtol=0.01)
    for part in cnn.modules():
        if isinstance(part, nn.ReLU):
            part.inplace = True
    agrees(native(cnn, images, "guided_backprop(channels='sum')"), theirs.sum(dim=1))


def clamped_by_hooks(module: nn.Module, kind: type[nn.Module], images: Tensor) -> Tensor:
    """Input gradients with what every module of one kind hands back clamped, by backward hooks."""
    handles = [
        part.register_full_backward_hook(lambda _part, into, _out: (into[0].clamp(min=0),))
        for part in module.modules()
        if isinstance(part, kind)
    ]
    assert handles
    inputs = images.clone().requires_grad_()
    (slopes,) = torch.autograd.grad(module(inputs).gather(1, CHOSEN[:, None]).sum(), inputs)
    for handle in handles:
        handle.remove()
    return slopes


@pytest.mark.parametrize("kind", [nn.GELU, nn.SiLU, nn.Hardswish, nn.ReLU6, nn.LeakyReLU, nn.Mish, nn.Tanh, QuickGELU])
def test_other_activations_are_clamped_alike(kind: type[nn.Module], images: Tensor) -> None:
    module = tiny_vit(act_layer=kind)
    theirs = clamped_by_hooks(module, kind, images)
    plain = torch.autograd.functional.vjp(module, images, F.one_hot(CHOSEN, CLASSES).float())[1]
    assert (theirs - plain).abs().max() > 0.1 * plain.abs().max()
    agrees(guided_gradients(load_model(module), images, CHOSEN), theirs)


@pytest.mark.parametrize("act", [F.gelu, F.silu, torch.relu, torch.tanh, lambda x: F.softplus(x, beta=2.0)])
def test_functional_activations_are_met(act: Callable[[Tensor], Tensor], images: Tensor) -> None:
    class Act(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return act(x)

    theirs = clamped_by_hooks(randomised(FunctionalCNN(Act())), Act, images)
    agrees(guided_gradients(load_model(randomised(FunctionalCNN(act))), images, CHOSEN), theirs)


def test_written_out_activations_leave_no_trace(images: Tensor) -> None:
    module = tiny_vit(act_layer=QuickGELU)
    before = snapshot(module)
    aha.explain(module, images, "guided_backprop")
    assert changes(before, snapshot(module)) == []


def test_a_model_without_activations_is_refused(images: Tensor) -> None:
    with pytest.raises(CapabilityError, match="nothing to guide; use gradient"):
        native(LinearModel(), images, "guided_backprop")


# Guided Grad-CAM


@hooks_are_set
def test_guided_grad_cam_equals_captum(cnn: nn.Module, images: Tensor) -> None:
    theirs = CaptumGuidedGradCam(cnn, cnn.body).attribute(
        images.clone().requires_grad_(), target=CHOSEN, interpolate_mode="bilinear"
    )
    agrees(native(cnn, images, "guided_grad_cam"), theirs.abs().amax(dim=1))


def test_guided_grad_cam_with_another_cam(cnn: nn.Module, images: Tensor) -> None:
    coarse = F.interpolate(native(cnn, images, "layer_cam(layer=-2)")[:, None], (SIZE, SIZE), mode="bilinear")
    fine = guided_gradients(load_model(cnn), images, CHOSEN)
    agrees(native(cnn, images, "guided_grad_cam(cam=layer_cam(layer=-2), channels='sum')"), (coarse * fine).sum(dim=1))
    assert load_method("guided_grad_cam(cam=rollout)").needs == {"attention", "gradients"}


# GradientSHAP


def draws(n: int, seed: int) -> tuple[list[float], list[Tensor]]:
    """What the method draws without noise: places on the path and colours."""
    generator = seeded_generator(seed)
    pairs = [(torch.rand((), generator=generator), torch.randn(3, 1, 1, generator=generator)) for _ in range(n)]
    return [float(a) for a, _ in pairs], [colour for _, colour in pairs]


def test_gradient_shap_equals_captum_with_the_same_draws(
    cnn: nn.Module, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, colours = draws(6, seed=3)
    start = torch.stack([colour.expand(3, SIZE, SIZE) for colour in colours])
    # captum repeats each image once per draw, and picks a baseline and a place for each of these.
    monkeypatch.setattr(np.random, "uniform", lambda _low, _high, size: np.resize(places, size))
    monkeypatch.setattr(np.random, "choice", lambda count, size, **_: np.resize(range(count), size))
    theirs = GradientShap(cnn).attribute(images, start, n_samples=6, stdevs=0.0, target=CHOSEN)
    agrees(native(cnn, images, "gradient_shap(n=6, seed=3)"), theirs.sum(dim=1))
    fixed = GradientShap(cnn).attribute(images, torch.zeros(1, 3, SIZE, SIZE), n_samples=6, target=CHOSEN)
    agrees(native(cnn, images, "gradient_shap(n=6, seed=3, reference=zeros_normalised)"), fixed.sum(dim=1))


def test_gradient_shap_approaches_integrated_gradients(cnn: nn.Module, images: Tensor) -> None:
    exact = native(cnn, images, "integrated_gradients")
    coarse, fine = (native(cnn, images, f"gradient_shap(n={n}, reference=zeros_normalised, seed=1)") for n in (4, 400))
    assert (fine - exact).abs().mean() < 0.25 * (coarse - exact).abs().mean()


def test_gradient_shap_of_a_linear_model(images: Tensor) -> None:
    """Whatever the place: the weights times the mean difference to image and noise."""
    module = LinearModel().double()
    weights = module.linear.weight.detach().view(CLASSES, 3, SIZE, SIZE)[CHOSEN]
    found = native(module, images.double(), "gradient_shap(n=5, reference=zeros_normalised, sigma=0.0)")
    agrees(found, (weights * images.double()).sum(dim=1), 1e-12)
    noisy = native(module, images.double(), "gradient_shap(n=400, reference=zeros_normalised, sigma=0.5)") - found
    spread = 0.5 * weights.norm(dim=1) / 400**0.5  # noise of n draws, weighted and averaged
    assert (noisy / spread).std().item() == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("text", ["gradient_shap(n=0)", "gradient_shap(sigma=-1.0)"])
def test_bad_draws_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"(n|sigma) must be a (whole )?number of at least "):
        load_method(text)

"""Methods against somebody else's implementation, against their formulas written out, and against arithmetic.

Tolerances are shares of the largest value of the expected map.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from captum.attr import InputXGradient, IntegratedGradients, LayerGradCam, Saliency
from torch import Tensor, nn
from torchcam.methods import GradCAM as TorchcamGradCAM

import aha
from agreement import CHOSEN, Seen, Vit, agrees, grid, native
from aha.methods import load_method
from aha.methods.attention.rollout import discard_smallest, roll_out
from aha.methods.gradients.integrated_gradients import quadrature
from aha.models import load_model
from fakes import CLASSES, SIZE, EncoderViT, LinearModel, TinyCNN, randomised, tiny_vit


@pytest.fixture(params=["cnn", "vit"])
def module(request: pytest.FixtureRequest) -> nn.Module:
    return randomised(TinyCNN()) if request.param == "cnn" else tiny_vit()


# Input gradients: captum


def test_gradient(module: nn.Module, images: Tensor) -> None:
    theirs = Saliency(module).attribute(images.clone().requires_grad_(), target=CHOSEN)
    agrees(native(module, images, "gradient"), theirs.amax(dim=1))
    agrees(native(module, images, "gradient(channels='sum_abs')"), theirs.sum(dim=1))
    signed = Saliency(module).attribute(images.clone().requires_grad_(), target=CHOSEN, abs=False)
    agrees(native(module, images, "gradient(channels='sum')"), signed.sum(dim=1))


def test_input_x_gradient(module: nn.Module, images: Tensor) -> None:
    theirs = InputXGradient(module).attribute(images.clone().requires_grad_(), target=CHOSEN)
    agrees(native(module, images, "input_x_gradient"), theirs.sum(dim=1))
    agrees(native(module, images, "input_x_gradient(channels='max_abs')"), theirs.abs().amax(dim=1))


@pytest.mark.parametrize("steps", [1, 7, 50])
def test_integrated_gradients(module: nn.Module, images: Tensor, steps: int) -> None:
    theirs = IntegratedGradients(module).attribute(
        images, baselines=torch.zeros_like(images), target=CHOSEN, n_steps=steps, method="gausslegendre"
    )
    agrees(native(module, images, f"integrated_gradients(steps={steps})"), theirs.sum(dim=1))


def test_integrated_gradients_by_other_rules(module: nn.Module, images: Tensor) -> None:
    explainer = IntegratedGradients(module)
    middle = explainer.attribute(images, target=CHOSEN, n_steps=9, method="riemann_middle")
    agrees(native(module, images, "integrated_gradients(steps=9, rule='midpoint')"), middle.sum(dim=1))
    trapezoid = explainer.attribute(images, target=CHOSEN, n_steps=9, method="riemann_trapezoid")
    trapezoid = trapezoid * 9 / 8  # captum's weights sum to (n - 1) / n
    agrees(native(module, images, "integrated_gradients(steps=9, rule='trapezoid')"), trapezoid.sum(dim=1))


@pytest.mark.parametrize(("reference", "value"), [("black", 0.0), ("white", 1.0)])
def test_integrated_gradients_from_a_colour(images: Tensor, reference: str, value: float) -> None:
    module = randomised(TinyCNN())
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    model = load_model(module, input_size=SIZE, mean=mean, std=std)
    start = ((value - torch.tensor(mean)) / torch.tensor(std)).view(1, 3, 1, 1).expand_as(images)
    theirs = IntegratedGradients(module).attribute(images, baselines=start, target=CHOSEN, n_steps=6)
    ours = load_method(f"integrated_gradients(steps=6, reference={reference})")(model, images, CHOSEN)
    agrees(ours, theirs.sum(dim=1))


@pytest.mark.parametrize("rule", ["gauss_legendre", "midpoint", "trapezoid"])
def test_quadrature_integrates(rule: Any) -> None:
    places, weights = quadrature(12, rule)
    assert sum(weights) == pytest.approx(1)
    assert sum(w * a for a, w in zip(places, weights, strict=True)) == pytest.approx(1 / 2)
    cube = sum(w * a**3 for a, w in zip(places, weights, strict=True))
    assert cube == pytest.approx(1 / 4, rel=1e-12 if rule == "gauss_legendre" else 0.01)


# Input gradients: arithmetic


def test_a_linear_model_is_its_weights(images: Tensor) -> None:
    module = LinearModel().double()
    images = images.double()
    weights = module.linear.weight.detach().view(CLASSES, 3, SIZE, SIZE)[CHOSEN]
    agrees(native(module, images, "gradient"), weights.abs().amax(dim=1), 1e-12)
    agrees(native(module, images, "gradient(channels='sum')"), weights.sum(dim=1), 1e-12)
    agrees(native(module, images, "input_x_gradient"), (images * weights).sum(dim=1), 1e-12)
    for rule in ("gauss_legendre", "midpoint", "trapezoid"):
        found = native(module, images, f"integrated_gradients(steps=3, rule='{rule}')")
        agrees(found, (images * weights).sum(dim=1), 1e-12)
        gained = module(images) - module(torch.zeros_like(images))
        agrees(found.sum(dim=(1, 2)), gained.gather(1, CHOSEN[:, None])[:, 0], 1e-12)


def test_integrated_gradients_are_complete(images: Tensor) -> None:
    module = randomised(TinyCNN())
    gained = module(images) - module(torch.zeros_like(images))
    found = native(module, images, "integrated_gradients(steps=200)").sum(dim=(1, 2))
    agrees(found, gained.gather(1, CHOSEN[:, None])[:, 0], 5e-3)


def test_smooth_without_noise_is_the_method_itself(module: nn.Module, images: Tensor) -> None:
    for inner in ("gradient", "grad_cam", "input_x_gradient"):
        agrees(native(module, images, f"smooth({inner}, n=1, sigma=0)"), native(module, images, inner), 1e-7)
        agrees(native(module, images, f"smooth({inner}, n=3, sigma=0)"), native(module, images, inner), 1e-6)


def test_smooth_is_a_mean_over_noisy_copies(module: nn.Module, images: Tensor) -> None:
    generator = torch.Generator().manual_seed(11)
    total = torch.zeros(4, SIZE, SIZE)
    for _ in range(5):
        noise = torch.randn(3, SIZE, SIZE, generator=generator)
        for index, image in enumerate(images):
            leaf = (image + 0.2 * (image.max() - image.min()) * noise)[None].requires_grad_()
            (slope,) = torch.autograd.grad(module(leaf)[0, CHOSEN[index]], leaf)
            total[index] += slope[0].abs().amax(dim=0) / 5
    agrees(native(module, images, "smooth(gradient, n=5, sigma=0.2, seed=11)"), total)


# Class activation mapping: captum, torchcam


def stages_of(module: nn.Module) -> list[nn.Module]:
    sites = load_model(module).structure((64, 64)).stages
    return [module.get_submodule(site.name) for site in sites]


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    module = randomised(timm.create_model("resnet18", num_classes=CLASSES), gain=1.0)
    for part in module.modules():  # captum and torchcam cannot follow in-place activations
        if isinstance(part, nn.ReLU):
            part.inplace = False
    return module


@pytest.fixture
def larger(images: Tensor) -> Tensor:
    return F.interpolate(images, size=(64, 64), mode="bilinear")


@pytest.mark.parametrize("layer", [-1, -2, -3])
def test_grad_cam_equals_captum(resnet: nn.Module, larger: Tensor, layer: int) -> None:
    place = stages_of(resnet)[layer]
    theirs = LayerGradCam(resnet, place).attribute(larger, target=CHOSEN, relu_attributions=True)
    agrees(native(resnet, larger, f"grad_cam(layer={layer})"), theirs[:, 0])


def test_grad_cam_on_the_last_stage_of_a_resnet(resnet: nn.Module) -> None:
    assert stages_of(resnet)[-1] is resnet.layer4
    assert stages_of(resnet)[-2] is resnet.layer3


def test_grad_cam_equals_torchcam(resnet: nn.Module, larger: Tensor) -> None:
    theirs = []
    for image, chosen in zip(larger, CHOSEN.tolist(), strict=True):
        with TorchcamGradCAM(resnet, resnet.layer3) as extractor:
            scores = resnet(image[None])
            theirs += extractor(chosen, scores, normalized=False)
    agrees(native(resnet, larger, "grad_cam(layer=-2)"), torch.cat(theirs))


def test_hires_cam_is_its_formula(resnet: nn.Module, larger: Tensor) -> None:
    features: list[Tensor] = []
    handle = resnet.layer3.register_forward_hook(lambda *call: features.append(call[2]))
    scores = resnet(larger).gather(1, CHOSEN[:, None]).sum()
    handle.remove()
    (slopes,) = torch.autograd.grad(scores, features[0])
    agrees(native(resnet, larger, "hires_cam(layer=-2)"), (slopes * features[0]).sum(dim=1).relu())
    assert not torch.allclose(
        native(resnet, larger, "hires_cam(layer=-2)"), native(resnet, larger, "grad_cam(layer=-2)")
    )


@pytest.mark.parametrize(
    "name",
    [
        "resnet10t",
        "test_resnet",
        "test_convnext",
        "test_efficientnet",
        "mobilenetv3_small_050",
        "regnetx_002",
        "ghostnet_050",
        "densenet121",
    ],
)
def test_grad_cam_equals_hires_cam_before_average_pooling(name: str, larger: Tensor) -> None:
    """Where places are averaged and then classified, the gradient is the same everywhere."""
    module = timm.create_model(name, num_classes=CLASSES).eval()
    if name in ("mobilenetv3_small_050", "ghostnet_050", "test_convnext"):
        # A nonlinear layer between pooling and head: the gradient still is the same at every place.
        assert load_model(module).structure((64, 64)).stages[-1].layout.grid == (2, 2)
    agrees(native(module, larger, "hires_cam"), native(module, larger, "grad_cam"))


def test_grad_cam_of_an_average_pooling_network_is_cam(images: Tensor) -> None:
    """Zhou et al. (2016): features weighted by the head's weights."""
    module = randomised(TinyCNN())
    with torch.no_grad():
        features = module.body(module.stem(images))
    expected = torch.einsum("bc,bchw->bhw", module.head.weight[CHOSEN], features).relu() / features[0, 0].numel()
    agrees(native(module, images, "grad_cam"), expected)
    agrees(native(module, images, "hires_cam"), expected)


# Transformers: formulas written out, in double precision, on attention that hooks have seen


@pytest.mark.parametrize("layer", [-1, -2, -3])
def test_raw_attention(vit: Vit, layer: int) -> None:
    module, images, seen, rows, prefix = vit
    expected = seen.attention[layer][:, :, rows].mean(dim=(1, 2))
    agrees(native(module, images, f"raw_attention(layer={layer})"), grid(expected, prefix), 1e-9)


@pytest.mark.parametrize("start", [0, 1])
def test_rollout(vit: Vit, start: int) -> None:
    module, images, seen, rows, prefix = vit
    expected = []
    for index in range(len(images)):
        rolled = torch.eye(16 + prefix, dtype=torch.float64)
        for matrices in seen.attention[start:]:
            step = matrices[index].mean(dim=0) + torch.eye(16 + prefix, dtype=torch.float64)
            rolled = (step / step.sum(dim=1, keepdim=True)) @ rolled
        assert (rolled.sum(dim=1) - 1).abs().max() < 1e-12
        expected.append(rolled[rows].mean(dim=0))
    agrees(native(module, images, f"rollout(start_layer={start})"), grid(torch.stack(expected), prefix), 1e-9)


def test_rollout_with_discarded_attention(vit: Vit) -> None:
    module, images, seen, rows, prefix = vit
    size = 16 + prefix
    expected = []
    for index in range(len(images)):
        rolled = torch.eye(size, dtype=torch.float64)
        for matrices in seen.attention:
            fused = matrices[index].mean(dim=0)
            smallest = fused.flatten().argsort()[: int(size * size * 0.7)]
            for place in smallest.tolist():
                if place % size or not prefix:  # attention to a class token is kept
                    fused[place // size, place % size] = 0
            step = fused + torch.eye(size, dtype=torch.float64)
            rolled = (step / step.sum(dim=1, keepdim=True)) @ rolled
        expected.append(rolled[rows].mean(dim=0))
    agrees(native(module, images, "rollout(discard_ratio=0.7)"), grid(torch.stack(expected), prefix), 1e-9)


def test_rolled_out_rows_sum_to_one() -> None:
    layers = [torch.rand(2, 6, 6).softmax(dim=-1) for _ in range(4)]
    assert torch.allclose(roll_out(layers).sum(dim=-1), torch.ones(2, 6))
    assert torch.equal(discard_smallest(layers[0], 0.0), layers[0])
    kept = discard_smallest(layers[0], 0.9)
    assert (kept[..., 0] == layers[0][..., 0]).all()
    assert (kept == 0).sum() > 40


@pytest.mark.parametrize("layer", [-1, -2])
def test_the_three_forms_of_grad_cam(vit: Vit, layer: int) -> None:
    module, images, seen, rows, prefix = vit
    attention = seen.attention[layer]
    slopes = seen.slope(attention)
    a, g = attention[:, :, rows].mean(dim=2), slopes[:, :, rows].mean(dim=2)  # (B, heads, T)
    elementwise = grid((a * g).mean(dim=1), prefix).relu()
    agrees(native(module, images, f"grad_cam(form='attention', layer={layer})"), elementwise, 1e-9)
    agrees(native(module, images, f"grad_cam(layer={layer})"), elementwise, 1e-9)
    pooled = g[..., prefix:].mean(dim=-1, keepdim=True)
    expected = grid((a * pooled).mean(dim=1), prefix).relu()
    agrees(native(module, images, f"grad_cam(form='pooled_attention', layer={layer})"), expected, 1e-9)
    stages = [*seen.normed, seen.outputs[-1]] if rows != slice(0, 1) else seen.normed
    features = stages[layer]
    maps = features[:, prefix:].transpose(1, 2).reshape(4, -1, 4, 4)
    weights = seen.slope(features)[:, prefix:].transpose(1, 2).reshape(4, -1, 4, 4)
    expected = (weights.mean(dim=(2, 3), keepdim=True) * maps).sum(dim=1).relu()
    agrees(native(module, images, f"grad_cam(form='features', layer={layer})"), expected, 1e-9)
    agrees(native(module, images, f"hires_cam(layer={layer})"), (weights * maps).sum(dim=1).relu(), 1e-7)


def head(module: nn.Module) -> Callable[[Tensor], Tensor]:
    return lambda pooled: module.head(module.fc_norm(module.norm(pooled)))


@pytest.mark.parametrize("layers", [None, 2])
@pytest.mark.parametrize("pool", ["mean", "model"])
def test_legrad(vit: Vit, pool: str, layers: int | None) -> None:
    """Slowly: one image, one block, one backward pass from a score of its own at a time."""
    module, images, _, _, prefix = vit
    expected = torch.zeros(4, 16 + prefix, dtype=torch.float64)
    for index in range(4):
        seen = Seen(module, images[index : index + 1].repeat(4, 1, 1, 1))  # the score of image 0 alone is used
        for block in range(3)[-(layers or 3) :]:
            tokens = seen.outputs[block][:1]
            by_mean = pool == "mean"
            logits = head(module)(tokens.mean(dim=1)) if by_mean else module.forward_head(module.norm(tokens))
            (slope,) = torch.autograd.grad(logits[0, CHOSEN[index]], seen.attention[block], retain_graph=True)
            expected[index] += slope[0].clamp(min=0).mean(dim=(0, 1))  # heads, queries
    found = native(module, images, f"legrad(layers={layers}, pool='{pool}')")
    agrees(found, grid(expected, prefix), 1e-8)


def test_post_norm_transformers_are_read_alike(images: Tensor) -> None:
    """A model of other parts: attention by `nn.TransformerEncoder`, norms behind the residual sums."""
    module = randomised(EncoderViT()).double()
    images = images.double()
    with torch.no_grad():
        x, matrices = module.embedding(images), []
        for layer in module.encoder.layers:
            matrices.append(layer.self_attn(x, x, x, average_attn_weights=False)[1].mean(dim=1))
            x = layer(x)
    rolled = torch.eye(17, dtype=torch.float64)
    for matrix in matrices:
        step = matrix + torch.eye(17, dtype=torch.float64)
        rolled = (step / step.sum(dim=-1, keepdim=True)) @ rolled
    agrees(native(module, images, "rollout"), grid(rolled[:, 0], 1), 1e-9)
    agrees(native(module, images, "raw_attention"), grid(matrices[-1][:, 0], 1), 1e-9)


def test_chunks_do_not_change_a_map(module: nn.Module, images: Tensor) -> None:
    for method in ("gradient", "integrated_gradients(steps=5)", "grad_cam", "smooth(gradient, n=3)"):
        whole = aha.explain(load_model(module, batch_size=64), images, method).maps
        agrees(aha.explain(load_model(module, batch_size=1), images, method).maps, whole, 1e-5)

"""Class activation maps against torchcam, a singular value decomposition, derivatives written out, and each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchcam.methods import LayerCAM as TorchcamLayerCAM
from torchvision.models import resnet18

import aha
from agreement import CHOSEN, Vit, agrees, native
from aha.errors import CapabilityError, SpecError
from aha.methods import check_fit, load_method
from aha.methods.cam.eigen_cam import first_projection
from aha.methods.cam.finer_cam import nearest_classes
from aha.methods.cam.grad_cam_pp import channel_weights
from aha.models import load_model
from fakes import CLASSES, TinyCNN, randomised, tiny_vit


@pytest.fixture
def cnn() -> nn.Module:
    module = randomised(TinyCNN())
    for part in module.modules():  # torchcam cannot follow in-place activations
        if isinstance(part, nn.ReLU):
            part.inplace = False
    return module


def last_features(module: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return module.body(module.stem(images))


# Grad-CAM++


def test_grad_cam_pp_is_the_papers_ratio_of_higher_derivatives(cnn: nn.Module, images: Tensor) -> None:
    """Eq. 19 for the score exp(z), every second and third derivative by autograd, one place at a time."""
    cnn = cnn.double()
    images = images[:2].double() / 4  # exp stays moderate
    for image, chosen in zip(images, [0, 3], strict=True):
        features = last_features(cnn, image[None])[0]  # (C, h, w)
        channels, height, width = features.shape
        logit = cnn.head(features.mean(dim=(1, 2)))[chosen].item()
        expected = torch.zeros(height, width, dtype=torch.float64)
        for k in range(channels):
            weight = 0.0
            for i in range(height):
                for j in range(width):
                    place = features[k, i, j].clone().requires_grad_()
                    changed = features.clone()
                    changed[k, i, j] = place
                    score = cnn.head(changed.mean(dim=(1, 2)))[chosen].exp()
                    (first,) = torch.autograd.grad(score, place, create_graph=True)
                    (second,) = torch.autograd.grad(first, place, create_graph=True)
                    (third,) = torch.autograd.grad(second, place)
                    alpha = second / (2 * second + features[k].sum() * third)
                    weight += float((alpha * first.relu()).detach())
            expected += weight * features[k]
        expected = expected.relu() / np.exp(logit)  # our gradients are of z, theirs of exp(z)
        agrees(native(cnn, image[None], "grad_cam_pp", torch.tensor([chosen]))[0], expected, 1e-8)


def test_grad_cam_pp_stays_finite_where_features_have_signs() -> None:
    features = torch.full((1, 1, 2, 2), -1.0)
    gradients = torch.full((1, 1, 2, 2), 0.5)  # 2 + S g is zero here
    assert channel_weights(features, gradients).flatten().tolist() == [1.0]
    assert channel_weights(features, -gradients).flatten().tolist() == [0.0]


# LayerCAM


@pytest.mark.parametrize(("layer", "name"), [(-1, "body"), (-2, "stem")])
def test_layer_cam_equals_torchcam(cnn: nn.Module, images: Tensor, layer: int, name: str) -> None:
    theirs = []
    for image, chosen in zip(images, CHOSEN.tolist(), strict=True):
        with TorchcamLayerCAM(cnn, getattr(cnn, name)) as extractor:
            theirs += extractor(chosen, cnn(image[None]), normalized=False)
    agrees(native(cnn, images, f"layer_cam(layer={layer})"), torch.cat(theirs))


def test_layer_cam_equals_grad_cam_where_all_weights_are_positive(cnn: nn.Module, images: Tensor) -> None:
    """Behind average pooling the gradient is the head's weight at every place; LayerCAM drops the negative ones."""
    assert not torch.allclose(native(cnn, images, "layer_cam"), native(cnn, images, "grad_cam"))
    with torch.no_grad():
        cnn.head.weight.abs_()
    agrees(native(cnn, images, "layer_cam"), native(cnn, images, "grad_cam"), 1e-6)
    agrees(native(cnn, images, "layer_cam"), native(cnn, images, "hires_cam"), 1e-6)


def test_cams_on_tokens_are_their_formulas(vit: Vit) -> None:
    module, images, seen, _, prefix = vit
    stages = seen.normed if "avg" not in module.global_pool else [*seen.normed, seen.outputs[-1]]
    tokens = stages[-1]
    maps, slopes = (t.detach()[:, prefix:].transpose(1, 2).reshape(4, -1, 4, 4) for t in (tokens, seen.slope(tokens)))
    agrees(native(module, images, "layer_cam"), (slopes.relu() * maps).sum(dim=1).relu(), 1e-9)
    weights = torch.zeros_like(maps[..., :1, :1])
    for b, k in np.ndindex(*maps.shape[:2]):
        total = max(0.0, float(maps[b, k].sum()))
        weights[b, k] = sum(g**3 / (2 * g**2 + total * g**3) for g in slopes[b, k].flatten().tolist() if g > 0)
    agrees(native(module, images, "grad_cam_pp"), (weights * maps).sum(dim=1), 1e-9)


# Eigen-CAM


@pytest.mark.parametrize("centred", [False, True])
def test_eigen_cam_is_the_first_singular_direction(cnn: nn.Module, images: Tensor, centred: bool) -> None:
    found = native(cnn, images, f"eigen_cam(centred={centred})").numpy()
    for maps, features in zip(found, last_features(cnn, images).double().numpy(), strict=True):
        rows = features.reshape(len(features), -1).T
        used = rows - rows.mean(axis=0) * centred
        expected = used @ np.linalg.svd(used)[2][0]
        assert np.allclose(np.abs(maps.ravel()), np.abs(expected), atol=1e-5 * np.abs(expected).max())
        assert abs(np.corrcoef(maps.ravel(), expected)[0, 1]) > 0.9999
        assert maps.ravel() @ np.linalg.norm(rows, axis=1) > 0, "positive where features are strong"


def test_eigen_cam_of_features_of_rank_one() -> None:
    strength = torch.rand(1, 1, 3, 4) + 0.1
    direction = torch.randn(1, 5, 1, 1)
    agrees(first_projection(strength * direction, centred=False), strength[:, 0] * direction.norm(), 1e-6)
    assert torch.equal(first_projection(torch.zeros(2, 5, 3, 4), centred=True), torch.zeros(2, 3, 4))


def test_eigen_cam_does_not_know_the_class(cnn: nn.Module, images: Tensor) -> None:
    assert torch.equal(native(cnn, images, "eigen_cam"), native(cnn, images, "eigen_cam", CHOSEN.flip(0)))


# Finer-CAM


def test_finer_cam_is_grad_cam_of_the_difference(cnn: nn.Module, images: Tensor) -> None:
    """Behind average pooling, Grad-CAM's weights are the head's: so are those of a difference of outputs."""
    features = last_features(cnn, images)
    logits = cnn(images).detach()
    expected = []
    for index, chosen in enumerate(CHOSEN.tolist()):
        by_distance = sorted(range(CLASSES), key=lambda k: abs(float(logits[index, k] - logits[index, chosen])))
        rivals = by_distance[1:3]
        p = logits[index].softmax(dim=0)[rivals]
        against = (p[:, None] * cnn.head.weight[rivals]).sum(dim=0) / p.sum()
        weights = (cnn.head.weight[chosen] - 0.6 * against).detach()
        expected.append(torch.einsum("c,chw->hw", weights, features[index]).relu() / features[0, 0].numel())
    agrees(native(cnn, images, "finer_cam(alpha=0.6, rivals=2)"), torch.stack(expected))


def test_finer_cam_without_comparison_is_grad_cam(cnn: nn.Module, images: Tensor) -> None:
    agrees(native(cnn, images, "finer_cam(alpha=0.0)"), native(cnn, images, "grad_cam"), 1e-6)
    assert native(cnn, images, "finer_cam(rivals=100)").isfinite().all()  # as many as there are


def test_nearest_classes_leave_out_the_class_itself() -> None:
    scores = torch.tensor([[2.0, 5.0, 4.0, 1.0], [0.0, 0.0, 3.0, 9.0]])
    assert nearest_classes(scores, torch.tensor([1, 0]), 2).tolist() == [[2, 0], [1, 2]]


def test_a_binary_classifier_compares_its_two_classes(images: Tensor) -> None:
    module = randomised(TinyCNN(classes=1))
    classes = torch.tensor([0, 1, 1, 0])
    agrees(
        native(module, images, "finer_cam", classes), 2 * native(module, images, "grad_cam", classes), 1e-5
    )  # y - (-y)
    value = load_model(module, score="regression")
    with pytest.raises(CapabilityError, match="has one output only"):
        load_method("finer_cam")(value, images, torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize("text", ["finer_cam(rivals=0)", "finer_cam(alpha=-1.0)"])
def test_bad_comparisons_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"(rivals|alpha) must be a (whole )?number of at least "):
        load_method(text)


@pytest.mark.parametrize("name", ["grad_cam_pp", "layer_cam", "eigen_cam", "finer_cam"])
def test_layers_count_from_the_end(name: str, cnn: nn.Module, images: Tensor) -> None:
    with pytest.raises(SpecError, match=r"layer must be a whole number of at most -1 \(-1 is the last\) or a text"):
        load_method(f"{name}(layer=0)")
    with pytest.raises(SpecError, match="layer=-9 does not exist"):
        native(cnn, images, f"{name}(layer=-9)")


# Layers by name


def test_layers_may_be_named(images: Tensor) -> None:
    module = randomised(resnet18(num_classes=5))
    inputs = nn.functional.interpolate(images[:2], 64)
    model = load_model(module)
    for name in ("grad_cam", "grad_cam_pp", "hires_cam", "layer_cam", "eigen_cam", "ablation_cam", "finer_cam"):
        by_name = aha.explain(model, inputs, f"{name}(layer='layer3')", 1).maps
        assert torch.allclose(by_name, aha.explain(model, inputs, f"{name}(layer=-2)", 1).maps, atol=1e-6), name
    inner = load_method("grad_cam(layer='layer2.0.conv1')")  # no stage at all
    assert load_method(str(inner)) == inner
    kept = module.layer2[0].conv1.register_forward_hook(lambda _module, _args, output: seen.append(output))
    seen: list[Tensor] = []
    score = module(inputs)[:, 1].sum()
    kept.remove()
    (slope,) = torch.autograd.grad(score, seen[0])
    expected = (slope.mean(dim=(2, 3), keepdim=True) * seen[0]).sum(dim=1).relu().detach()
    found = inner(model, inputs, torch.tensor([1, 1]))
    assert torch.allclose(found, expected, atol=1e-6 * float(expected.max()))
    assert model.layer_name(module.layer2[0].conv1) == "layer2.0.conv1"
    with pytest.raises(aha.AhaError, match="module:ResNet has no such module: Linear"):
        model.layer_name(nn.Linear(1, 1))


def test_blocks_may_be_named(images: Tensor) -> None:
    model = load_model(tiny_vit(depth=3))
    for method in ("grad_cam", "raw_attention"):
        chosen = load_method(method)
        by_name, by_place = (aha.explain(model, images, replace(chosen, layer=layer)) for layer in ("blocks.1", -2))
        assert torch.equal(by_name.maps, by_place.maps)
    norm = aha.explain(model, images, "grad_cam(layer='blocks.1.norm1')")  # tokens, as pytorch-grad-cam is told
    assert torch.allclose(norm.maps, aha.explain(model, images, "grad_cam(form='features', layer=-2)").maps, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("grad_cam(layer='bodi')", r"no module 'bodi' hands on a map or tokens; did you mean .*'body'"),
        ("smooth(eigen_cam(layer='head'))", "no module 'head' hands on a map"),
        ("grad_cam(layer='')", "no module '' hands on a map"),
    ],
)
def test_layers_that_do_not_exist_are_refused_before_anything_is_computed(
    method: str, says: str, images: Tensor
) -> None:
    model = load_model(randomised(TinyCNN()))
    with pytest.raises(CapabilityError, match=says) as caught:
        check_fit(load_method(method), model, images.shape[1:])
    assert "\n" not in str(caught.value)


def test_a_block_that_is_none(images: Tensor) -> None:
    with pytest.raises(SpecError, match=r"layer='patch_embed' is not a block; blocks are blocks\.0, blocks\.1"):
        aha.explain(tiny_vit(), images, "raw_attention(layer='patch_embed')")


def test_a_layer_of_a_function_goes_by_the_end_of_its_name(images: Tensor) -> None:
    network = randomised(TinyCNN())
    found = aha.explain(lambda inputs: network(inputs), images, "grad_cam(layer='stem')")
    assert torch.equal(found.maps, aha.explain(network, images, "grad_cam(layer='stem')").maps)

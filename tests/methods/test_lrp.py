"""Layer-wise relevance propagation against tables of contributions, captum, and the law that nothing is lost."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import timm
import torch
from timm.models.densenet import DenseNet
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import aha
from aha.errors import SpecError
from aha.methods import load_method
from aha.methods.gradients.lrp import PRESETS
from aha.models import load_model
from fakes import CLASSES, SIZE, FunctionalCNN, TinyCNN, randomised, tiny_vit

CHOSEN = torch.tensor([0, 1, 2, 4])


def native(module: nn.Module, images: Tensor, method: str, **options: object) -> Tensor:
    return load_method(method)(load_model(module, **options), images, CHOSEN)


def agrees(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    assert ours.shape == theirs.shape
    assert float((ours - theirs).detach().abs().max()) <= tolerance * float(theirs.detach().abs().max())


# By full tables of contributions, in double precision


def matrix_of(layer: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Weights (outputs, inputs) and bias (outputs,) of a linear layer, found by trying every unit vector."""
    with torch.no_grad():
        basis = torch.eye(int(torch.tensor(shape).prod()), dtype=torch.float64).view(-1, *shape)
        bias = layer(torch.zeros(1, *shape, dtype=torch.float64)).flatten()
        return (layer(basis).flatten(1) - bias).T, bias


def share_out(kind: str, x: Tensor, weights: Tensor, bias: Tensor, relevance: Tensor, gamma: float = 0.25) -> Tensor:
    terms = x * weights  # (outputs, inputs): c_ji
    if kind == "flat":
        terms, total = (weights != 0).double(), (weights != 0).double().sum(dim=1)
    elif kind == "box":
        low, high = -1.0, 1.0
        terms = terms - low * weights.clamp(min=0) - high * weights.clamp(max=0)
        total = terms.sum(dim=1)
    elif kind == "zplus":
        terms = terms.clamp(min=0)
        total = terms.sum(dim=1) + bias.clamp(min=0)
    else:
        gamma = gamma if kind == "gamma" else 0.0
        total = terms.sum(dim=1) + bias
        sign = torch.where(total > 0, 1.0, -1.0).double()
        terms = terms + gamma * torch.where(terms * sign[:, None] > 0, terms, 0)
        total = total + gamma * torch.where(bias * sign > 0, bias, 0) + (terms - x * weights).sum(dim=1)
    total = torch.where(total == 0, 1, total)
    return (terms * (relevance / total)[:, None]).sum(dim=0)


def small_net() -> nn.Sequential:
    """Two convolutions, one with a batch norm, on 8 x 8 pixels."""
    layers = [nn.Conv2d(3, 4, 3, 2, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, 1, 1), nn.ReLU()]
    module = randomised(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, CLASSES)))
    with torch.no_grad():
        module[1].weight.mul_(torch.tensor([1.0, -1.0, 1.0, -1.0]))  # a norm may turn signs around
    return module.double()


@pytest.mark.parametrize("preset", PRESETS)
def test_by_tables_of_contributions(preset: str) -> None:
    module, images = small_net(), torch.rand(4, 3, 8, 8).double() * 2 - 1
    found = native(module, images, f"lrp(preset='{preset}', epsilon=0)", input_size=8, mean=(0.5,) * 3, std=(0.5,) * 3)
    first, second, head = module[:2], module[3], module[7]
    rules = PRESETS[preset]
    for row, target in enumerate(CHOSEN.tolist()):
        image = images[[row]]
        with torch.no_grad():
            middle = module[:3](image)
            top = module[:5](image)
            pooled = top.mean(dim=(2, 3))[0]
        start = torch.zeros(CLASSES).double()
        start[target] = module(image)[0, target].detach()
        gamma = 0.05 if preset == "attn_lrp" else 0.25
        relevance = share_out(rules.dense, pooled, head.weight.detach(), head.bias.detach(), start, gamma)
        relevance = (top[0] / top[0].sum(dim=(1, 2), keepdim=True) * relevance[:, None, None]).nan_to_num().flatten()
        relevance = share_out(rules.convolution, middle.flatten(), *matrix_of(second, (4, 4, 4)), relevance)
        relevance = share_out(rules.first, image.flatten(), *matrix_of(first, (3, 8, 8)), relevance)
        agrees(found[row], relevance.view(3, 8, 8).sum(dim=0), 1e-9)


@pytest.mark.parametrize("preset", ["epsilon", "gamma", "epsilon_gamma_box"])
@pytest.mark.parametrize("sums", [None, "magnitude", "value"])
def test_summands_of_a_residual_connection(preset: str, sums: str | None) -> None:
    """`f(x) + x`, where f has a tanh so that summands differ in sign: shares by hand, in both forms."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.branch, self.head = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Linear(4, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return self.head((torch.tanh(self.branch(x)) + x).mean(dim=(2, 3)))

    module, images = randomised(Residual()).double(), torch.rand(4, 3, 4, 4).double() * 2 - 1
    method = f"lrp(preset='{preset}', epsilon=0, sums={sums!r})"
    found = native(module, images, method, input_size=4, mean=(0.5,) * 3, std=(0.5,) * 3)
    by_value = sums == "value" or (sums is None and preset == "epsilon")
    rules = PRESETS[preset]
    for row, target in enumerate(CHOSEN.tolist()):
        with torch.no_grad():
            low = module.stem(images[[row]])
            added = torch.tanh(module.branch(low))
            total = added + low
            pooled = total.mean(dim=(2, 3))[0]
        start = torch.zeros(CLASSES).double()
        start[target] = module(images[[row]])[0, target].detach()
        relevance = share_out(rules.dense, pooled, module.head.weight.detach(), module.head.bias.detach(), start)
        size = (lambda x: x) if by_value else torch.abs
        relevance = size(total[0]) / size(total[0]).sum(dim=(1, 2), keepdim=True) * relevance[:, None, None]
        shared = relevance / (size(added[0]) + size(low[0]))
        to_branch, straight = size(added[0]) * shared, size(low[0]) * shared
        through = share_out(rules.convolution, low.flatten(), *matrix_of(module.branch, (4, 4, 4)), to_branch.flatten())
        relevance = through + straight.flatten()
        relevance = share_out(rules.first, images[row].flatten(), *matrix_of(module.stem, (3, 4, 4)), relevance)
        agrees(found[row], relevance.view(3, 4, 4).sum(dim=0), 1e-9)


def test_epsilon_rule_of_captum(images: Tensor) -> None:
    from captum.attr import LRP
    from captum.attr._utils.lrp_rules import EpsilonRule

    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, 1, 1), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)]
    module = randomised(nn.Sequential(*layers, *head)).double()
    ours = native(module, images.double(), "lrp(preset='epsilon', epsilon=1e-9)")
    theirs = copy.deepcopy(module)
    for layer in theirs:
        layer.rule = EpsilonRule(epsilon=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # captum's own hooks
        expected = LRP(theirs).attribute(images.double().requires_grad_(), target=CHOSEN)
    agrees(ours, expected.sum(dim=1), 1e-5)


def test_a_norm_behind_a_convolution_is_part_of_it(images: Tensor) -> None:
    module = randomised(TinyCNN())
    with torch.no_grad():
        module.stem[1].weight.neg_()
    merged = copy.deepcopy(module)
    for part in (merged.stem, merged.body):
        part[0], part[1] = fuse_conv_bn_eval(part[0], part[1]), nn.Identity()
    for preset in ("epsilon", "zplus", "epsilon_gamma_box"):
        agrees(
            native(module, images, f"lrp(preset='{preset}')"), native(merged, images, f"lrp(preset='{preset}')"), 1e-3
        )


# Conservation: without biases the whole score arrives


def without_biases(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if name.endswith(("bias", "running_mean")):
                value.zero_()
    return module


class SmallVGG(nn.Sequential):
    def __init__(self) -> None:
        convolutions = [
            nn.Conv2d(3, 8, 3, 1, 1),
            nn.ReLU(True),
            nn.Conv2d(8, 8, 3, 1, 1),
            nn.ReLU(True),
            nn.MaxPool2d(2),
        ]
        dense = [nn.Flatten(), nn.Linear(8 * 64, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, CLASSES)]
        super().__init__(*convolutions, nn.AvgPool2d(2), *dense)


FAMILIES: dict[str, Callable[[], nn.Module]] = {
    "vgg": SmallVGG,
    "resnet": lambda: timm.create_model("test_resnet", num_classes=CLASSES),
    "densenet": lambda: DenseNet(4, (2, 2), CLASSES),
    "efficientnet": lambda: timm.create_model("test_efficientnet", num_classes=CLASSES),
    "convnext": lambda: timm.create_model("test_convnext", num_classes=CLASSES),
    "functional": FunctionalCNN,
}


@pytest.mark.parametrize("preset", ["epsilon_plus", "epsilon_plus_flat", "epsilon_gamma_box"])
@pytest.mark.parametrize("family", FAMILIES)
def test_relevance_is_conserved(family: str, preset: str, images: Tensor) -> None:
    module = without_biases(randomised(FAMILIES[family]()).double())
    images = images.double()
    with torch.no_grad():
        scores = module(images).gather(1, CHOSEN[:, None])[:, 0]
    method = f"lrp(preset='{preset}', epsilon=0)"
    found = native(module, images, method, input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert torch.allclose(found.sum(dim=(1, 2)), scores, rtol=1e-5)


@pytest.mark.parametrize(
    "activation", [nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Mish, nn.SELU, nn.Softplus, nn.PReLU, nn.Tanh]
)
def test_relevance_passes_every_activation(activation: Callable[[], nn.Module], images: Tensor) -> None:
    layers = [nn.Conv2d(3, 8, 4, 4, bias=False), activation(), nn.Flatten(), nn.Linear(8 * 64, CLASSES, bias=False)]
    module = randomised(nn.Sequential(*layers)).double()
    with torch.no_grad():
        scores = module(images.double()).gather(1, CHOSEN[:, None])[:, 0]
    found = native(module, images.double(), "lrp(preset='epsilon', epsilon=0)")
    assert torch.allclose(found.sum(dim=(1, 2)), scores, rtol=1e-5)


class SlicedPositions(nn.Module):
    """A transformer that adds as many of its positions as there are tokens: a tensor, and no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = tiny_vit()
        self.positions = nn.Parameter(torch.randn(1, 30, self.inner.embed_dim))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.inner.patch_embed(x)
        tokens = torch.cat([self.inner.cls_token.expand(len(x), -1, -1), tokens], dim=1)
        tokens = tokens + self.positions[:, : tokens.shape[1]]
        return self.inner.head(self.inner.norm(self.inner.blocks(tokens))[:, 0])


@pytest.mark.parametrize("method", ["lrp", "transformer_attribution"])
def test_what_does_not_depend_on_the_image_gets_no_relevance(method: str, images: Tensor) -> None:
    module = randomised(SlicedPositions())
    together = native(module, images, method)
    model = load_model(module)
    alone = torch.cat([load_method(method)(model, images[i : i + 1], CHOSEN[i : i + 1]) for i in range(len(images))])
    agrees(alone, together, 1e-4)
    assert all(weight.requires_grad for weight in module.parameters())
    agrees(native(module.requires_grad_(False), images[:1].expand(4, -1, -1, -1), method)[:1], together[:1], 1e-4)


def test_biases_keep_their_share_unless_ignored(images: Tensor) -> None:
    """One layer, written out: the bias of the class has its part of the score, or the pixels have it all."""
    module, images = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, CLASSES)).double(), images.double()
    with torch.no_grad():
        scores, bias = module(images).gather(1, CHOSEN[:, None])[:, 0], module[1].bias[CHOSEN]
    absorbed = native(module, images, "lrp(preset='epsilon', epsilon=0)").sum(dim=(1, 2))
    ignored = native(module, images, "lrp(preset='epsilon', epsilon=0, bias='ignore')").sum(dim=(1, 2))
    assert torch.allclose(absorbed, scores - bias)
    assert torch.allclose(ignored, scores)


def test_the_second_class_of_a_single_output_has_the_opposite_relevance(images: Tensor) -> None:
    model = load_model(randomised(TinyCNN(classes=1)).double())
    first, second = (load_method("lrp")(model, images.double(), torch.full((4,), c)) for c in (0, 1))
    assert second.abs().max() > 0
    assert torch.equal(first, -second)


def test_relevance_starts_at_every_output_that_the_score_depends_on(images: Tensor) -> None:
    module = randomised(TinyCNN()).double()
    logits = torch.stack(
        [load_method("lrp")(load_model(module), images.double(), torch.full((4,), c)) for c in range(CLASSES)]
    )  # (K, B, H, W)
    found = native(module, images.double(), "lrp", score="log_softmax")
    weights = torch.eye(CLASSES)[CHOSEN] - module(images.double()).softmax(dim=1)  # slopes of log p
    agrees(found, torch.einsum("bk,kbhw->bhw", weights, logits), 1e-9)


def test_outputs_are_those_of_the_model(images: Tensor) -> None:
    from aha.methods.gradients.layer_rules import LayerRules

    for build in FAMILIES.values():
        module = randomised(build()).double()
        model = load_model(module)
        with model.rules(
            LayerRules(PRESETS["epsilon_plus"], 1e-6, 0.25, by_value=False).table(), attention_in_parts=True
        ):
            assert torch.allclose(model.outputs(images.double()), module(images.double()).detach())


def test_transformers_by_their_values(images: Tensor) -> None:
    """Attention weights are constants: without a class token of its own, everything arrives."""
    module = without_biases(tiny_vit(global_pool="avg", class_token=False, pos_embed="none").double())
    images = images.double()
    with torch.no_grad():
        scores = module(images).gather(1, CHOSEN[:, None])[:, 0]
    found = native(module, images, "lrp(preset='epsilon_plus', epsilon=0)")
    assert torch.allclose(found.sum(dim=(1, 2)), scores, rtol=1e-6)


def test_bounds_of_unknown_pixels(images: Tensor) -> None:
    """Without a stated normalisation, the box is that of the values which occur."""
    found = native(randomised(TinyCNN()), images, "lrp(preset='epsilon_gamma_box')")
    assert found.isfinite().all() and found.abs().amax() > 0


def test_bad_parameters(images: Tensor) -> None:
    for text in ("lrp(epsilon=-1)", "lrp(gamma=-0.1)", "lrp(preset='delta')", "lrp(bias='keep')", "lrp(sums='max')"):
        with pytest.raises(SpecError, match="lrp"):
            load_method(text)
    assert aha.explain(randomised(TinyCNN()), images, "var(lrp)").maps.isfinite().all()


# AttnLRP


def attn_lrp(vit: nn.Module, image: Tensor, label: int, *, shared: bool) -> Tensor:
    """Its rules for epsilon = 0, as input times a gradient in which each of them is a change of the forward pass."""

    def scaled(value: Tensor, slope: float) -> Tensor:
        return slope * value + (1 - slope) * value.detach()

    def norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
        spread = (x.var(dim=-1, correction=0, keepdim=True) + layer.eps).sqrt().detach()
        return (x - x.mean(dim=-1, keepdim=True)) / spread * layer.weight + layer.bias

    pixels = image[None].clone().requires_grad_()
    x = vit._pos_embed(vit.patch_embed(pixels))
    for block in vit.blocks:
        attention, tokens = block.attn, x.shape[1]
        parts = attention.qkv(norm(block.norm1, x)).view(1, tokens, 3, attention.num_heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if shared:
            weights = scaled(attention.scale * q @ k.transpose(-2, -1), 0.5).softmax(dim=-1)
            mixed = scaled(weights @ v, 0.5)
        else:
            mixed = (attention.scale * q @ k.transpose(-2, -1)).softmax(dim=-1).detach() @ v
        x = x + attention.proj(mixed.transpose(1, 2).flatten(2))
        inner = block.mlp.fc1(norm(block.norm2, x))
        x = x + block.mlp.fc2(inner * (nn.functional.gelu(inner) / inner).detach())
    score = vit.head(norm(vit.norm, x)[:, 0])[0, label]
    (slopes,) = torch.autograd.grad(score, pixels)
    return (pixels * slopes).sum(dim=1)[0].detach()


@pytest.mark.parametrize("attention", ["shared", "constant"])
def test_attn_lrp_is_a_changed_gradient_times_input(images: Tensor, attention: str) -> None:
    vit, images = tiny_vit(depth=3).double(), images.double()
    found = native(vit, images, f"lrp(preset='attn_lrp', gamma=0, epsilon=0, attention='{attention}')")
    for image, label, own in zip(images, CHOSEN.tolist(), found, strict=True):
        agrees(own, attn_lrp(vit, image, label, shared=attention == "shared"), 1e-6)


def test_attn_lrp_shares_attention_and_favours_less_in_dense_layers(images: Tensor) -> None:
    vit = tiny_vit(depth=3)
    default, shared, constant = (
        native(vit, images, f"lrp(preset='attn_lrp'{attention})")
        for attention in ("", ", attention='shared'", ", attention='constant'")
    )
    assert torch.equal(default, shared) and not torch.allclose(default, constant, rtol=0.1)
    dense = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, CLASSES)).double()
    found = native(dense, images.double(), "lrp(preset='attn_lrp', gamma=0.25)")
    agrees(found, native(dense, images.double(), "lrp(preset='gamma', gamma=0.05)"), 1e-9)

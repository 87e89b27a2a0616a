"""Changing a model for a moment: patches and rules, undone at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aha.errors import ModelError, SpecError
from aha.models import load_model
from aha.models.relevance.rules import OPERATIONS
from fakes import (
    CLASSES,
    Boom,
    EncoderViT,
    FunctionalCNN,
    LinearModel,
    TinyCNN,
    changes,
    randomised,
    snapshot,
    surroundings,
    tiny_vit,
)


def test_patches_replace_outputs_and_are_undone(images: Tensor) -> None:
    module = randomised(TinyCNN())
    model = load_model(module)
    before, plain = snapshot(module), model.outputs(images)
    with model.patched({"body": torch.zeros_like, "head": lambda y: y + 1}):
        assert torch.allclose(model.outputs(images), module.head.bias.detach().expand(4, -1) + 1)
        with model.patched({"head": lambda y: y * 0}):
            assert model.outputs(images).abs().max() == 0
    assert torch.equal(model.outputs(images), plain)
    with pytest.raises(ZeroDivisionError), model.patched({"body": lambda y: y / (1 // 0)}):
        model.outputs(images)
    unknown = model.patched({"boddy": torch.zeros_like, "head": torch.zeros_like, "x": torch.zeros_like})
    with pytest.raises(ModelError, match=r"module:TinyCNN has no module 'boddy', 'x'"), unknown:
        pass
    assert changes(before, snapshot(module)) == []


class GuidedRelu(torch.autograd.Function):
    """Springenberg et al. (2015): only positive gradients pass, and only where the input was positive."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return slope.clamp(min=0) * (x > 0)


def guided(x: Tensor, inplace: bool = False) -> Tensor:
    return GuidedRelu.apply(x)


def test_guided_backpropagation_by_rules_equals_captum(images: Tensor) -> None:
    from captum.attr import GuidedBackprop

    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    module = randomised(nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, CLASSES)))
    classes = torch.tensor([0, 1, 2, 3])
    with pytest.warns(UserWarning, match="Setting backward hooks on ReLU"):
        expected = GuidedBackprop(module).attribute(images.clone().requires_grad_(), target=classes)
    model = load_model(module)
    plain = model.input_gradients(images, classes)
    before = (snapshot(module), surroundings())
    with model.rules({"relu": guided}):
        found = model.input_gradients(images, classes)
    assert torch.allclose(found, expected, atol=1e-6)
    assert not torch.allclose(found, plain, atol=1e-3)
    assert torch.equal(model.input_gradients(images, classes), plain)
    assert changes(before[0], snapshot(module)) == []
    assert changes(before[1], surroundings()) == []
    for spelling in (F.relu, F.relu_, torch.relu, Tensor.relu, Tensor.relu_, nn.ReLU(), nn.ReLU(inplace=True)):
        twin = FunctionalCNN(spelling)
        twin.load_state_dict(dict(zip(twin.state_dict(), module.state_dict().values(), strict=True)))
        with load_model(twin).rules({"relu": guided}):
            assert torch.allclose(load_model(twin).input_gradients(images, classes), expected, atol=1e-6)


def _increased(x: Tensor) -> Tensor:
    x = x.clone()
    x += 1
    return x


SPELLINGS: dict[str, list[Callable[[Tensor], Tensor]]] = {
    "relu": [nn.ReLU(), F.relu],
    "relu6": [nn.ReLU6(), F.relu6],
    "leaky_relu": [nn.LeakyReLU(), F.leaky_relu],
    "elu": [nn.ELU(), F.elu],
    "gelu": [nn.GELU(), F.gelu],
    "silu": [nn.SiLU(), F.silu],
    "hardswish": [nn.Hardswish(), F.hardswish],
    "mish": [nn.Mish(), F.mish],
    "selu": [nn.SELU(), F.selu, torch.selu],
    "softplus": [nn.Softplus(), F.softplus],
    "prelu": [nn.PReLU(), lambda x: F.prelu(x, torch.ones(1))],
    "tanh": [nn.Tanh(), torch.tanh, Tensor.tanh],
    "sigmoid": [nn.Sigmoid(), torch.sigmoid, Tensor.sigmoid],
    "softmax": [nn.Softmax(dim=-1), lambda x: x.softmax(-1), lambda x: torch.softmax(x, dim=1)],
    "layer_norm": [nn.LayerNorm(8)],
    "batch_norm": [nn.BatchNorm2d(3).eval()],
    "linear": [nn.Linear(8, 8), lambda x: F.linear(x, torch.eye(8))],
    "conv2d": [nn.Conv2d(3, 3, 1)],
    "matmul": [lambda x: x @ x, lambda x: torch.matmul(x, x), lambda x: x.matmul(x)],
    "scaled_dot_product_attention": [lambda x: F.scaled_dot_product_attention(x, x, x)],
    "max_pool2d": [nn.MaxPool2d(2), lambda x: F.max_pool2d(x, 2)],
    "hardsigmoid": [nn.Hardsigmoid(), F.hardsigmoid],
    "rms_norm": [lambda x: F.rms_norm(x, (8,))],
    "group_norm": [nn.GroupNorm(3, 3)],
    "avg_pool2d": [nn.AvgPool2d(2), lambda x: F.avg_pool2d(x, 2)],
    "adaptive_avg_pool2d": [nn.AdaptiveAvgPool2d(1), lambda x: F.adaptive_avg_pool2d(x, 1)],
    "instance_norm": [nn.InstanceNorm2d(3), F.instance_norm],
    "conv3d": [nn.Conv3d(2, 2, 1)],
    "avg_pool3d": [nn.AvgPool3d(2), lambda x: F.avg_pool3d(x, 2)],
    "adaptive_avg_pool3d": [nn.AdaptiveAvgPool3d(1), lambda x: F.adaptive_avg_pool3d(x, 1)],
    "mean": [lambda x: x.mean(dim=1), lambda x: torch.mean(x, dim=1)],
    "add": [lambda x: x + x, lambda x: 1 + x, lambda x: torch.add(x, 1), lambda x: x.clone().add_(x), _increased],
    "mul": [lambda x: x * x, lambda x: 2 * x, lambda x: torch.mul(x, 2), lambda x: x.clone().mul_(x)],
    "div": [lambda x: x / 2, lambda x: torch.div(x, x), lambda x: x.clone().div_(2)],
}


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_every_operation_can_be_replaced(name: str) -> None:
    model, x = load_model(LinearModel()), torch.randn(2, 3, 8, 8)
    for spelling in SPELLINGS[name]:
        with model.rules({name: lambda *_, **__: "replaced"}):
            assert spelling(x) == "replaced"
        assert isinstance(spelling(x), Tensor)


def test_rules_nest_reach_plain_operations_and_are_undone(images: Tensor) -> None:
    module = randomised(FunctionalCNN())
    model = load_model(module)
    plain, world = model.outputs(images), surroundings()
    with model.rules({"relu": lambda x, **_: F.relu(x) * 2}):  # inside a rule, relu is relu
        doubled = model.outputs(images)
        with model.rules({"linear": lambda x, w, b: x @ w.T}):
            assert not torch.allclose(model.outputs(images), doubled)
    assert not torch.allclose(doubled, plain)
    with pytest.raises(Boom), model.rules({"relu": _blow}):
        model.outputs(images)
    unknown = model.rules({"rellu": guided})
    with pytest.raises(SpecError, match=r"no rule can replace 'rellu'; known operations: .*relu"), unknown:
        pass
    assert changes(world, surroundings()) == []
    assert torch.equal(model.outputs(images), plain)


@pytest.mark.parametrize("build", [tiny_vit, lambda: randomised(EncoderViT())])
def test_rules_reach_the_parts_of_fused_attention(build: Callable[[], nn.Module], images: Tensor) -> None:
    model = load_model(build())
    plain, seen = model.outputs(images), []

    def note(x: Tensor, *args: Any, **options: Any) -> Tensor:
        seen.append(x.shape)
        return F.softmax(x, *args, **options)

    with model.rules({"softmax": note}):
        model.outputs(images)
    assert seen == []
    with model.rules({"softmax": note}, attention_in_parts=True):
        assert torch.allclose(model.outputs(images), plain, atol=1e-5)
    assert [shape[-2:] for shape in seen] == [(17, 17)] * 2


def _blow(*_: Any, **__: Any) -> Tensor:
    raise Boom

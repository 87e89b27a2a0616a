"""Attention, tokens, stages and the readout, as they are found inside a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from reading import plain_outputs
from torch import Tensor, nn

import aha
from aha.errors import CapabilityError, MapWarning, SpecError
from aha.models import load_model
from fakes import (
    CLASSES,
    SIZE,
    EncoderViT,
    InPlaceViT,
    LinearPatchViT,
    QueryPoolCNN,
    SharedBlockViT,
    TinyCNN,
    changes,
    randomised,
    snapshot,
    tiny_vit,
)

# Attention


def torchvision_vit() -> nn.Module:
    return torchvision.models.VisionTransformer(
        image_size=SIZE, patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=CLASSES
    )


TRANSFORMERS: dict[str, Callable[[], nn.Module]] = {
    "timm": tiny_vit,
    "timm with registers": lambda: tiny_vit(reg_tokens=4),
    "timm without class token": lambda: tiny_vit(class_token=False, global_pool="avg"),
    "timm with query norm and layer scale": lambda: tiny_vit(qk_norm=True, init_values=0.5),
    "timm with attention pooling": lambda: tiny_vit(class_token=False, global_pool="map"),
    "torchvision": torchvision_vit,
    "nn.TransformerEncoder": EncoderViT,
    "one shared block": SharedBlockViT,
    "residuals outside": LinearPatchViT,
    "residuals in place": InPlaceViT,
}


@pytest.fixture(params=TRANSFORMERS)
def transformer(request: pytest.FixtureRequest) -> nn.Module:
    return randomised(TRANSFORMERS[request.param]())


def attention_by_hooks(module: nn.Module, images: Tensor) -> list[Tensor]:
    """The attention of a timm ViT as its own code computes it when told not to fuse."""
    seen: list[Tensor] = []
    handles = []
    for block in module.blocks:
        block.attn.fused_attn = False
        handles.append(block.attn.attn_drop.register_forward_hook(lambda *call: seen.append(call[2])))
    outputs = module(images)
    for handle, block in zip(handles, module.blocks, strict=True):
        handle.remove()
        block.attn.fused_attn = True
    slopes = torch.autograd.grad(outputs[:, 1].sum(), seen)
    return [*seen, *slopes]


def test_attention_is_seen_and_changes_nothing(transformer: nn.Module, images: Tensor) -> None:
    model = load_model(transformer)
    trace = model.trace(images, attention=True)
    assert len(trace.attention) == (3 if isinstance(transformer, SharedBlockViT) else 2)
    assert (trace.outputs - plain_outputs(transformer, images)).abs().max() < 1e-5
    for matrix in trace.attention:
        batch, heads, queries, keys = matrix.shape
        assert (batch, heads, queries) == (4, 2, keys)
        assert (matrix.sum(dim=-1) - 1).abs().max() < 1e-5
        assert (matrix >= 0).all()
        (slope,) = trace.gradients(torch.tensor([1] * 4), matrix)
        assert slope.abs().sum() > 0


@pytest.mark.parametrize("options", [{}, {"reg_tokens": 4}, {"qk_norm": True, "init_values": 0.5}])
def test_attention_is_that_of_timm(options: dict[str, Any], images: Tensor) -> None:
    module = tiny_vit(**options)
    trace = load_model(module).trace(images, attention=True)
    found = [*trace.attention, *trace.gradients(torch.tensor([1] * 4), *trace.attention)]
    for ours, theirs in zip(found, attention_by_hooks(module, images), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6, rtol=1e-4)


def test_attention_is_that_of_multi_head_attention(images: Tensor) -> None:
    module = randomised(torchvision_vit())
    seen: list[tuple[Tensor, nn.MultiheadAttention]] = []
    for layer in module.encoder.layers:
        layer.self_attention.register_forward_pre_hook(lambda part, args: seen.append((args[0], part)))
    plain_outputs(module, images)
    inputs = seen[:]
    trace = load_model(module).trace(images, attention=True)
    with torch.no_grad():
        expected = [part(x, x, x, average_attn_weights=False)[1] for x, part in inputs]
    for ours, theirs in zip(trace.attention, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_attention_of_the_transformer_encoder(images: Tensor) -> None:
    module = randomised(EncoderViT())
    trace = load_model(module).trace(images, attention=True)
    with torch.no_grad():
        x = module.embedding(images)
        for ours, layer in zip(trace.attention, module.encoder.layers, strict=True):
            assert torch.allclose(ours, layer.self_attn(x, x, x, average_attn_weights=False)[1], atol=1e-5)
            x = layer(x)


def test_attention_that_is_called_by_keywords_is_no_obstacle(images: Tensor) -> None:
    module = randomised(QueryPoolCNN())
    model = load_model(module)
    assert "attention only pools" in model.structure((SIZE, SIZE)).missing["attention"]
    assert torch.allclose(model.trace(images, features=[-1]).outputs, plain_outputs(module, images), atol=1e-5)
    with pytest.raises(CapabilityError, match="attention only pools"):
        aha.explain(model, images, "rollout")


class Masked(nn.Module):
    """Attention with every option that `scaled_dot_product_attention` has."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 16).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, **self.options).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.7},
        {"is_causal": True},
        {"attn_mask": torch.ones(17, 17, dtype=torch.bool).tril(2)},
        {"attn_mask": torch.linspace(-3, 3, 17 * 17).view(17, 17)},
    ],
    ids=["plain", "scale", "causal", "mask", "bias"],
)
def test_explicit_attention_equals_the_fused_one(options: dict[str, Any], images: Tensor) -> None:
    vit = tiny_vit()
    module = randomised(nn.Sequential(vit.patch_embed, nn.ZeroPad2d((0, 0, 0, 1)), Masked(**options)))
    module.append(nn.Flatten()).append(nn.Linear(17 * 32, CLASSES))
    trace = load_model(module).trace(images, attention=True)
    assert torch.allclose(trace.outputs, plain_outputs(module, images), atol=1e-5)


def test_grouped_queries_are_repeated() -> None:
    from aha.models.introspection.attention import explicit_attention

    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert torch.allclose(explicit_attention(q, k, v, enable_gqa=True, on_attention=lambda a: a), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["test_convnext", "test_resnet", "test_efficientnet"])
def test_networks_without_attention_say_so(name: str) -> None:
    model = load_model(f"timm:{name}", pretrained=False, input_size=64)
    assert model.capabilities == {"gradients", "features"}
    with pytest.raises(CapabilityError, match=r"rollout needs attention.*no softmax attention is computed.*Try: "):
        aha.explain(model, torch.zeros(1, 3, 64, 64), "rollout")


# Tokens


def test_outputs_follow_from_the_last_tokens(transformer: nn.Module, images: Tensor) -> None:
    model = load_model(transformer)
    structure = model.structure((SIZE, SIZE))
    if isinstance(transformer, LinearPatchViT):
        assert "tokens" not in structure.capabilities
        assert "attention" in structure.capabilities
        with pytest.raises(CapabilityError, match=r"legrad needs tokens.*residual"):
            aha.explain(model, images, "legrad")
        return
    before = snapshot(transformer)
    trace = model.trace(images, tokens=True)
    assert len(trace.tokens) == len(structure.blocks) + 1
    outputs = model.outputs_from_tokens(images, trace.tokens[-1])
    assert torch.allclose(outputs, plain_outputs(transformer, images), atol=1e-5)
    assert outputs.requires_grad
    other = model.outputs_from_tokens(images, trace.tokens[0].detach())
    assert not torch.allclose(other, outputs, atol=1e-3)
    assert not other.requires_grad
    assert changes(before, snapshot(transformer)) == []


def test_tokens_are_the_inputs_and_outputs_of_the_blocks(images: Tensor) -> None:
    module = tiny_vit()
    seen: list[Tensor] = []
    handles = [block.register_forward_hook(lambda _, args, out: seen.extend((args[0], out))) for block in module.blocks]
    plain_outputs(module, images)
    for handle in handles:
        handle.remove()
    trace = load_model(module).trace(images, tokens=True)
    for ours, theirs in zip(trace.tokens, [seen[0], seen[1], seen[3]], strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def distilled() -> nn.Module:
    from timm.models.deit import VisionTransformerDistilled

    return VisionTransformerDistilled(
        img_size=SIZE, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=CLASSES
    )


READOUTS: dict[str, tuple[Callable[[], nn.Module], set[int], int]] = {
    "class token": (tiny_vit, {0}, 17),
    "registers": (lambda: tiny_vit(reg_tokens=4), {0}, 21),
    "mean of the patches": (lambda: tiny_vit(global_pool="avg"), set(range(1, 17)), 17),
    "no class token": (lambda: tiny_vit(class_token=False, global_pool="avg"), set(range(16)), 16),
    "distilled": (distilled, {0, 1}, 18),
    "attention pooling": (lambda: tiny_vit(class_token=False, global_pool="map"), set(range(16)), 16),
    "one shared block": (SharedBlockViT, {0}, 17),
    "residuals outside": (LinearPatchViT, {0}, 17),
}


@pytest.mark.parametrize("name", READOUTS)
def test_readout_is_what_the_head_reads(name: str, images: Tensor) -> None:
    build, read, count = READOUTS[name]
    model = load_model(randomised(build()))
    readout = model.readout((SIZE, SIZE))
    assert len(readout) == count
    assert set(readout.nonzero().flatten().tolist()) == read
    trace = model.trace(images, attention=True)
    matrix = trace.attention[0]
    assert torch.allclose(trace.read(matrix), matrix[:, :, sorted(read)].mean(dim=2))
    assert trace.to_grid(matrix[:, 0, 0]).shape == (4, 4, 4)
    assert torch.equal(trace.to_grid(matrix[:, 0, 0])[:, 0, 1], matrix[:, 0, 0, count - 16 + 1])


def test_an_untrained_head_is_read_as_usual() -> None:
    """As it is before fine-tuning; what is found out is forgotten, since training will change it."""
    module = tiny_vit(global_pool="avg")
    trained = module.head.weight.detach().clone()
    nn.init.zeros_(module.head.weight)
    model = load_model(module)
    assert model.readout((SIZE, SIZE)).nonzero().flatten().tolist() == [0]
    assert model.cam_stage((SIZE, SIZE)) == 2
    with pytest.warns(MapWarning, match="is flat at 0"):
        aha.explain(model, torch.randn(1, 3, SIZE, SIZE), "grad_cam(form='features')")
    with torch.no_grad():
        module.head.weight.copy_(trained)
    assert model.readout((SIZE, SIZE)).sum() == 16
    module = tiny_vit()
    trained = module.head.weight.detach().clone()
    nn.init.zeros_(module.head.weight)
    model = load_model(module)
    assert model.cam_stage((SIZE, SIZE)) == 2
    with torch.no_grad():
        module.head.weight.copy_(trained)
    assert model.cam_stage((SIZE, SIZE)) == 1


def test_class_activation_needs_places_that_are_read() -> None:
    """Behind a class token the last block's patches reach nothing; a pooled readout sees them."""
    expected = {
        "blocks.1.norm1": tiny_vit(),
        "blocks": tiny_vit(global_pool="avg"),
        "norm": tiny_vit(global_pool="avg", final_norm=True, fc_norm=False, class_token=False),
        "encoder.layers.0": randomised(EncoderViT()),
        "encoder.layers.encoder_layer_1.ln_1": randomised(torchvision_vit()),
        "layers.1.0.norm": randomised(LinearPatchViT()),
        "body": randomised(TinyCNN()),
    }
    for name, module in expected.items():
        model = load_model(module)
        assert model.structure((SIZE, SIZE)).stages[model.cam_stage((SIZE, SIZE))].name == name
    shared = load_model(randomised(SharedBlockViT()))
    site = shared.structure((SIZE, SIZE)).stages[shared.cam_stage((SIZE, SIZE))]
    assert (site.name, site.call) == ("block.norm1", 2)


STAGES = {
    "resnet26": ["act1", "layer1", "layer2", "layer3", "layer4"],  # not the first layers of the blocks that shrink
    "regnetx_002": ["stem", "s1", "s2", "s3", "s4"],
    "mobilenetv3_small_050": ["bn1", "blocks.0", "blocks.1", "blocks.3", "blocks"],
    "convnext_atto": [*(f"stages.{i}.downsample.0" for i in (1, 2, 3)), "stages"],  # behind the norm that reads them
    "vit_tiny_patch16_224": [*(f"blocks.{i}.norm1" for i in range(12)), "norm"],
    "cait_xxs24_224": [
        *(f"blocks.{i}.norm1" for i in range(24)),
        *(f"blocks_token_only.{i}.norm1" for i in (0, 1)),
        "norm",
    ],
}


@pytest.mark.parametrize("name", STAGES)
def test_stages_are_what_one_would_choose_by_hand(name: str) -> None:
    model = load_model(f"timm:{name}", pretrained=False, input_size=64)
    assert [site.name for site in model.structure().stages if site.name != "blocks" or name[:3] != "cai"] == STAGES[
        name
    ]


def test_no_stage_of_a_network_with_layer_norms_is_rounding_noise() -> None:
    module = load_model("timm:convnext_atto", pretrained=False, input_size=64).module
    inputs = torch.randn(1, 3, 64, 64)
    for layer in (-1, -2, -3):
        single = aha.explain(module.float(), inputs, f"hires_cam(layer={layer})", target=3).maps
        double = aha.explain(module.double(), inputs, f"hires_cam(layer={layer})", target=3).maps
        assert (single - double).abs().max() < 1e-2 * double.abs().max()


def test_class_activation_is_more_than_rounding_noise(transformer: nn.Module, images: Tensor) -> None:
    """Behind a layer norm, gradients are orthogonal to tokens: the product must be taken on the other side of it."""
    for layer in (-1, -2):
        if isinstance(transformer, EncoderViT) and layer == -2:
            continue  # its first tokens come before any block
        single = aha.explain(transformer.float(), images, f"hires_cam(layer={layer})").maps
        double = aha.explain(transformer.double(), images, f"hires_cam(layer={layer})").maps
        assert (single - double).abs().max() < 1e-3 * double.abs().max()


def test_layers_that_do_not_exist(images: Tensor) -> None:
    for model, method in [
        (TinyCNN(), "grad_cam(layer=-9)"),
        (TinyCNN(), "hires_cam(layer=-9)"),
        (tiny_vit(), "grad_cam(layer=-9)"),
        (tiny_vit(), "raw_attention(layer=-3)"),
        (tiny_vit(), "rollout(start_layer=2)"),
        (tiny_vit(), "legrad(layers=3)"),
    ]:
        with pytest.raises(SpecError, match=r"does not exist|there are 2 blocks"):
            aha.explain(randomised(model), images, method)

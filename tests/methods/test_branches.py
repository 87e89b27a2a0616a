"""The tokens between attention and MLP: found in models of many makes, or the reason why they are not there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torchvision
from timm.models.eva import Eva
from timm.models.vision_transformer import ParallelScalingBlock, ResPostBlock
from torch import Tensor, nn

import aha
from aha.errors import CapabilityError
from aha.models import load_model
from fakes import CLASSES, SIZE, EncoderViT, LinearPatchViT, changes, randomised, snapshot, tiny_vit


def norm_first() -> nn.Module:
    module = EncoderViT()
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, activation="gelu", norm_first=True)
    module.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return randomised(module)


def eva(**options: object) -> nn.Module:
    """Rotary positions, a gated MLP with a norm of its own, a norm between attention and its projection."""
    settings = {"img_size": SIZE, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": CLASSES}
    return randomised(Eva(**settings, use_rot_pos_emb=True, swiglu_mlp=True, **options))


def torchvision_vit() -> nn.Module:
    module = torchvision.models.VisionTransformer(SIZE, 8, 2, 2, 32, 64, num_classes=CLASSES)
    return randomised(module)


# How to build a model, and which module adds (or hands on, to be added) what attention gives, in each block.
MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "timm": (tiny_vit, "blocks.{}.ls1"),
    "layer scale": (lambda: tiny_vit(init_values=0.5), "blocks.{}.ls1"),
    "norms of queries and keys": (lambda: tiny_vit(qk_norm=True), "blocks.{}.ls1"),
    "rotary positions": (eva, "blocks.{}.attn"),
    "norms inside": (lambda: eva(scale_mlp=True, scale_attn_inner=True), "blocks.{}.attn"),
    "torch encoder": (norm_first, "encoder.layers.{}.dropout1"),
    "torchvision": (torchvision_vit, "encoder.layers.encoder_layer_{}.dropout"),
}


@pytest.mark.parametrize("name", MODELS)
def test_middles_are_tokens_plus_what_attention_adds(name: str, images: Tensor) -> None:
    build, adder = MODELS[name]
    module = build().double()
    model = load_model(module)
    before = snapshot(module)
    trace = model.trace(images.double(), attention=True, tokens=True, residual_mid=True)
    assert "branches" in model.structure((SIZE, SIZE)).capabilities
    assert changes(before, snapshot(module)) == []
    assert len(trace.residual_mid) == len(trace.attention) == 2
    outputs: list[Tensor] = []
    for index in range(2):
        module.get_submodule(adder.format(index)).register_forward_hook(
            lambda _part, _args, out: outputs.append(out[0] if isinstance(out, tuple) else out)
        )
    module(images.double())
    for x, middle, added in zip(trace.tokens[:-1], trace.residual_mid, outputs, strict=True):
        assert torch.allclose(middle, x + added, atol=1e-9)
    assert aha.explain(module, images.double(), "inflow").maps.isfinite().all()


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: tiny_vit(block_fn=ResPostBlock), "one after the other"),
        (lambda: tiny_vit(block_fn=ParallelScalingBlock), "one after the other"),
        (lambda: randomised(EncoderViT()), "one after the other"),
        (lambda: randomised(LinearPatchViT()), "its residual connections lie outside its blocks"),
    ],
    ids=["norms on the branches", "branches side by side", "norms behind the sums", "sums outside"],
)
def test_other_orders_are_refused_by_name(build: Callable[[], nn.Module], reason: str, images: Tensor) -> None:
    module = build()
    for method in ("inflow", "bidirectional(form='token')"):
        with pytest.raises(CapabilityError, match=rf"needs branches.*{reason}|needs branches, tokens.*{reason}"):
            aha.explain(module, images, method)
    assert aha.explain(module, images, "bidirectional(steps=2)").maps.isfinite().all()

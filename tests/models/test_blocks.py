"""Blocks run on other tokens: what is handed in arrives, what cannot be done is told, and nothing stays behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

import aha
from aha.bench.recommendation.budget import Account, BudgetSpent, metered
from aha.models import Block, load_model
from fakes import (
    SIZE,
    Boom,
    EncoderViT,
    InPlaceViT,
    LinearPatchViT,
    SharedBlockViT,
    changes,
    randomised,
    snapshot,
    surroundings,
    tiny_vit,
    vit_with_fuse,
)

MODULES = {"timm": tiny_vit, "torch": EncoderViT, "shared": SharedBlockViT, "in_place": InPlaceViT}


@pytest.mark.parametrize("kind", MODULES)
def test_states_are_those_of_a_trace(kind: str, images: Tensor) -> None:
    model = load_model(randomised(MODULES[kind]()))
    states, trace = model.block_states(images), model.trace(images, tokens=True)
    assert len(states.tokens) == len(trace.tokens)
    for ours, theirs in zip(states.tokens, trace.tokens, strict=True):
        assert torch.allclose(ours, theirs.detach(), atol=1e-5)
    assert torch.allclose(states.outputs, trace.outputs.detach(), atol=1e-5)


@pytest.mark.parametrize("kind", ["timm", "torch"])
def test_queries_and_keys_give_the_attention(kind: str, images: Tensor) -> None:
    model = load_model(randomised(MODULES[kind]()))
    states, trace = model.block_states(images, attention=True), model.trace(images, attention=True)
    for queries, keys, matrix in zip(states.queries, states.keys, trace.attention, strict=True):
        assert torch.allclose((queries @ keys.transpose(-2, -1)).softmax(dim=-1), matrix.detach(), atol=1e-5)
    assert [values.shape for values in states.values] == [keys.shape for keys in states.keys]
    assert torch.allclose(states.outputs, trace.outputs.detach(), atol=1e-4)


def test_fewer_tokens_are_fewer_tokens_in_every_block(images: Tensor) -> None:
    vit = tiny_vit()
    model = load_model(vit)
    seen: list[torch.Size] = []
    kept = torch.tensor([0, 1, 4, 9, 16])

    def step(index: int, tokens: Tensor, block: Block) -> Tensor:
        return block(tokens[:, kept] if index == 0 else tokens)

    model.structure((3, SIZE, SIZE))
    handles = [block.mlp.register_forward_hook(lambda _m, _a, out: seen.append(out.shape)) for block in vit.blocks]
    before = model.passes["forward"]
    found = model.outputs_by_blocks(images, step)
    for handle in handles:
        handle.remove()
    assert seen == [(4, 5, 32), (4, 5, 32)]
    assert model.passes["forward"] - before == 2, "4 images of 5 of 17 tokens: the work of 1.2 images"
    with torch.no_grad():
        tokens = vit.blocks(vit._pos_embed(vit.patch_embed(images))[:, kept])
        assert torch.allclose(found, vit.forward_head(vit.norm(tokens)), atol=1e-5)


def test_what_goes_through_a_block_is_counted_before(images: Tensor, tmp_path: Path) -> None:
    vit = tiny_vit()
    model, account = load_model(vit), Account(tmp_path)
    seen: list[int] = []
    model.structure((3, SIZE, SIZE))
    for block in vit.blocks:
        block.mlp.register_forward_hook(lambda _m, _a, out: seen.append(len(out)))
    with metered(account, passes=3, seconds=1e9), pytest.raises(BudgetSpent):
        model.block_states(images)
    assert seen == [4], "the second of two blocks would be the other half of 4 passes"
    assert model.passes["forward"] == account.passes == 2


def rope_vit() -> nn.Module:
    return randomised(
        timm.models.eva.Eva(
            img_size=SIZE, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5, use_rot_pos_emb=True
        )
    )


@pytest.mark.parametrize(
    ("module", "tokens", "attention"),
    [
        (tiny_vit(), "", ""),
        (tiny_vit(class_token=False, global_pool="avg"), "", ""),
        (EncoderViT(), "", ""),
        (SharedBlockViT(), "", ""),
        (randomised(InPlaceViT()), "places of their tokens|expect all tokens", "."),
        (rope_vit(), "places of their tokens|expect all tokens", "."),
    ],
    ids=["timm", "pooled", "torch", "shared", "positions in blocks", "rotary positions"],
)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_limits(module: nn.Module, tokens: str, attention: str, precision: Any) -> None:
    limits = load_model(module, precision=precision).block_limits((SIZE, SIZE))
    for found, pattern in ((limits.tokens, tokens), (limits.attention, attention)):
        assert (found == "") == (pattern == "")
        assert any(word in found for word in pattern.split("|")) or pattern == "."


def test_a_method_that_would_refuse_is_not_listed() -> None:
    stated = {"input_size": SIZE, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    plain, rotary = (set(aha.list_methods(load_model(module, **stated))) for module in (tiny_vit(), rope_vit()))
    assert "tis" in plain
    assert "caap" in plain & rotary
    assert "tis" not in rotary


def test_attention_by_hand_hides_its_keys() -> None:
    vit = tiny_vit()
    for block in vit.blocks:
        block.attn.fused_attn = False
    limits = load_model(vit).block_limits((SIZE, SIZE))
    assert limits.tokens == ""
    assert "by hand" in limits.attention


def test_nothing_stays_behind_on_success_or_failure(images: Tensor) -> None:
    module, fuse = vit_with_fuse()
    module.train()
    model = load_model(module)
    model.structure((3, SIZE, SIZE))
    before = (snapshot(module), surroundings())
    model.block_states(images, attention=True)
    model.block_limits((SIZE, SIZE))
    fuse.set(1)
    with pytest.raises(Boom):
        model.block_states(images, attention=True)
    fuse.set(2)
    with pytest.raises(Boom):
        load_model(module).block_limits((SIZE, SIZE))
    for was, now in zip(before, (snapshot(module), surroundings()), strict=True):
        assert changes(was, now) == []


def test_residuals_outside_of_blocks_give_no_tokens() -> None:
    assert "tokens" not in load_model(randomised(LinearPatchViT())).structure((SIZE, SIZE)).capabilities


def test_derivatives_through_all_blocks_are_counted_as_a_backward_pass(images: Tensor) -> None:
    model = load_model(tiny_vit())  # of two blocks
    trace = model.trace(images, attention=True, tokens=True)
    counts = []
    for block in (0, 1, 0):
        after = trace.tokens[block + 1]
        trace.vjp(after, torch.ones_like(after), trace.attention[block])
        counts.append(model.passes["backward"])
    assert counts == [4, 4, 8]

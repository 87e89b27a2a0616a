"""Transformer attribution against its equations written out, and conservation of relevance."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
from torch import Tensor, nn

from aha.errors import CapabilityError, SpecError
from aha.methods import load_method
from aha.methods.attention.transformer_attribution import RULES
from aha.models import load_model
from fakes import EncoderViT, TinyCNN, randomised, tiny_vit

CHOSEN = torch.tensor([0, 1, 2, 4])


# The published equations, one image at a time, in double precision, on the layers of a timm ViT


def ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b == 0, 0, a / torch.where(b == 0, 1, b))


def back_linear(layer: nn.Linear, x: Tensor, relevance: Tensor) -> Tensor:
    """(T, in), (T, out) -> (T, in), by the full table of contributions."""
    terms = (x[:, None, :] * layer.weight[None]).clamp(min=0)  # (T, out, in): positive contributions
    total = terms.sum(dim=2)
    return (terms * ratio(relevance, total)[:, :, None]).sum(dim=1)


def back_add(a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    first, second = a * ratio(relevance, a + b), b * ratio(relevance, a + b)
    one, two = first.sum(), second.sum()
    whole = one.abs() + two.abs()
    return first * one.abs() / whole * relevance.sum() / one, second * two.abs() / whole * relevance.sum() / two


def back_matmul(a: Tensor, b: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """(h, n, m) @ (h, m, k), by the full table of terms."""
    terms = a[:, :, :, None] * b[:, None]  # (h, n, m, k)
    shared = terms * ratio(relevance, terms.sum(dim=2))[:, :, None, :]
    return shared.sum(dim=3) / 2, shared.sum(dim=1) / 2


def relevance_by_hand(module: nn.Module, image: Tensor, target: int) -> tuple[list[Tensor], list[Tensor]]:
    """Relevance of every attention matrix, and its sum at the input of every block."""
    x = module._pos_embed(module.patch_embed(image[None]))[0]
    kept = []
    for block in module.blocks:
        normed = block.norm1(x)
        q, k, v = block.attn.qkv(normed).view(17, 3, 2, 16).permute(1, 2, 0, 3)
        weights = (q @ k.transpose(-2, -1) / 4).softmax(dim=-1)
        mixed = weights @ v
        flat = mixed.transpose(0, 1).reshape(17, 32)
        attended = block.attn.proj(flat)
        middle = x + attended
        normed2 = block.norm2(middle)
        hidden = block.mlp.fc1(normed2)
        active = block.mlp.act(hidden)
        out = block.mlp.fc2(active)
        kept.append((x, normed, q, k, v, weights, mixed, flat, attended, middle, normed2, active, out))
        x = middle + out
    pooled = module.norm(x)[:1]
    start = torch.zeros(1, 5, dtype=x.dtype)
    start[0, target] = 1
    relevance = torch.zeros_like(x)
    relevance[:1] = back_linear(module.head, pooled, start)
    found, totals = [], []
    for block, parts in zip(reversed(module.blocks), reversed(kept), strict=True):
        x, normed, q, k, v, weights, mixed, flat, attended, middle, normed2, active, out = parts
        to_middle, to_out = back_add(middle, out, relevance)
        to_hidden = back_linear(block.mlp.fc2, active, to_out)
        to_middle = to_middle + back_linear(block.mlp.fc1, normed2, to_hidden)
        to_x, to_attended = back_add(x, attended, to_middle)
        to_mixed = back_linear(block.attn.proj, flat, to_attended).view(17, 2, 16).transpose(0, 1)
        to_weights, to_v = back_matmul(weights, v, to_mixed)
        to_q, to_k = back_matmul(q, k.transpose(-2, -1), to_weights)
        to_qkv = torch.stack([to_q, to_k.transpose(-2, -1), to_v]).permute(2, 0, 1, 3).reshape(17, 96)
        relevance = to_x + back_linear(block.attn.qkv, normed, to_qkv)
        found.insert(0, to_weights)
        totals.insert(0, relevance.sum())
    return found, totals


def test_relevance_by_the_equations(images: Tensor) -> None:
    module, images = tiny_vit().double(), images.double()
    model = load_model(module)
    with model.rules(RULES, attention_in_parts=True):
        trace = model.trace(images, attention=True, tokens=True)
    relevances = trace.gradients(CHOSEN, *trace.attention)
    at_inputs = trace.gradients(CHOSEN, *trace.tokens)
    assert torch.allclose(trace.outputs, module(images)), "rules change what goes back, not what goes forward"
    for row, target in enumerate(CHOSEN.tolist()):
        with torch.no_grad():
            expected, totals = relevance_by_hand(module, images[row], target)
        for ours, theirs in zip(relevances, expected, strict=True):
            assert float((ours[row] - theirs).abs().max()) < 1e-9 * float(theirs.abs().max())
        for ours, total in zip(at_inputs, totals, strict=False):
            assert float(ours[row].sum()) == pytest.approx(float(total), rel=1e-9)


@pytest.mark.parametrize("options", ["", "start_layer=1", "normalise=True"])
def test_maps_by_the_equations(images: Tensor, options: str) -> None:
    module, images = tiny_vit(depth=3).double(), images.double()
    model = load_model(module)
    found = load_method(f"transformer_attribution({options})")(model, images, CHOSEN)
    trace = model.trace(images, attention=True)
    slopes = trace.gradients(CHOSEN, *trace.attention)
    for row, target in enumerate(CHOSEN.tolist()):
        with torch.no_grad():
            relevances, _ = relevance_by_hand(module, images[row], target)
        result = torch.eye(17, dtype=torch.float64)
        for layer in range("start" in options, 3):
            step = (relevances[layer] * slopes[layer][row]).clamp(min=0).mean(dim=0) + torch.eye(17)
            result = (step / step.sum(dim=1, keepdim=True) if "norm" in options else step) @ result
        expected = result[0, 1:].view(4, 4)
        assert float((found[row] - expected).abs().max()) < 1e-9 * float(expected.abs().max())


def test_two_classes_of_a_single_output_are_told_apart(images: Tensor) -> None:
    model = load_model(tiny_vit(num_classes=1))
    method = load_method("transformer_attribution")
    first, second = (method(model, images, torch.full((4,), c)) for c in (0, 1))
    assert not torch.allclose(first, second, rtol=0.01)


def test_sums_of_what_is_broadcast_on_both_sides_get_no_relevance() -> None:
    rows, columns = torch.ones(4, 1, requires_grad=True), torch.ones(1, 4, requires_grad=True)
    assert torch.equal(RULES["add"](rows, columns), torch.full((4, 4), 2.0))


# Conservation: what is handed out at the top arrives at every block


CONSERVING: dict[str, Callable[[], nn.Module]] = {
    "class token": tiny_vit,
    "averaged": lambda: tiny_vit(global_pool="avg"),
    "layer scale": lambda: tiny_vit(init_values=0.3),
    "normalised queries": lambda: tiny_vit(qk_norm=True),
    "gated": lambda: tiny_vit(mlp_layer=timm.layers.SwiGLU),
    "quick gelu": lambda: tiny_vit(act_layer=timm.layers.QuickGELU),
    "registers": lambda: tiny_vit(reg_tokens=2),
    "encoder": lambda: randomised(EncoderViT()),
}


@pytest.mark.parametrize("name", CONSERVING)
def test_relevance_is_conserved(name: str, images: Tensor) -> None:
    model = load_model(CONSERVING[name]().double())
    with model.rules(RULES, attention_in_parts=True):
        trace = model.trace(images.double(), tokens=True)
    for relevance in trace.gradients(CHOSEN, *trace.tokens):
        assert torch.allclose(relevance.sum(dim=(1, 2)), torch.ones(4).double(), atol=1e-6)


def test_refusals(images: Tensor) -> None:
    import aha

    with pytest.raises(CapabilityError, match="attention"):
        aha.explain(randomised(TinyCNN()), images, "transformer_attribution")
    with pytest.raises(SpecError, match="start_layer must be a whole number of at least 0"):
        load_method("transformer_attribution(start_layer=-1)")
    with pytest.raises(SpecError, match="there are 2 blocks"):
        load_method("transformer_attribution(start_layer=2)")(load_model(tiny_vit()), images, CHOSEN)

"""Methods of attention against their formulas: one image at a time, in double precision, on what hooks have seen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import aha
from agreement import CHOSEN, Seen, Vit, agrees, grid, native
from aha.errors import CapabilityError, SpecError
from aha.methods import load_method
from aha.methods.attention.attention_ig import reasoning_feedback
from aha.models import load_model
from fakes import EncoderViT, TinyCNN, changes, randomised, snapshot, tiny_vit


def path_slopes(module: nn.Module, images: Tensor, steps: int) -> Tensor:
    """Mean gradient of the last attention on the way from zero to the images, (B, heads, T, T)."""
    total = 0
    for step in range(steps):
        seen = Seen(module, images * step / (steps - 1))
        total = total + seen.slope(seen.attention[-1])
    return total / steps


def feedback(module: nn.Module, images: Tensor, steps: int) -> Tensor:
    return path_slopes(module, images, steps).clamp(min=0).mean(dim=1)


def eye_like(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=matrix.dtype)


# Integrated gradients of attention


@pytest.mark.parametrize("steps", [2, 5])
def test_attention_ig(vit: Vit, steps: int) -> None:
    module, images, _, rows, prefix = vit
    expected = feedback(module, images, steps)[:, rows].mean(dim=1)
    agrees(native(module, images, f"attention_ig(steps={steps})"), grid(expected, prefix), 1e-9)


def test_attention_ig_clamps_after_averaging_over_the_path(images: Tensor) -> None:
    module = tiny_vit(depth=3)
    clamped_first = sum(Seen(module, images * a).slope_of_last().clamp(min=0) for a in (0.0, 0.5, 1.0)) / 3
    ours = native(module, images, "attention_ig(steps=3)")
    assert not torch.allclose(ours, grid(clamped_first.mean(dim=1)[:, 0], 1), rtol=0.01)


def test_steps_share_passes_without_changing_the_result(images: Tensor) -> None:
    module = tiny_vit()
    whole, _ = reasoning_feedback(load_model(module, batch_size=64), images, CHOSEN, 5)
    for size in (1, 3, 9):
        parts, _ = reasoning_feedback(load_model(module, batch_size=size), images, CHOSEN, 5)
        agrees(parts, whole, 1e-5)


# Generic attention explainability


@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("normalised", [False, True])
def test_grad_rollout(vit: Vit, start: int, normalised: bool) -> None:
    module, images, seen, rows, prefix = vit
    expected = []
    for index in range(len(images)):
        relevance = torch.eye(16 + prefix, dtype=torch.float64)
        for matrices in seen.attention[start:]:
            by_head = (seen.slope(matrices)[index] * matrices[index]).detach().clamp(min=0)
            step = by_head.mean(dim=0)
            if normalised:
                step = step + eye_like(step)
                relevance = step / step.sum(dim=1, keepdim=True) @ relevance
            else:
                relevance = relevance + step @ relevance
        relevance = relevance if normalised else relevance - eye_like(relevance)
        expected.append(relevance[rows].mean(dim=0))
    found = native(module, images, f"grad_rollout(start_layer={start}, normalised={normalised})")
    agrees(found, grid(torch.stack(expected), prefix), 1e-9)


def test_grad_rollout_of_one_layer_is_grad_cam_with_each_head_clamped(images: Tensor) -> None:
    """R = I + C: off the diagonal, attention times gradient; Grad-CAM clamps after the mean over heads."""
    module = tiny_vit(depth=1, num_heads=1)
    agrees(native(module, images, "grad_rollout"), native(module, images, "grad_cam(form='attention')"), 1e-5)


# Transition attention maps


@pytest.mark.parametrize(("start", "repeat"), [(0, False), (1, False), (0, True), (2, False)])
def test_transition_attention(vit: Vit, start: int, repeat: bool) -> None:
    module, images, seen, rows, prefix = vit
    weights = feedback(module, images, 3)
    expected = []
    for index in range(len(images)):
        fused = [matrices[index].detach().mean(dim=0) for matrices in seen.attention]
        state = fused[-1][rows].mean(dim=0)
        before = list(range(start, 3 if repeat else 2))
        for layer in before[::-1]:
            state = state @ fused[layer] + state
        expected.append(state * weights[index][rows].mean(dim=0))
    text = f"transition_attention(start_layer={start}, steps=3, repeat_last={repeat})"
    agrees(native(module, images, text), grid(torch.stack(expected), prefix), 1e-9)


def test_transition_attention_of_one_layer_is_attention_times_its_gradients(images: Tensor) -> None:
    module = tiny_vit(depth=1)
    product = native(module, images, "raw_attention") * native(module, images, "attention_ig")
    agrees(native(module, images, "transition_attention"), product, 1e-5)


# Bidirectional attention


@pytest.mark.parametrize("start", [None, 0, 2])
def test_bidirectional_by_heads(vit: Vit, start: int | None) -> None:
    module, images, seen, rows, prefix = vit
    weights = feedback(module, images, 3)
    expected = []
    for index in range(len(images)):
        perceived = torch.eye(16 + prefix, dtype=torch.float64)
        for matrices in seen.attention[start or 0 :]:  # a quarter of three blocks is none
            heads, slopes = matrices[index].detach(), seen.slope(matrices)[index]
            strength = torch.stack([(a.T @ g).abs().mean() for a, g in zip(heads, slopes, strict=True)])
            step = sum(share * a for share, a in zip(strength / strength.sum(), heads, strict=True))
            perceived = perceived + step @ perceived
        expected.append((weights[index] * perceived)[rows].mean(dim=0))
    found = native(module, images, f"bidirectional(start_layer={start}, steps=3)")
    agrees(found, grid(torch.stack(expected), prefix), 1e-9)


# AttCAT


@pytest.mark.parametrize("hidden", ["output", "input"])
def test_attcat(vit: Vit, hidden: str) -> None:
    module, images, seen, _, prefix = vit
    expected = torch.zeros(4, 16 + prefix, dtype=torch.float64)
    for layer, matrices in enumerate(seen.attention):
        tokens = seen.outputs[layer] if hidden == "output" else seen.inputs[layer]
        received = matrices.detach().mean(dim=2).mean(dim=1)
        expected += received * (tokens * seen.slope(tokens)).sum(dim=-1).detach()
    agrees(native(module, images, f"attcat(hidden='{hidden}')"), grid(expected, prefix), 1e-9)


# Refusals


@pytest.mark.parametrize("name", ["attention_ig", "transition_attention", "bidirectional"])
def test_a_path_has_two_ends(name: str) -> None:
    with pytest.raises(SpecError, match=f"{name}: steps must be a whole number of at least 2"):
        load_method(f"{name}(steps=1)")


@pytest.mark.parametrize("name", ["rollout", "grad_rollout", "transition_attention", "bidirectional"])
def test_first_layers_that_do_not_exist(name: str, images: Tensor) -> None:
    with pytest.raises(SpecError, match=f"{name}: start_layer=2, but there are 2 blocks"):
        native(tiny_vit(), images, f"{name}(start_layer=2)")
    with pytest.raises(SpecError, match="start_layer must be a whole number of at least 0"):
        load_method(f"{name}(start_layer=-1)")


@pytest.mark.parametrize("name", ["attention_ig", "grad_rollout", "transition_attention", "bidirectional", "attcat"])
def test_networks_without_attention_are_refused(name: str, images: Tensor) -> None:
    with pytest.raises(CapabilityError, match=r"needs attention.*no softmax attention is computed"):
        aha.explain(randomised(TinyCNN()), images, name)


# What attention and MLP add to the tokens


def test_values_are_those_of_the_projection(vit: Vit) -> None:
    """`V W_O` from the model's own weights: the values of a normalised token, projected, without the bias."""
    module, images, seen, _, _ = vit
    trace = load_model(module).trace(images, attention=True, tokens=True, residual_mid=True)
    for index, block in enumerate(module.blocks):
        width = seen.normed[index].shape[-1]
        values = seen.normed[index] @ block.attn.qkv.weight[2 * width :].T + block.attn.qkv.bias[2 * width :]
        agrees(trace.values(index), values @ block.attn.proj.weight.T, 1e-9)


@pytest.mark.parametrize("start", [None, 0])
def test_bidirectional_by_tokens(vit: Vit, start: int | None) -> None:
    module, images, seen, rows, prefix = vit
    weights = feedback(module, images, 3)
    expected = []
    for index in range(len(images)):
        perceived = torch.eye(16 + prefix, dtype=torch.float64)
        for layer in range(1 if start is None else start, 3):  # half of three blocks is one
            block, width = module.blocks[layer], 32
            normed = seen.normed[layer][index].detach()
            values = normed @ block.attn.qkv.weight[2 * width :].T + block.attn.qkv.bias[2 * width :]
            ratio = (values @ block.attn.proj.weight.T).norm(dim=1) / seen.inputs[layer][index].norm(dim=1)
            step = seen.attention[layer][index].mean(dim=0) @ torch.diag(ratio)
            perceived = (perceived + step @ perceived).detach()
        expected.append((weights[index] * perceived)[rows].mean(dim=0))
    found = native(module, images, f"bidirectional(form='token', start_layer={start}, steps=3)")
    agrees(found, grid(torch.stack(expected), prefix), 1e-8)


@pytest.mark.parametrize(("gradient", "mlp"), [(True, True), (False, True), (True, False)])
def test_inflow(vit: Vit, gradient: bool, mlp: bool) -> None:
    """Slowly: one image, one block, one backward pass from a score of its own at a time; diagonals as matrices."""
    module, images, everything, rows, prefix = vit
    expected = []
    for index in range(4):
        seen = Seen(module, images[index : index + 1].repeat(4, 1, 1, 1))  # the score of image 0 alone is used
        rolled = torch.eye(16 + prefix, dtype=torch.float64)
        for layer in range(3):
            heads = seen.attention[layer][0].detach()
            slopes = everything.slope(everything.attention[layer])[index]
            strength = torch.stack([(a.T @ g).abs().mean() for a, g in zip(heads, slopes, strict=True)])
            mixed = (heads * (strength / strength.sum()).view(-1, 1, 1)).max(dim=0).values
            if gradient:
                normed = module.fc_norm(module.norm(seen.outputs[layer][:1]))  # one of the two norms is the identity
                logits = module.head(normed.mean(dim=1))
                (steer,) = torch.autograd.grad(logits[0, CHOSEN[index]], seen.attention[layer], retain_graph=True)
                mixed = (steer[0].mean(dim=0) * mixed).clamp(min=0)
            x, added = seen.inputs[layer][0].detach(), seen.attention_outputs[layer][0].detach()
            mlp_added = seen.outputs[layer][0].detach() - x - added
            a, b = x.norm(dim=1), added.norm(dim=1)
            e, f = (x + added).norm(dim=1), mlp_added.norm(dim=1)
            a, b, e, f = a / (a + b), b / (a + b), e / (e + f), f / (e + f)
            step = mixed @ torch.diag(b) + torch.diag(a)
            if mlp:
                r = (f / e) / (f / e).sum()
                step = step @ (torch.diag(r * f) + torch.diag(e))
            rolled = step / step.sum(dim=1, keepdim=True) @ rolled
        expected.append(rolled[rows].mean(dim=0))
    found = native(module, images, f"inflow(gradient={gradient}, mlp={mlp})")
    agrees(found, grid(torch.stack(expected), prefix), 1e-8)


def test_tokens_alone_are_read_also_where_the_head_wants_all_of_them(images: Tensor) -> None:
    """The mean over tokens of a head's outputs: from short sequences, or from whole ones where the head counts them."""

    class Counting(EncoderViT):
        def forward(self, x: Tensor) -> Tensor:
            tokens = self.encoder(self.embedding(x))
            return self.head(tokens.unflatten(1, (1, 17)).amax(dim=(1, 2)))

    for build in (EncoderViT, Counting):
        module = randomised(build())
        model, before = load_model(module), snapshot(module)
        tokens = torch.randn(4, 17, 32)
        agrees(model.mean_output_of_tokens(images, tokens), module.head(tokens).mean(dim=1), 1e-5)
        assert changes(before, snapshot(module)) == []

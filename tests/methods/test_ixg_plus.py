"""Input times gradient over blocks, and LibraGrad's promise that the products add up to the score."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import aha
from aha.errors import SpecError
from aha.methods import load_method
from aha.methods.attention.libra_ixg_plus import LIBRA
from aha.models import load_model
from aha.models.scores import SCORES
from fakes import EncoderViT, randomised, tiny_vit

CHOSEN = torch.tensor([0, 1, 2, 4])


def native(module: nn.Module, images: Tensor, method: str) -> Tensor:
    return load_method(method)(load_model(module), images, CHOSEN)


def agrees(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    assert ours.shape == theirs.shape
    assert float((ours - theirs).detach().abs().max()) <= tolerance * float(theirs.detach().abs().max())


@pytest.mark.parametrize(("start", "first"), [(0, 0), (2, 2), ("'half'", 1)])
def test_plus_in_a_direct_loop(images: Tensor, start: object, first: int) -> None:
    module = tiny_vit(depth=3)
    seen: list[Tensor] = []

    def keep(_block: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        seen.append(args[0].detach().requires_grad_() if not seen else args[0])
        return (seen[-1],)

    handles = [block.register_forward_pre_hook(keep) for block in module.blocks]
    outputs = module(images)
    for handle in handles:
        handle.remove()
    slopes = torch.autograd.grad(outputs.gather(1, CHOSEN[:, None]).sum(), seen)
    expected = sum((x * g).sum(dim=-1) for x, g in zip(seen[first:], slopes[first:], strict=True))
    agrees(native(module, images, f"ixg_plus(start_layer={start})"), expected[:, 1:].view(4, 4, 4))


# Completeness: without biases, `sum of X^l * gradient` is the score at every block


def without_biases(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for name, value in module.named_parameters():
            if name.endswith("bias"):
                value.zero_()
    return module


def gated(**options: object) -> nn.Module:
    """A ViT with SwiGLU blocks, RMS norms and normalised queries."""
    layer = timm.layers.SwiGLU
    return tiny_vit(mlp_layer=layer, norm_layer=timm.layers.RmsNorm, qk_norm=True, **options)


BALANCED: dict[str, Callable[[], nn.Module]] = {
    "class token": tiny_vit,
    "averaged": lambda: tiny_vit(global_pool="avg"),
    "layer scale": lambda: tiny_vit(init_values=0.3),
    "tanh gelu": lambda: tiny_vit(act_layer=lambda **_: nn.GELU(approximate="tanh")),
    "quick gelu": lambda: tiny_vit(act_layer=timm.layers.QuickGELU),
    "silu": lambda: tiny_vit(act_layer=nn.SiLU),
    "gated": gated,
    "encoder": lambda: randomised(EncoderViT()),
}


@pytest.mark.parametrize("name", BALANCED)
def test_libra_is_complete_on_balanced_paths(name: str, images: Tensor) -> None:
    module = without_biases(BALANCED[name]())
    model = load_model(module)
    plain = model.outputs(images)
    with model.rules(LIBRA, attention_in_parts=True):
        trace = model.trace(images, tokens=True)
    agrees(trace.outputs, plain)
    scores = plain.gather(1, CHOSEN[:, None])[:, 0]
    for tokens, slope in zip(trace.tokens, trace.gradients(CHOSEN, *trace.tokens), strict=True):
        agrees((tokens * slope).sum(dim=(1, 2)), scores, 1e-4)
    bare = model.trace(images, tokens=True)
    (slope,) = bare.gradients(CHOSEN, bare.tokens[0])
    assert not torch.allclose((bare.tokens[0] * slope).sum(dim=(1, 2)), scores, rtol=0.05), "gradients alone are not"


def test_libra_by_hand(images: Tensor) -> None:
    """One block, written out with detached parts."""
    module = tiny_vit(depth=1).double()
    images = images.double()
    block = module.blocks[0]

    def norm(x: Tensor, layer: nn.LayerNorm) -> Tensor:
        deviation = (x.var(dim=-1, unbiased=False, keepdim=True) + layer.eps).sqrt().detach()
        return (x - x.mean(dim=-1, keepdim=True)) / deviation * layer.weight + layer.bias

    tokens = module._pos_embed(module.patch_embed(images)).detach().requires_grad_()
    q, k, v = block.attn.qkv(norm(tokens, block.norm1)).view(4, 17, 3, 2, 16).permute(2, 0, 3, 1, 4)
    weights = (q @ k.transpose(-2, -1) / 4).softmax(dim=-1).detach()
    x = tokens + block.attn.proj((weights @ v).transpose(1, 2).reshape(4, 17, 32))
    hidden = block.mlp.fc1(norm(x, block.norm2))
    gate = (0.5 * (1 + torch.erf(hidden / 2**0.5))).detach()
    x = x + block.mlp.fc2(hidden * gate)
    outputs = module.head(norm(x[:, 0], module.norm))
    assert torch.allclose(outputs, module(images))
    for kind, total in (
        ("logit", outputs.gather(1, CHOSEN[:, None]).sum()),
        ("probability", outputs.softmax(dim=1).gather(1, CHOSEN[:, None]).sum()),
    ):
        (slope,) = torch.autograd.grad(total, tokens, retain_graph=True)
        expected = (tokens * slope).sum(dim=-1)[:, 1:].view(4, 4, 4)
        agrees(native(module, images, f"libra_ixg_plus(score='{kind}')"), expected, 1e-9)


def test_gates_at_zero() -> None:
    x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    for name, plain, slope in (("gelu", F.gelu, 0.5), ("silu", F.silu, 0.5)):
        value = LIBRA[name](x)
        assert torch.equal(value, plain(x))
        (found,) = torch.autograd.grad(value.sum(), x)
        assert found[1] == slope and torch.allclose(found[[0, 2]], (plain(x) / x)[[0, 2]])


def test_scores_without_probabilities(images: Tensor) -> None:
    model = load_model(tiny_vit(), score=SCORES["logit"])
    both = [aha.explain(model, images, f"libra_ixg_plus(score='{kind}')").maps for kind in ("logit", "probability")]
    assert torch.equal(*both)


def test_bad_parameters(images: Tensor) -> None:
    for name in ("ixg_plus", "libra_ixg_plus"):
        with pytest.raises(SpecError, match="start_layer"):
            load_method(f"{name}(start_layer=-1)")
        with pytest.raises(SpecError, match="start_layer=2, but there are 2 blocks"):
            native(tiny_vit(), images, f"{name}(start_layer=2)")

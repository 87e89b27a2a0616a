"""CAAP against activation patching written out with a model's own parts, one patch and one layer at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import aha
from aha.errors import CapabilityError, SpecError
from aha.methods import load_method
from aha.methods.activation_patching.patching import neighbours
from aha.models import TargetModel, load_model
from fakes import SIZE, EncoderViT, InPlaceViT, TinyCNN, randomised, tiny_vit

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
CLASSES = torch.tensor([3])


def loaded(module: nn.Module) -> TargetModel:
    return load_model(module.double(), input_size=SIZE, mean=MEAN, std=STD)


def caap(model: TargetModel, images: Tensor, options: str = "", classes: Tensor = CLASSES) -> Tensor:
    return load_method(f"caap({options})")(model, images, classes)


def white() -> Tensor:
    mean, std = (torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1) for values in (MEAN, STD))
    return ((1 - mean) / std).expand(1, 3, SIZE, SIZE)


def states(vit: VisionTransformer, inputs: Tensor) -> list[Tensor]:
    """h^0 ... h^L of timm's model, through its public parts."""
    found = [vit.norm_pre(vit.patch_drop(vit._pos_embed(vit.patch_embed(inputs))))]
    for block in vit.blocks:
        found.append(block(found[-1]))
    return found


def around(place: int, radius: int = 1) -> list[int]:
    row, column = divmod(place, 4)
    return [r * 4 + c for r in range(4) for c in range(4) if max(abs(r - row), abs(c - column)) <= radius]


@torch.no_grad()
def algorithm_1(
    vit: VisionTransformer, inputs: Tensor, label: int, first: int, last: int, *, live: bool = True, prefix: int = 1
) -> Tensor:
    """Section 3 as it stands: for every patch, a sequence that is put together anew before every block."""
    source, blank = states(vit, inputs), states(vit, white())
    scores = []
    for place in range(16):
        inside = [prefix + j for j in around(place)]
        token = blank[first][:, :1]
        patched: dict[int, Tensor] = {}
        for level in range(first, len(vit.blocks)):
            context = blank[level].clone()
            context[:, :1] = token
            for j in inside:
                context[:, j] = patched[j] if live and level > last else source[level][:, j]
            after = vit.blocks[level](context)
            token, patched = after[:, :1], {j: after[:, j] for j in inside}
        scores.append(float(vit.forward_head(vit.norm(token)).softmax(dim=1)[0, label]))
    return torch.tensor(scores, dtype=torch.float64).view(1, 4, 4)


def agrees(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    assert found.shape == expected.shape
    assert float((found - expected).abs().max() / expected.abs().max()) < tolerance


RANGES = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (0, 3)]


@pytest.mark.parametrize(("first", "last"), RANGES)
@pytest.mark.parametrize("form", ["parallel", "patchwise"])
def test_both_exact_forms_are_algorithm_1(images: Tensor, form: str, first: int, last: int) -> None:
    vit, inputs = tiny_vit(depth=3), images[1:2].double()
    model = loaded(vit)
    for late in ("live", "source"):
        expected = algorithm_1(vit, inputs, 3, first, last, live=late == "live")
        agrees(caap(model, inputs, f"form={form!r}, late={late!r}, first={first}, last={last}"), expected)


def test_following_the_neighbourhood_matters_where_the_docstring_says(images: Tensor) -> None:
    model, inputs = loaded(tiny_vit(depth=3)), images[1:2].double()
    live, source = (caap(model, inputs, f"last=1, late={late!r}") for late in ("live", "source"))
    assert (live - source).abs().max() > 0.01 * live.max()
    live, source = (caap(model, inputs, f"last=3, late={late!r}") for late in ("live", "source"))
    agrees(live, source, 1e-12)


def test_the_default_range_is_two_thirds_of_the_depth(images: Tensor) -> None:
    vit, inputs = tiny_vit(depth=4), images[:1].double()
    agrees(caap(loaded(vit), inputs), algorithm_1(vit, inputs, 3, 0, 3))


@pytest.mark.parametrize(
    "module",
    [
        tiny_vit(depth=3, reg_tokens=2),
        tiny_vit(depth=3, init_values=0.5, qk_norm=True),
        randomised(EncoderViT(3)),
    ],
    ids=["registers", "scales", "torch-encoder"],
)
@pytest.mark.parametrize("neighbourhood", ["none", "3x3", "5x5", "manhattan"])
def test_parallel_is_patchwise_in_other_transformers(module: nn.Module, images: Tensor, neighbourhood: str) -> None:
    model, inputs = loaded(module), images[:1].double()
    options = f"neighbourhood={neighbourhood!r}, last=1"
    agrees(caap(model, inputs, options), caap(model, inputs, f"form='patchwise', {options}"))


def test_registers_stay_those_of_the_blank_run(images: Tensor) -> None:
    vit, inputs = tiny_vit(depth=3, reg_tokens=2), images[:1].double()
    agrees(caap(loaded(vit), inputs, "last=1"), algorithm_1(vit, inputs, 3, 0, 1, prefix=3))


# E-CAAP


@torch.no_grad()
def e_caap(vit: VisionTransformer, inputs: Tensor, label: int, *, attended: bool = False) -> Tensor:
    """Eq. 7-9 head by head and token by token, the neighbourhood's tokens being those of the source throughout.

    With `attended`, the blank tokens' one value is not their mean, but as the blank run's class token weighs them.
    """
    source, blank = states(vit, inputs), states(vit, white())
    heads, width = 2, 16
    scores = []
    for place in range(16):
        inside = [1 + j for j in around(place)]
        token = blank[0][0, 0]
        for level, block in enumerate(vit.blocks):

            def split(x: Tensor, block: nn.Module = block) -> list[list[Tensor]]:
                """Query, key and value of one token, for each head."""
                parts = block.attn.qkv(block.norm1(x)).view(3, heads, width)
                return [[parts[k, h] for k in range(3)] for h in range(heads)]

            mixed = []
            for h in range(heads):
                query, own_key, own_value = split(token)[h]
                blank_query = split(blank[level][0, 0])[h][0]
                outside = [split(blank[level][0, j])[h] for j in range(1, 17) if j not in inside]
                sizes = [math.exp(float(blank_query @ key) / 4) for _, key, _ in outside]
                z = sum(sizes)
                prototype = torch.stack([split(blank[level][0, j])[h][2] for j in range(1, 17)]).mean(dim=0)
                if attended:
                    prototype = sum(size * value for size, (_, _, value) in zip(sizes, outside, strict=True)) / z
                pairs = [(own_key, own_value), *(split(source[level][0, j])[h][1:] for j in inside)]
                weights = [math.exp(float(query @ key) / 4) for key, _ in pairs]
                top = sum(w * value for w, (_, value) in zip(weights, pairs, strict=True)) + z * prototype
                mixed.append(top / (sum(weights) + z))
            token = token + block.attn.proj(torch.cat(mixed))
            token = token + block.mlp(block.norm2(token))
        scores.append(float(vit.head(vit.norm(token)).softmax(dim=0)[label]))
    return torch.tensor(scores, dtype=torch.float64).view(1, 4, 4)


def test_the_efficient_form_is_its_formula(images: Tensor) -> None:
    vit, inputs = tiny_vit(), images[2:3].double()
    options = "form='efficient', late='source'"
    agrees(caap(loaded(vit), inputs, f"{options}, prototype='mean'"), e_caap(vit, inputs, 3))
    agrees(caap(loaded(vit), inputs, f"{options}, prototype='attended'"), e_caap(vit, inputs, 3, attended=True))


def test_values_weighted_as_the_blank_run_attends_are_exact_where_queries_are_all_alike(images: Tensor) -> None:
    vit = tiny_vit(depth=3)
    with torch.no_grad():
        for block in vit.blocks:
            block.attn.qkv.weight[:32] = 0
            block.attn.qkv.bias[:32] = 3 * torch.randn(32, generator=torch.Generator().manual_seed(1))
    model, inputs = loaded(vit), images[:1].double()
    exact = caap(model, inputs)
    agrees(caap(model, inputs, "form='efficient'"), exact, 1e-6)
    assert (caap(model, inputs, "form='efficient', prototype='mean'") - exact).abs().max() > 1e-3 * exact.max()


def test_the_efficient_form_is_exact_where_blank_tokens_are_all_alike(images: Tensor) -> None:
    """Without positions, a white image has one token many times; without queries, no key is told from another."""
    vit = tiny_vit(depth=3)
    with torch.no_grad():
        vit.pos_embed.zero_()
        for block in vit.blocks:
            block.attn.qkv.weight[:32] = 0
            block.attn.qkv.bias[:32] = 0
    model, inputs = loaded(vit), images[:1].double()
    for options in ("last=1", "last=2, neighbourhood='5x5'"):
        for prototype in ("attended", "mean"):
            found = caap(model, inputs, f"form='efficient', prototype={prototype!r}, {options}")
            agrees(found, caap(model, inputs, options), 1e-6)


# Other heads, other networks


@torch.no_grad()
def test_a_pooled_head_follows_all_tokens_after_the_last_level(images: Tensor) -> None:
    vit, inputs = tiny_vit(depth=3, class_token=False, global_pool="avg"), images[:1].double()
    model = loaded(vit)
    for last in (0, 2, 3):
        source, blank = states(vit, inputs)[last], states(vit, white())[last]
        scores = []
        for place in range(16):
            tokens = blank.clone()
            tokens[:, around(place)] = source[:, around(place)]
            for block in vit.blocks[last:]:
                tokens = block(tokens)
            scores.append(float(vit.forward_head(vit.norm(tokens)).softmax(dim=1)[0, 3]))
        agrees(caap(model, inputs, f"last={last}"), torch.tensor(scores, dtype=torch.float64).view(1, 4, 4))
    with pytest.raises(CapabilityError, match="reads places"):
        caap(model, inputs, "form='efficient'")


@torch.no_grad()
def test_a_convolutional_network_goes_on_from_a_mixed_feature_map(images: Tensor) -> None:
    net = randomised(TinyCNN())
    model, inputs = loaded(net), images[:1].double()
    stages = len(model.structure((3, SIZE, SIZE)).stages)
    source, blank = net.stem(inputs), net.stem(white())
    side = source.shape[-1]
    found = caap(model, inputs, f"last={stages - 1}")
    assert found.shape == (1, side, side)
    for row, column in [(0, 0), (0, 5), (7, 9), (15, 15)]:
        window = (..., slice(max(0, row - 1), row + 2), slice(max(0, column - 1), column + 2))
        mixed = blank.clone()
        mixed[window] = source[window]
        expected = net.head(net.pool(net.body(mixed)).flatten(1)).softmax(dim=1)[0, 3]
        assert float(found[0, row, column]) == pytest.approx(float(expected), rel=1e-9)
    with pytest.raises(CapabilityError, match="needs tokens"):
        caap(model, inputs, "form='efficient'")


def test_attention_by_hand_is_computed_patchwise(images: Tensor) -> None:
    model, inputs = loaded(randomised(InPlaceViT())), images[:1].double()
    agrees(caap(model, inputs), caap(model, inputs, "form='patchwise'"), 1e-12)
    with pytest.raises(CapabilityError, match="does not fit"):
        caap(model, inputs, "form='efficient'")


# Sharing and choices


def test_classes_of_an_image_share_its_passes_and_images_share_the_blank_run(images: Tensor) -> None:
    model = loaded(tiny_vit(depth=3))
    model.block_limits((SIZE, SIZE))
    model.readout((SIZE, SIZE))

    def cost(inputs: Tensor, classes: Sequence[int]) -> int:
        before = model.passes["forward"]
        caap(model, inputs, "", torch.tensor(classes))
        return model.passes["forward"] - before

    one = cost(images[:1].double(), [0])
    assert cost(images[:1].double().repeat(3, 1, 1, 1), [0, 1, 2]) == one
    assert cost(images[:2].double(), [0, 0]) == 2 * one - 1
    assert one <= 2 + 16, "less than a pass for each patch: 2 for the runs, few tokens for each copy"


@pytest.mark.parametrize("blank", ["black", "mean", "noise(seed=2)", "blurred_noise", "zeros_normalised"])
def test_blanks(images: Tensor, blank: str) -> None:
    model, inputs = loaded(tiny_vit()), images[:1].double()
    found = caap(model, inputs, f"reference={blank}")
    agrees(found, caap(model, inputs, f"reference={blank}, form='patchwise'"))
    assert (found - caap(model, inputs)).abs().max() > 1e-3
    method = load_method(f"caap(reference={blank})")
    assert load_method(str(method)) == method


def test_neighbourhoods() -> None:
    sizes = {kind: neighbours((4, 5), kind).sum(dim=1).view(4, 5) for kind in ("none", "3x3", "5x5", "manhattan")}
    assert {kind: int(size[2, 2]) for kind, size in sizes.items()} == {"none": 1, "3x3": 9, "5x5": 20, "manhattan": 5}
    assert {kind: int(size[0, 0]) for kind, size in sizes.items()} == {"none": 1, "3x3": 4, "5x5": 9, "manhattan": 3}
    assert neighbours((4, 5), "3x3")[6].nonzero().flatten().tolist() == [0, 1, 2, 5, 6, 7, 10, 11, 12]


def test_chunks_do_not_matter(images: Tensor) -> None:
    inputs = images[:1].double()
    whole = caap(loaded(tiny_vit(depth=3)), inputs, "last=1")
    small = loaded(tiny_vit(depth=3))
    small.chunks.size = 1
    agrees(caap(small, inputs, "last=1"), whole)


@pytest.mark.parametrize(
    "options", ["first=-1", "first=2, last=1", "form='fast'", "neighbourhood='7x7'", "last=9", "first=2"]
)
def test_bad_parameters(images: Tensor, options: str) -> None:
    with pytest.raises(SpecError, match="caap"):
        aha.explain(tiny_vit(), images, f"caap({options}, reference=blur)")

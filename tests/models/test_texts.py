"""CLIP, SigLIP and open_clip with texts as classes, against the models' own answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from reading import one_line
from torch import Tensor, nn

import aha
from aha.errors import ModelError
from aha.models import TargetModel, load_model
from aha.models.loading.texts import in_brackets, split_texts
from fakes import SIZE, changes, snapshot, tiny_vit
from two_towers import TEXT, tiny_clip, tiny_open_clip, tiny_processor, tiny_siglip

TEXTS = ["a cat", "a dog on grass", "two cars"]


@pytest.fixture(scope="module")
def processor() -> Any:
    return tiny_processor()


def of_transformers(module: nn.Module, processor: Any, texts: list[str] = TEXTS, **options: Any) -> TargetModel:
    return load_model(module, texts=texts, processor=processor, **options)


def own_logits(module: nn.Module, processor: Any, images: Tensor) -> Tensor:
    """What the model's own forward pass says of pictures and texts together."""
    length = TEXT["max_position_embeddings"]
    tokens = processor.tokenizer(TEXTS, padding="max_length", max_length=length, return_tensors="pt")
    with torch.no_grad():
        return module(pixel_values=images, **tokens).logits_per_image


@pytest.mark.parametrize("build", [tiny_clip, tiny_siglip])
def test_outputs_are_the_logits_of_the_model_itself(
    build: Callable[[], nn.Module], processor: Any, images: Tensor
) -> None:
    module = build()
    before = snapshot(module)
    model = of_transformers(module, processor)
    assert torch.allclose(model.outputs(images), own_logits(module, processor, images), atol=1e-4)
    assert model.class_names == tuple(TEXTS)
    assert model.spec == f"module:{type(module).__name__}[a cat; a dog on grass; two cars]"
    assert model.score.name == ("softmax" if build is tiny_clip else "sigmoid")
    aha.explain(model, images[:1], "legrad", target="two cars")
    assert changes(before, snapshot(module)) == []


def test_open_clip(images: Tensor) -> None:
    open_clip = pytest.importorskip("open_clip")
    module, tokenizer = tiny_open_clip(), open_clip.get_tokenizer("ViT-B-32")
    model = load_model(module, texts=TEXTS, tokenizer=tokenizer)
    with torch.no_grad():
        found = [F.normalize(x, dim=-1) for x in (module.encode_image(images), module.encode_text(tokenizer(TEXTS)))]
    assert torch.allclose(model.outputs(images), module.logit_scale.exp() * found[0] @ found[1].T, atol=1e-4)
    assert {"attention", "tokens", "branches"} <= model.structure((SIZE, SIZE)).capabilities
    assert aha.explain(model, images, "transformer_attribution").maps.isfinite().all()


ATTENTION = ["raw_attention", "rollout", "grad_rollout", "legrad", "inflow", "transformer_attribution", "bidirectional"]


@pytest.mark.parametrize("build", [tiny_clip, tiny_siglip])
def test_methods_read_the_image_tower_alone(build: Callable[[], nn.Module], processor: Any, images: Tensor) -> None:
    model = of_transformers(build(), processor)
    assert {"gradients", "features", "tokens", "attention", "branches"} <= model.capabilities
    for method in [*ATTENTION, "hires_cam", "integrated_gradients(steps=4)", "rise(n=8)", "caap"]:
        found = aha.explain(model, images[:1], method, target=[[0, 2]])
        assert found.maps.shape == (2, SIZE, SIZE), method
        assert found.maps.isfinite().all(), method
    legrad = aha.explain(model, images[:1], "legrad", target=[[0, 1]]).maps
    assert not torch.allclose(legrad[0], legrad[1])  # another text, another map


def test_legrad_by_hand(processor: Any, images: Tensor) -> None:
    """Its published form for CLIP: the mean token of each layer, normed and projected, compared with the text."""
    module = tiny_clip()
    if hasattr(module, "set_attn_implementation"):  # before there was one, asking for attentions was enough
        module.set_attn_implementation("eager")
    model = of_transformers(module, processor)
    out = module.vision_model(images[:1], output_attentions=True, output_hidden_states=True)
    vector = F.normalize(model.class_vectors[1], dim=0)
    total = torch.zeros(17)
    for tokens, attention in zip(out.hidden_states[1:], out.attentions, strict=True):
        pooled = module.visual_projection(module.vision_model.post_layernorm(tokens.mean(dim=1)))
        (slope,) = torch.autograd.grad(F.normalize(pooled, dim=-1)[0] @ vector, attention, retain_graph=True)
        total += slope.relu().mean(dim=(0, 1, 2))
    found = aha.load_method("legrad")(model, images[:1], torch.tensor([1]))[0]
    expected = (module.logit_scale.exp() * total[1:].view(4, 4)).detach()
    assert torch.allclose(found, expected, atol=1e-4 * float(expected.abs().max()))


def test_a_wrapper_that_runs_its_text_tower_is_no_windowed_transformer(processor: Any, images: Tensor) -> None:
    """As people write it: the texts are embedded anew in every forward pass."""

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.clip = tiny_clip()
            self.tokens = dict(processor.tokenizer(TEXTS, padding=True, return_tensors="pt"))

        def forward(self, images: Tensor) -> Tensor:
            return self.clip(pixel_values=images, **self.tokens).logits_per_image

    model, direct = load_model(Wrapper()), of_transformers(tiny_clip(), processor)
    assert {"attention", "tokens"} <= model.structure((SIZE, SIZE)).capabilities
    for method in ("rollout", "grad_rollout"):
        mine, theirs = (aha.explain(m, images, method, target=1).maps for m in (model, direct))
        assert torch.allclose(mine, theirs, atol=1e-4 * float(theirs.abs().max())), method


@pytest.mark.parametrize("build", [tiny_clip, tiny_siglip])
def test_one_text(build: Callable[[], nn.Module], processor: Any, images: Tensor) -> None:
    """A softmax over one text says nothing: CLIP's is the similarity, SigLIP's is told from its absence."""
    model = of_transformers(build(), processor, ["a cat"])
    assert (model.score.name, model.num_classes) == (("regression", 1) if build is tiny_clip else ("sigmoid", 2))
    found = aha.explain(model, images, "gradient", target="a cat")
    assert found.labels == ["a cat"] * 4
    assert len(set(found.scores.tolist())) == 4


def test_pictures_go_through_the_processor(processor: Any) -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8))
    model = of_transformers(tiny_clip(), processor)
    inputs, geometry = model.stated_preprocessing()(picture)
    # Their resizing rounds to bytes at other places: one level of 255, over a standard deviation of 0.26.
    assert torch.allclose(inputs, processor(images=picture, return_tensors="pt")["pixel_values"][0], atol=0.02)
    assert aha.explain(model, picture, "rollout").original_map().shape == geometry.original == (50, 70)


def test_embeddings_in_place_of_texts(images: Tensor) -> None:
    """A tower of any make, with vectors that were made elsewhere."""
    tower = tiny_vit(num_classes=24)
    vectors = {"a cat": torch.randn(24), "a dog": torch.randn(24)}
    model = load_model(tower, texts=vectors)
    with torch.no_grad():
        expected = 100 * F.normalize(tower(images), dim=-1) @ F.normalize(torch.stack(list(vectors.values())), dim=-1).T
    assert torch.allclose(model.outputs(images), expected, atol=1e-3)
    assert torch.allclose(F.normalize(model.class_vectors[1], dim=0), F.normalize(vectors["a dog"], dim=0))


def test_texts_do_not_change_what_the_weights_are(processor: Any) -> None:
    module = tiny_clip()
    one, other = of_transformers(module, processor), of_transformers(module, processor, ["a boat", "the sea"])
    assert one.digest == other.digest
    assert one.spec != other.spec
    assert one.class_vectors.shape == (3, 24) and other.class_vectors.shape == (2, 24)


def test_from_a_folder(processor: Any, tmp_path: Path, images: Tensor) -> None:
    module = tiny_clip()
    module.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    model = load_model(f"clip:{tmp_path}", texts=TEXTS, device="cpu")
    assert torch.allclose(model.outputs(images), own_logits(module, processor, images), atol=1e-4)
    again = load_model(f"clip:{tmp_path}[a cat; a dog on grass; two cars]", device="cpu")
    assert again.spec == model.spec == f"clip:{tmp_path}[a cat; a dog on grass; two cars]"
    assert torch.equal(again.outputs(images), model.outputs(images))


def test_names_of_texts() -> None:
    assert split_texts("org/clip[a cat; a dog]") == ("org/clip", ["a cat", "a dog"])
    assert split_texts("org/clip") == ("org/clip", None)
    many = [f"text {index}" for index in range(40)]
    assert in_brackets(many).startswith("[text 0; text 1; text 2; and 37 more, ")
    assert in_brackets(many) != in_brackets(list(reversed(many)))


@pytest.mark.parametrize(
    ("build", "options", "says"),
    [
        (tiny_clip, {}, "compares images with texts; pass texts="),
        (tiny_clip, {"texts": []}, "takes a list of texts"),
        (tiny_clip, {"texts": ["a", "a"]}, "'a' twice"),
        (tiny_clip, {"texts": ["a", "b"]}, "needs its tokenizer"),
        (tiny_vit, {"texts": ["a", "b"]}, "has no text tower"),
        (lambda: "timm:test_vit", {"texts": ["a", "b"]}, "not for timm:test_vit"),
        (lambda: "clip:nowhere/at-all", {}, "compares images with texts: give texts="),
        (lambda: "clip:nowhere/at-all[a; b]", {}, "cannot load clip:nowhere/at-all"),
        (lambda: "clip:nowhere/at-all[a; b]", {"texts": ["c"]}, "names its texts already"),
    ],
)
def test_what_is_refused(build: Callable[[], Any], options: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        load_model(build(), **options)
    one_line(caught)

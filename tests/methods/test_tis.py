"""TIS against its definition, written out sample by sample, and its clusters against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from torch import Tensor

import aha
from aha.errors import CapabilityError, SpecError
from aha.methods import check_fit, load_method
from aha.methods.base import seeded_generator
from aha.methods.perturbation.tis import k_means, subsets
from aha.models import load_model
from fakes import SIZE, EncoderViT, InPlaceViT, TinyCNN, randomised, tiny_vit


def test_clusters_are_those_of_scikit_learn() -> None:
    points = torch.randn(120, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = points[torch.randperm(120, generator=seeded_generator(3))[:7]]
    theirs = KMeans(7, init=start.numpy(), n_init=1, tol=0, algorithm="lloyd").fit(points.numpy())
    ours = k_means(points, 7, seeded_generator(3))
    assert np.abs(ours.numpy() - theirs.cluster_centers_).max() < 0.01


def test_points_that_repeat_leave_clusters_empty_without_harm() -> None:
    points = torch.ones(10, 3)
    assert torch.equal(k_means(points, 4, seeded_generator(0)), torch.ones(4, 3))


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"reg_tokens": 2}, {"class_token": False, "global_pool": "avg"}])
def test_the_map_is_the_definition(images: Tensor, options: dict[str, object]) -> None:
    vit, image = tiny_vit(**options).double(), images[:1].double()
    prefix = vit.num_prefix_tokens
    embedded = vit._pos_embed(vit.patch_embed(image))
    layers = [vit.blocks[0](embedded)]
    layers.append(vit.blocks[1](layers[0]))
    vectors = torch.cat(layers, dim=2)[0, prefix:].T  # (64, 16)
    centres = k_means(vectors.contiguous(), 9, seeded_generator(5))
    above, below = np.zeros(16), np.zeros(16)
    for centre in centres:
        kept = sorted(centre.argsort(descending=True)[:6].tolist())
        tokens = embedded[:, [*range(prefix), *(prefix + place for place in kept)]]
        score = float(vit.forward_head(vit.norm(vit.blocks(tokens))).softmax(dim=1)[0, 2])
        above[kept] += score
        below[kept] += 1
    expected = np.divide(above, below, out=np.zeros(16), where=below > 0).reshape(4, 4)
    expected = (expected - expected.min()) / np.ptp(expected)
    found = load_method("tis(masks=9, ratio=0.4, seed=5)")(load_model(vit), image, torch.tensor([2]))
    assert np.abs(found[0].numpy() - expected).max() < 1e-6


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_only_the_kept_tokens_go_through_the_blocks(images: Tensor, batch_size: int) -> None:
    vit = tiny_vit()
    model = load_model(vit, batch_size=batch_size)
    model.block_limits((SIZE, SIZE))
    seen: list[int] = []
    handle = vit.blocks[-1].mlp.register_forward_hook(lambda _m, _a, out: seen.append(out.shape[0] * out.shape[1]))
    before = model.passes["forward"]
    load_method("tis")(model, images[:1].repeat(2, 1, 1, 1), torch.tensor([0, 1]))
    handle.remove()
    assert sum(seen) == 17 + 32 * (1 + 8), "the image, then half of its patches in half as many samples as channels"
    assert model.passes["forward"] - before == 1 + math.ceil(32 * 9 / 17), "two classes share all passes"


def test_subsets_keep_the_tokens_without_a_place() -> None:
    tokens = torch.arange(6.0).view(1, 6, 1)
    found = subsets(tokens, torch.tensor([[0, 2], [1, 3]]), prefix=2)
    assert found[..., 0].tolist() == [[0, 1, 2, 4], [0, 1, 3, 5]]


def test_other_transformers(images: Tensor) -> None:
    explanation = aha.explain(randomised(EncoderViT()), images[:2], "tis(masks=8)")
    assert explanation.maps.isfinite().all()


def test_blocks_that_know_places_are_refused(images: Tensor) -> None:
    with pytest.raises(CapabilityError, match="some of its tokens"):
        aha.explain(randomised(InPlaceViT()), images, "tis")
    with pytest.raises(CapabilityError, match=r"smooth.*some of its tokens"):
        check_fit(load_method("smooth(tis)"), load_model(randomised(InPlaceViT())), (SIZE, SIZE))
    with pytest.raises(CapabilityError, match="tokens"):
        aha.explain(randomised(TinyCNN()), images, "tis")


@pytest.mark.parametrize("options", ["masks=0", "ratio=0", "ratio=1"])
def test_bad_parameters(options: str) -> None:
    with pytest.raises(SpecError, match="tis"):
        load_method(f"tis({options})")

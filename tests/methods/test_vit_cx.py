"""ViT-CX against its definition mask by mask, and its clusters against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor, nn

import aha
from aha.errors import SpecError
from aha.methods import load_method
from aha.methods.base import in_one_pass
from aha.methods.perturbation.vit_cx import clustered_masks, complete_linkage, cosine_distances, weighted
from aha.methods.stretching import stretched
from aha.models import load_model
from fakes import CLASSES, SIZE, randomised, tiny_vit


def partition(distances: np.ndarray, threshold: float) -> list[list[int]]:
    model = AgglomerativeClustering(None, metric="precomputed", linkage="complete", distance_threshold=threshold)
    labels = model.fit_predict(distances)
    return sorted(np.flatnonzero(labels == label).tolist() for label in set(labels))


@pytest.mark.parametrize("threshold", [0.0, 0.02, 0.1, 0.3, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_clusters_are_those_of_scikit_learn(threshold: float, seed: int) -> None:
    points = np.random.default_rng(seed).random((60, 5))
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    distances = 1 - unit @ unit.T
    np.fill_diagonal(distances, 0)
    given = distances.copy()
    found = complete_linkage(distances, threshold)
    assert found == partition(given, threshold)
    assert np.array_equal(distances, given)


def slow_masks(features: Tensor, threshold: float) -> Tensor:
    def stretch(x: Tensor) -> Tensor:
        return (x - x.min()) / (x.max() - x.min())

    masks = [stretch(F.interpolate(f[None, None], (SIZE, SIZE), mode="bilinear")[0, 0]) for f in features]
    flat = torch.stack(masks).flatten(1)
    cosine = F.cosine_similarity(flat[:, None], flat[None], dim=2)
    groups = partition((1 - cosine).clamp(min=0).numpy(), threshold)
    return torch.stack([stretch(sum(masks[i] for i in group)) for group in groups])


@torch.no_grad()
def test_the_map_is_the_definition(images: Tensor) -> None:
    vit, image = tiny_vit().double(), images[:1].double()
    tokens = vit.blocks[1].norm1(vit.blocks[0](vit._pos_embed(vit.patch_embed(image))))
    masks = slow_masks(tokens[0, 1:].T.reshape(32, 4, 4), 0.15)
    assert 1 < len(masks) < 32, "some channels are alike"
    top = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    for mask in masks:  # without noise, p(x m) - p(x) + p(x)
        top += vit(image * mask).softmax(dim=1)[0, 2] * mask
    expected = top / masks.sum(dim=0) / len(masks)
    expected = (expected - expected.min()) / (expected.max() - expected.min())
    found = load_method("vit_cx(noise=0, threshold=0.15)")(load_model(vit), image, torch.tensor([2]))
    assert float((found[0] - expected).abs().max()) < 1e-4  # of what the offset left


class LinearCNN(nn.Module):
    """No nonlinearity at all."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 4, 4)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(dim=(2, 3)))


def test_noise_cancels_where_the_score_is_linear_and_only_there(images: Tensor) -> None:
    linear = load_model(randomised(LinearCNN()).double(), score="logit")
    curved = load_model(tiny_vit().double())
    for model, cancels in ((linear, True), (curved, False)):
        quiet, loud = (
            load_method(f"vit_cx(noise={noise}, seed=1)")(model, images[:1].double(), torch.tensor([1]))
            for noise in (0.0, 3.0)
        )
        assert bool((quiet - loud).abs().max() < 1e-9 * quiet.abs().max()) == cancels


def test_noise_does_not_depend_on_chunks(images: Tensor) -> None:
    maps = []
    for size in (2, 32):
        model = load_model(tiny_vit().double())
        model.chunks.size = size
        maps.append(load_method("vit_cx(seed=3)")(model, images[:1].double(), torch.tensor([1])))
    assert torch.allclose(*maps, atol=1e-10)


def nearest(features: Tensor) -> float:
    large = F.interpolate(features[None], size=(SIZE, SIZE), mode="bilinear", align_corners=False)[0]
    distances = cosine_distances(stretched(large))
    return float((distances + torch.eye(len(distances))).min())


def test_clusters_do_not_follow_the_rounding_of_a_pass_that_other_methods_share(images: Tensor) -> None:
    """Attention that is read is computed step by step, which rounds otherwise than the fused kernel."""
    model = load_model(tiny_vit())
    stage = model.cam_stage((SIZE, SIZE))
    shared = model.trace(images, features=[stage], attention=True).features[stage].detach()
    own = [model.features(image[None], [stage])[0][0][0] for image in images]
    ends = [(nearest(ours), nearest(theirs)) for ours, theirs in zip(own, shared, strict=True)]
    row, threshold = next((i, max(pair)) for i, pair in enumerate(ends) if pair[0] != pair[1])
    image, methods = images[row : row + 1], [load_method("raw_attention"), load_method(f"vit_cx({threshold!r})")]
    alone = aha.explain(model, image, methods[1], 1).maps
    _, beside = (aha.explain(model, image, method, 1).maps for method in in_one_pass(model, image, methods))
    assert torch.equal(beside, alone)


def test_flat_channels_and_pixels_that_no_mask_shows() -> None:
    features = torch.zeros(3, 2, 2)
    assert torch.equal(clustered_masks(features, (4, 4), 0.1), torch.ones(1, 4, 4))
    features[1, 0, 0] = 1
    masks = clustered_masks(features, (4, 4), 0.1)
    assert masks.shape == (1, 4, 4)
    assert weighted(torch.zeros(2, 3, 3), torch.ones(2)).tolist() == torch.zeros(3, 3).tolist()


def test_classes_share_passes(images: Tensor) -> None:
    model = load_model(tiny_vit())
    model.cam_stage((SIZE, SIZE))
    counts = []
    for classes in ([0], [0, 1, 2]):
        before = model.passes["forward"]
        load_method("vit_cx")(model, images[:1].repeat(len(classes), 1, 1, 1), torch.tensor(classes))
        counts.append(model.passes["forward"] - before)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("options", ["threshold=-0.1", "noise=-1"])
def test_bad_parameters(options: str) -> None:
    with pytest.raises(SpecError, match="vit_cx"):
        load_method(f"vit_cx({options})")


def test_a_flat_map_is_zero() -> None:
    maps = torch.stack([torch.full((2, 2), 0.3), torch.tensor([[1.0, 2.0], [3.0, 5.0]])])
    assert stretched(maps).tolist() == [[[0, 0], [0, 0]], [[0, 0.25], [0.5, 1]]]

"""MUTEX against a slow version with scipy's statistics and a model that really gets fewer tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from timm.models.eva import Eva
from torch import Tensor, nn

from agreement import CHOSEN, Seen, Vit, agrees, native
from aha.errors import SpecError
from aha.methods import load_method
from aha.methods.attention.mutex import best_nodes, statistics
from aha.models import load_model
from fakes import CLASSES, SIZE, EncoderViT, SharedBlockViT, changes, randomised, snapshot, tiny_vit


def with_fewer_tokens(module: nn.Module, image: Tensor, kept: np.ndarray, prefix: int) -> Tensor:
    """A timm ViT's outputs (1, K) when only some patch tokens enter its blocks."""
    with torch.no_grad():
        tokens = module._pos_embed(module.patch_embed(image[None]))
        chosen = torch.cat([torch.arange(prefix), prefix + torch.from_numpy(np.flatnonzero(kept))])
        return module.forward_head(module.norm(module.blocks(tokens[:, chosen])))


def test_kept_tokens_are_all_there_is(vit: Vit) -> None:
    module, images, _, _, prefix = vit
    generator = np.random.default_rng(0)
    kept = generator.random((4, 16)) < np.array([0.3, 0.5, 0.5, 1.0])[:, None]
    model, before = load_model(module, batch_size=3), snapshot(module)
    found = model.outputs_of_kept_tokens(images, torch.from_numpy(kept))
    expected = torch.cat([with_fewer_tokens(module, image, k, prefix) for image, k in zip(images, kept, strict=True)])
    agrees(found, expected, 1e-9)
    assert changes(before, snapshot(module)) == []
    agrees(model.outputs_of_kept_tokens(images, torch.ones(4, 16, dtype=torch.bool)), model.outputs(images), 1e-9)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_only_kept_tokens_are_run_and_counted(images: Tensor, batch_size: int) -> None:
    vit = tiny_vit()
    model = load_model(vit, batch_size=batch_size)
    model.block_limits((SIZE, SIZE))
    seen: list[int] = []
    handle = vit.blocks[-1].mlp.register_forward_hook(lambda _m, _a, out: seen.append(out.shape[0] * out.shape[1]))
    kept = torch.arange(16) < torch.tensor([3, 3, 7, 16])[:, None]
    before = model.passes["forward"]
    model.outputs_of_kept_tokens(images, kept)
    handle.remove()
    tokens = 4 + 4 + 8 + 17
    assert sum(seen) == tokens
    assert model.passes["forward"] - before == math.ceil(tokens / 17)


def test_whole_sequences_count_where_places_are_known_to_blocks(images: Tensor) -> None:
    settings = {"img_size": SIZE, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": CLASSES}
    model = load_model(randomised(Eva(**settings, use_rot_pos_emb=True)))
    assert model.block_limits((SIZE, SIZE)).tokens
    before = model.passes["forward"]
    model.outputs_of_kept_tokens(images, torch.arange(16).expand(4, 16) < 4)
    assert model.passes["forward"] - before == 4


@pytest.mark.parametrize("pool", ["token", "avg", "map"])
def test_dropped_tokens_do_not_matter_where_positions_are_rotations(pool: str, images: Tensor) -> None:
    """The content of a dropped patch reaches nothing; that of a kept one does."""
    settings = {"img_size": SIZE, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": CLASSES}
    vit = tiny_vit(global_pool=pool, class_token=False) if pool == "map" else None
    model = load_model(vit or randomised(Eva(**settings, use_rot_pos_emb=True, global_pool=pool)))
    kept = torch.ones(4, 16, dtype=torch.bool)
    kept[:, 5] = False  # second row, second column
    other = images.clone()
    other[..., 8:16, 8:16] += 1
    agrees(model.outputs_of_kept_tokens(other, kept), model.outputs_of_kept_tokens(images, kept), 1e-5)
    assert not torch.allclose(model.outputs(other), model.outputs(images), rtol=1e-3)


@pytest.mark.parametrize("build", [EncoderViT, SharedBlockViT])
def test_tokens_of_other_makes_are_dropped(build: type[nn.Module], images: Tensor) -> None:
    model = load_model(randomised(build()))
    kept = torch.arange(16).expand(4, 16) % 3 > 0
    other = images.clone()
    other[..., :8, :8] += 1  # the first patch, which is dropped
    agrees(model.outputs_of_kept_tokens(other, kept), model.outputs_of_kept_tokens(images, kept), 1e-5)
    assert not torch.allclose(model.outputs_of_kept_tokens(images, kept), model.outputs(images), rtol=1e-3)


def slow_masks(layers: list[np.ndarray], min_cut: float, ratio: float) -> list[np.ndarray]:
    """All masks of one image from its attention without prefix tokens, (heads, N, N) per layer."""
    masks = []
    for fusion in (np.min, np.max, np.sum):
        fused = [fusion(layer, axis=0) for layer in layers]
        fused = [np.where(matrix < min_cut * matrix.max(), 0, matrix) for matrix in fused]
        for axis in (0, 1):
            series = np.stack([matrix.sum(axis=axis) for matrix in fused])  # (L, N)
            rows = [[] for _ in range(9)]
            for node in series.T:
                spread = np.std(node, ddof=1)
                values = [scipy.stats.entropy(node), scipy.stats.skew(node), scipy.stats.kurtosis(node), node.max()]
                values += [
                    node.min(),
                    node.sum(),
                    spread,
                    node.sum() / (spread + 1e-8),
                    np.sort(node)[(len(node) - 1) // 2],
                ]
                for row, value in zip(rows, values, strict=True):
                    row.append(value)
            for row in np.nan_to_num(np.array(rows)):  # scipy's word for a series that is constant or empty is NaN
                row = np.round(row / (abs(row).max() or 1), 5)
                last = np.sort(row)[math.ceil(len(row) * ratio) - 1]  # the authors' place, from the low end
                masks.append(row >= last)
    return masks


@pytest.mark.filterwarnings("ignore:Precision loss|invalid value")
@pytest.mark.parametrize(("options", "min_cut", "ratio"), [({}, 0.01, 0.5), ({"global_pool": "avg"}, 0.3, 0.25)])
def test_mutex(options: dict[str, str], min_cut: float, ratio: float, images: Tensor) -> None:
    module, prefix = tiny_vit(depth=4, **options).double(), 1
    images = images[:2].double()
    seen = Seen(module, images.repeat(2, 1, 1, 1))
    expected = torch.zeros(2, 16, dtype=torch.float64)
    for index, (image, chosen) in enumerate(zip(images, CHOSEN.tolist(), strict=False)):
        layers = [matrix[index, :, prefix:, prefix:].detach().numpy() for matrix in seen.attention]
        masks = slow_masks(layers, min_cut, ratio)
        assert len(masks) == 54
        scores = [with_fewer_tokens(module, image, m, prefix).softmax(dim=1)[0, chosen].item() for m in masks]
        for patch in range(16):
            inside = [score for score, mask in zip(scores, masks, strict=True) if mask[patch]]
            expected[index, patch] = sum(inside) / max(1, len(inside))
    found = native(module, images, f"mutex(min_cut={min_cut}, token_ratio={ratio})", CHOSEN[:2])
    agrees(found, expected.view(2, 4, 4), 1e-6)


def test_noise_does_not_rank_equal_nodes() -> None:
    """Two layers have no skewness and one kurtosis: every node is as good as the others."""
    series = torch.rand(1, 2, 9, dtype=torch.float64)
    values = statistics(series)
    assert best_nodes(values[:, 1:3], 0.5).all()
    assert torch.equal(values, statistics(series + 1e-9 * torch.randn_like(series)))
    assert best_nodes(torch.tensor([1.0, 3.0, 2.0, 2.0, 0.0]), 0.5).tolist() == [False, True, True, True, False]


@pytest.mark.parametrize("text", ["mutex(min_cut=1.0)", "mutex(token_ratio=0.0)", "mutex(start_layer=-1)"])
def test_bad_parameters_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"^mutex: "):
        load_method(text)


def test_one_layer_has_no_statistics(images: Tensor) -> None:
    with pytest.raises(SpecError, match="at least two blocks"):
        native(tiny_vit(), images, "mutex(start_layer=1)")

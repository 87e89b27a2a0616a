"""Maps that move along the slope of their own Deletion and Insertion."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import aha
from aha.learned.slopes import LARGEST_SHARE, REFERENCES, moved, share_of
from aha.learned.training.validation import areas, hard_curves
from aha.models import TargetModel, load_model
from fakes import TinyCNN, changes, randomised, snapshot, tiny_vit

STATED = {"input_size": 64, "mean": [0.5] * 3, "std": [0.5] * 3}


def cnn() -> TargetModel:
    return load_model(randomised(TinyCNN(), seed=1), **STATED)


def vit() -> TargetModel:
    return load_model(randomised(tiny_vit(), seed=1), **(STATED | {"input_size": 32}))


class Corner(nn.Module):
    """Class 1 by the brightness of the upper left quarter, and of nothing else."""

    def forward(self, images: Tensor) -> Tensor:
        found = images[:, :, :32, :32].mean(dim=(1, 2, 3))
        return torch.stack([torch.zeros_like(found), 6 * found], dim=1)


def images_for(target: TargetModel, count: int = 3) -> Tensor:
    size = target.stated_preprocessing().size
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(0))


def noise_like(images: Tensor) -> Tensor:
    return torch.randn(len(images), *images.shape[-2:], generator=torch.Generator().manual_seed(5))


def test_shares_leave_no_part_of_the_curves_out() -> None:
    first = torch.tensor([share_of(number) for number in range(8)]).sort().values
    assert first[0] > 0 and first[-1] < LARGEST_SHARE
    assert first.diff().max() < LARGEST_SHARE / 4


def test_a_map_of_noise_finds_the_pixels_that_decide() -> None:
    target = load_model(Corner(), **STATED)
    images = torch.full((1, 3, 64, 64), 1.0)
    first, classes = noise_like(images), torch.tensor([1])
    scores = []
    for rounds in (0, 4, 16):
        maps = moved(target, images, classes, first, rounds)
        scores.append(areas(hard_curves(target, images, classes, maps, REFERENCES[:1], 8), 64 * 64)["ins_del"])
    assert scores[0] + 0.1 < scores[1] and scores[1] + 0.1 < scores[2]
    found = moved(target, images, classes, first, 16)[0]
    assert found[:32, :32].mean() > found[32:, 32:].mean() + found.std()


def test_no_round_changes_nothing() -> None:
    target = cnn()
    images = images_for(target)
    first = noise_like(images)
    assert torch.allclose(moved(target, images, torch.tensor([0, 1, 2]), first, 0), first, atol=1e-5)


@pytest.mark.parametrize("make", [cnn, vit])
def test_a_batch_gives_what_single_images_give(make: Callable[[], TargetModel]) -> None:
    target = make()
    images, classes = images_for(target), torch.tensor([0, 1, 2])
    first, before = noise_like(images), snapshot(target.module)
    together = moved(target, images, classes, first, 4)
    alone = [moved(target, *(one[i : i + 1] for one in (images, classes, first)), 4) for i in range(3)]
    assert torch.allclose(together, torch.cat(alone), atol=1e-3)
    assert not torch.allclose(together, first, atol=1e-2)
    assert not changes(before, snapshot(target.module))


def test_the_scale_of_the_map_is_kept_and_does_not_matter() -> None:
    target = cnn()
    images, classes = images_for(target), torch.tensor([0, 1, 2])
    first = noise_like(images)
    once, scaled = moved(target, images, classes, first, 2), moved(target, images, classes, 5 * first + 3, 2)
    assert torch.allclose(scaled, 5 * once + 3, atol=1e-2)


def test_where_the_answer_is_flat_the_map_stays() -> None:
    class Constant(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return 0 * images.mean(dim=(1, 2, 3))[:, None] + torch.tensor([1.0, 0.0])

    target = load_model(Constant(), **STATED)
    images = images_for(target, 1)
    first = noise_like(images)
    assert torch.allclose(moved(target, images, torch.tensor([0]), first, 3), first, atol=1e-5)


def test_plain_transformers_have_more_looks_too() -> None:
    target = vit()
    images = images_for(target, 1)
    one, more = (aha.explain(target, images, f"aha(looks={looks})", target=0).maps for looks in (1, 5))
    assert not torch.allclose(one, more, atol=1e-3)


def test_inside_inference_mode() -> None:
    target = cnn()
    images, classes = images_for(target), torch.tensor([0, 1, 2])
    first = noise_like(images)
    with torch.inference_mode():
        found = moved(target, images, classes, first.clone(), 2)
    assert torch.allclose(found, moved(target, images, classes, first, 2), atol=1e-4)

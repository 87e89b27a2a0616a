"""One forward pass for everybody who asks about the same images, counted by the model itself."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import aha
from aha.core.rows import matching_rows
from aha.data.targets import most_classes
from aha.methods import load_method
from aha.models import Captures, TargetModel
from fakes import TinyCNN, randomised, tiny_vit


class Counting(nn.Module):
    """Counts the images that it is shown."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.shown = inner, 0

    def forward(self, x: Tensor) -> Tensor:
        self.shown += len(x)
        return self.inner(x)


Build = Callable[..., tuple[TargetModel, Counting]]


@pytest.fixture(params=[tiny_vit, lambda: randomised(TinyCNN())], ids=["vit", "cnn"])
def build(request: pytest.FixtureRequest) -> Build:
    """A model that has been looked into already, and what counts its images."""

    def made(**options: object) -> tuple[TargetModel, Counting]:
        module = Counting(request.param())
        model = aha.load_model(module, input_size=32, mean=[0.5] * 3, std=[0.5] * 3, **options)
        for method in ("grad_cam", "gradient", "layer_cam"):
            aha.explain(model, torch.randn(1, 3, 32, 32), method, 0)
        module.shown = 0
        return model, module

    return made


METHODS = ["grad_cam", "layer_cam", "hires_cam", "grad_cam_pp", "eigen_cam", "gradient", "input_x_gradient"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", ["top1", 2, "top3"])
def test_every_image_is_seen_once(build: Build, images: Tensor, method: str, target: str | int) -> None:
    model, module = build()
    found = aha.explain(model, images, method, target)
    assert module.shown == len(images)
    classes = found.targets
    each = len(classes) // len(images)
    alone = load_method(method)(model, images.repeat_interleave(each, dim=0), classes).detach()
    assert torch.allclose(found.scores, model.scores(images.repeat_interleave(each, dim=0), classes).float(), atol=1e-6)
    again = aha.explain(model, images, method, [row.tolist() for row in classes.view(-1, each)])
    assert torch.allclose(found.maps, again.maps, atol=1e-6)
    small = torch.nn.functional.interpolate(alone[:, None], (32, 32), mode="bilinear", align_corners=False)[:, 0]
    assert torch.allclose(found.maps, small.float(), atol=1e-5 * float(small.abs().max()) + 1e-8)


def test_many_classes_go_through_the_pass_in_which_they_were_found(build: Build, images: Tensor) -> None:
    model, module = build(batch_size=5)  # of images, then, one or two at a time
    together = aha.explain(model, images, "grad_cam", "top3")
    assert module.shown == len(images)
    for row, one in enumerate(images):
        alone = aha.explain(model, one, "grad_cam", "top3")
        assert torch.allclose(alone.maps, together.maps[3 * row : 3 * row + 3], atol=1e-6)


def test_methods_share_a_pass_and_its_gradients(build: Build, images: Tensor) -> None:
    model, module = build()
    methods = [load_method(name) for name in METHODS]
    captures = Captures()
    for method in methods:
        captures |= method.reads(model, images.shape[1:])
    alone = [aha.explain(model, images, method, 1).maps for method in methods]
    module.shown = 0
    before, hits_before = model.passes.copy(), model.cache_hits.copy()
    with model.caching(images, captures):
        shared = [aha.explain(model, images, method, 1).maps for method in methods]
    assert module.shown == len(images)
    for ours, theirs in zip(shared, alone, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5 * float(theirs.abs().max()) + 1e-8)
    spent, cache_hits = model.passes - before, model.cache_hits - hits_before
    assert set(spent) <= {"forward", "backward"}  # budgets are paid in passes, and time is none
    assert cache_hits["backward"] > 0  # some gradients served several methods
    assert spent["backward"] + cache_hits["backward"] == (len(methods) - 1) * len(images)  # eigen_cam takes none


def test_other_images_and_other_states_of_the_model_are_not_answered_from_the_kept_pass(
    build: Build, images: Tensor
) -> None:
    model, module = build()
    expected = model.outputs(images)
    others = images.flip(0) + 0.5
    with model.caching(images[:2]) as kept:
        module.shown = 0
        assert torch.equal(kept, model.outputs(images[:2])) and module.shown == 0
        assert torch.allclose(model.outputs(images), expected, atol=1e-6) and module.shown == len(images) - 2
        assert torch.allclose(model.outputs(others), model.outputs(others + 0), atol=1e-6)
        name = next(name for name, part in module.named_modules() if isinstance(part, nn.Linear))
        with model.patched({name: torch.zeros_like}):
            assert not torch.allclose(model.outputs(images[:2]), kept)
    module.shown = 0
    model.outputs(images[:2])
    assert module.shown == 2  # nothing is kept afterwards


def test_half_precision_asks_again(images: Tensor) -> None:
    """Outputs are autocast, traces are not: neither stands in for the other."""
    module = Counting(randomised(TinyCNN()))
    model = aha.load_model(module, input_size=32, mean=[0.5] * 3, std=[0.5] * 3, precision="bfloat16")
    aha.explain(model, images[:1], "grad_cam", 0)
    module.shown = 0
    found = aha.explain(model, images, "grad_cam", 0)
    assert module.shown == 2 * len(images)
    assert torch.equal(found.scores, model.scores(images, found.targets).float())


def test_rows_are_matched_by_all_of_their_values() -> None:
    known = torch.zeros(3, 3, 40, 40)
    known[1, 0, 0, 1] = 1.0  # between the places that are looked at first
    known[2] = 2.0
    asked = torch.stack([known[2], known[1], known[0], known[0] + 1])
    assert matching_rows(asked, known).tolist() == [2, 1, 0, -1]
    assert matching_rows(known, known).tolist() == [0, 1, 2]
    assert matching_rows(asked.double(), known).tolist() == [-1] * 4
    assert matching_rows(torch.zeros(2, 1, 4, 4), known).tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("target", "most"),
    [
        ("top1", 1),
        ("top5", 5),
        ("label", 1),
        ("lynx, cougar", 2),
        (3, 1),
        ([1, 2, 3, 4], 1),
        ([[1], [2, 3]], 2),
        (torch.tensor([[1, 2], [3, 4]]), 2),
    ],
)
def test_how_many_classes_a_target_may_mean(target: object, most: int) -> None:
    assert most_classes(target) == most  # type: ignore[arg-type]


def test_a_pass_is_kept_for_the_thread_that_asked_for_it(build: Build, images: Tensor) -> None:
    model, module = build()
    with model.caching(images):
        module.shown = 0
        other = threading.Thread(target=model.outputs, args=(images,))
        other.start()
        other.join()
        assert module.shown == len(images)
        model.outputs(images)
        assert module.shown == len(images)

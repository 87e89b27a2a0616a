"""Progress: told in shares that only rise, from whatever depth; a listener may stop the work."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import aha
from aha.core.progress import heard_by, in_parts, in_shares, part
from aha.methods import load_method
from aha.models import load_model
from fakes import CLASSES, SIZE, changes, randomised, snapshot, surroundings, tensor_state


@pytest.fixture
def model() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)]
    return randomised(nn.Sequential(*layers))


@pytest.fixture
def images() -> Tensor:
    return torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


def test_loops_inside_loops_share_a_round() -> None:
    told: list[float] = []
    with heard_by(told.append):
        for _ in in_parts("ab"):
            for _ in in_parts("wxyz"):
                pass
    assert told == [0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1]


def test_a_loop_after_a_loop_never_goes_back() -> None:
    told: list[float] = []
    with heard_by(told.append):
        for _ in range(2):  # says nothing of itself, so that its rounds look like the whole
            for _ in in_parts("ab"):
                pass
    assert told == [0, 0.5, 1]


def test_nobody_need_listen() -> None:
    assert list(in_parts("ab")) == ["a", "b"]
    told: list[float] = []
    with heard_by(told.append), heard_by(None), part(0, 1, 2):
        pass
    assert told == [0, 1]


@pytest.mark.parametrize(
    ("method", "least"),
    [
        ("rise(n=40)", 10),
        ("occlusion(window=8, stride=4)", 10),
        ("kernel_shap(n=40, parts=patches(grid=4))", 10),
        ("shapley_sampling(orders=2, parts=patches(grid=4))", 10),
        ("mda(grid=4, insertion=zeros_normalised, deletion=zeros_normalised)", 10),
        ("extremal_perturbation(areas=(0.2,), steps=6, reference=zeros_normalised)", 10),
        ("smooth(gradient, n=6)", 5),
        ("integrated_gradients(steps=12)", 5),
        ("var(rise(n=40), threshold=False)", 10),
    ],
)
def test_a_slow_method_tells_how_far_it_is(model: nn.Module, images: Tensor, method: str, least: int) -> None:
    told: list[float] = []
    aha.explain(load_model(model, batch_size=4), images, method, progress=told.append)
    assert told[0] == 0 and told[-1] == 1
    assert told == sorted(set(told))
    assert len(told) >= least
    steps = torch.tensor(told).diff()
    assert steps.max() <= 0.5, "no leap from the start to the end"


def test_batches_are_parts_of_the_whole(model: nn.Module, images: Tensor) -> None:
    told: list[float] = []
    aha.explain(model, images.repeat(2, 1, 1, 1), "gradient", batch_size=1, progress=told.append)
    assert told == [0, 0.25, 0.5, 0.75, 1]


def test_an_evaluation_tells_how_far_it_is_in_the_same_way(model: nn.Module, images: Tensor) -> None:
    told: list[float] = []
    found = aha.evaluate(
        load_model(model), images, ["gradient", "random_map"], "sparseness", batch_size=1, progress=told.append
    )
    assert found.rows and told == sorted(set(told))
    assert told[0] == 0 and told[-1] == 1 and len(told) >= 2 * len(images)


def test_an_interrupt_in_the_middle_leaves_no_trace(model: nn.Module, images: Tensor) -> None:
    model.train()
    before = (snapshot(model), surroundings(), tensor_state(images))
    told: list[float] = []

    def stop(share: float) -> None:
        told.append(share)
        if share > 0.4:
            raise KeyboardInterrupt

    target = load_model(model, batch_size=4)
    with pytest.raises(KeyboardInterrupt):
        aha.explain(target, images, "rise(n=64)", progress=stop)
    assert 0.4 < told[-1] < 0.6
    assert target.passes["forward"] < 2 * 64, "the rest was not computed"
    for was, now in zip(before, (snapshot(model), surroundings(), tensor_state(images)), strict=True):
        assert changes(was, now) == []
    heard_after = len(told)
    assert aha.explain(target, images, "rise(n=8)").maps.isfinite().all()
    assert len(told) == heard_after, "nobody listens any more"


def test_the_maps_do_not_depend_on_who_listens(model: nn.Module, images: Tensor) -> None:
    method = load_method("rise(n=20)")
    silent = aha.explain(model, images, method).maps
    assert torch.equal(aha.explain(model, images, method, progress=lambda share: None).maps, silent)


def test_dear_parts_are_larger_shares() -> None:
    told: list[float] = []
    with heard_by(told.append):
        for item in in_shares("ab", [1, 9]):
            if item == "b":
                list(in_parts("wxy"))
    assert told == pytest.approx([0, 0.1, 0.4, 0.7, 1])

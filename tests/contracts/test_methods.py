"""What every method promises, whatever it computes: a method that is registered is tested here.

Each test runs over METHODS x {transformer, convolutional network, perceptron} as far as they fit; where a model lacks
what a method needs, the test is that it is refused.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from every_method import FITTING, MISFITS, example, is_random, label
from torch import Tensor, nn

import aha
from aha.errors import CapabilityError
from aha.methods import METHODS, Method, load_method
from aha.models import load_model
from fakes import BUILDERS, CLASSES, SIZE, Boom, Fuse, changes, snapshot, surroundings, tensor_state


@pytest.fixture(params=FITTING, ids=label)
def pair(request: pytest.FixtureRequest) -> tuple[Method, nn.Module, Fuse]:
    """A method, a model that can serve it, and the fuse inside the model."""
    method, kind = request.param
    return method, *BUILDERS[kind]()


@pytest.fixture
def method(pair: tuple[Method, nn.Module, Fuse]) -> Method:
    return pair[0]


@pytest.fixture
def model(pair: tuple[Method, nn.Module, Fuse]) -> nn.Module:
    return pair[1]


@pytest.fixture
def fuse(pair: tuple[Method, nn.Module, Fuse]) -> Fuse:
    return pair[2]


def maps_of(model: nn.Module, images: Tensor, method: Method, **options: object) -> Tensor:
    return aha.explain(model, images, method, **options).maps  # type: ignore[arg-type]


def close(a: Tensor, b: Tensor, tolerance: float = 1e-5) -> bool:
    """Equal up to a share of the largest value; rounding differs with the batch size."""
    return bool((a - b).abs().max() <= tolerance * b.abs().max())


# Shape and values


def test_one_finite_map_per_image(model: nn.Module, method: Method, images: Tensor) -> None:
    explanation = aha.explain(model, images, method)
    assert explanation.maps.shape == (4, SIZE, SIZE)
    assert explanation.maps.dtype == torch.float32
    assert not explanation.maps.requires_grad
    assert explanation.maps.isfinite().all()
    assert all(values.max() > values.min() for values in explanation.maps), "a flat map says nothing"
    with torch.no_grad():
        assert explanation.targets.tolist() == model(images).argmax(dim=1).tolist()


def test_a_batch_is_its_images_one_by_one(model: nn.Module, method: Method, images: Tensor) -> None:
    together = maps_of(model, images, method)
    alone = torch.cat([maps_of(model, image[None], method) for image in images])
    assert close(together, alone)
    assert close(maps_of(model, images, method, batch_size=3), alone)


def test_several_classes_per_image(model: nn.Module, method: Method, images: Tensor) -> None:
    wanted = [[0, 3], [1], [4, 2, 0], [2]]
    maps = maps_of(model, images, method, target=wanted)
    singles = {c: maps_of(model, images, method, target=c) for c in range(CLASSES)}
    expected = torch.stack([singles[c][i] for i, row in enumerate(wanted) for c in row])
    assert maps.shape == (7, SIZE, SIZE)
    assert close(maps, expected)


def test_classes_of_an_image_may_share_its_forward_passes(model: nn.Module, method: Method, images: Tensor) -> None:
    """Derivatives must go through the trace for that: `trace.gradients` and `trace.vjp`, not torch's own."""
    target = load_model(model, input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    rows, classes = torch.tensor([0, 0, 1, 0, 1]), torch.tensor([0, 3, 1, 4, 2])
    seeded = method.seeded(0)
    alone = torch.cat([seeded(target, images[[row]], classes[[i]]).detach() for i, row in enumerate(rows.tolist())])
    with target.caching():
        together = seeded(target, images[rows], classes).detach()
    assert close(together, alone)


# Randomness


def test_the_seed_decides_and_nothing_else_does(model: nn.Module, method: Method, images: Tensor) -> None:
    first = maps_of(model, images, method, seed=3)
    for generator_seed in (0, 99):
        torch.manual_seed(generator_seed)
        random.seed(generator_seed)
        np.random.seed(generator_seed)
        assert torch.equal(maps_of(model, images, method, seed=3), first)
    other = maps_of(model, images, method, seed=4)
    assert torch.equal(first, other) != is_random(method)


# Leaving no trace


@pytest.fixture
def well_used(model: nn.Module) -> nn.Module:
    """A model in the middle of its owner's work: mixed modes, gradients on some parameters, hooks of its own."""
    model.train()
    for index, (part, parameter) in enumerate(zip(model.modules(), model.parameters(), strict=False)):
        part.training = index % 2 == 0
        parameter.requires_grad_(index % 3 != 0)
        parameter.grad = torch.full_like(parameter, 0.5) if index % 3 == 1 else None
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eval()
    model.register_forward_hook(lambda *_: None)
    next(model.children()).register_full_backward_hook(lambda *_: None)
    return model


def test_success_leaves_no_trace(well_used: nn.Module, method: Method, images: Tensor) -> None:
    images.requires_grad_()
    images.grad = torch.ones_like(images)
    before = (snapshot(well_used), surroundings(), tensor_state(images))
    aha.explain(well_used, images, method, target=[[0, 1]] * 4)
    for was, now in zip(before, (snapshot(well_used), surroundings(), tensor_state(images)), strict=True):
        assert changes(was, now) == []


def test_failure_leaves_no_trace(well_used: nn.Module, fuse: Fuse, method: Method, images: Tensor) -> None:
    """The model throws inside a block or stage that methods capture, at different moments of the work."""
    fuse.set()
    aha.explain(well_used, images, method)
    total = fuse.calls
    for moment in sorted({1, 2, 3, total // 2, total - 1, total} & set(range(1, total + 1))):
        fuse.set(moment)
        before = (snapshot(well_used), surroundings(), tensor_state(images))
        with pytest.raises(Boom):
            aha.explain(well_used, images, method)
        for was, now in zip(before, (snapshot(well_used), surroundings(), tensor_state(images)), strict=True):
            assert changes(was, now) == [], f"after a failure at call {moment} of {total}"
    fuse.set()
    assert aha.explain(well_used, images, method).maps.isfinite().all()


# The caller's circumstances


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_gradient_mode_does_not_matter(
    model: nn.Module, method: Method, images: Tensor, mode: type[torch.no_grad]
) -> None:
    expected = maps_of(model, images, method)
    with mode():
        given = images.clone()  # in inference mode, a tensor that no graph may hold
        found = maps_of(model, given, method)
    assert torch.equal(found, expected)
    assert found.clone().requires_grad_().requires_grad, "the result is an ordinary tensor"


def test_frozen_parameters_and_training_mode_do_not_matter(model: nn.Module, method: Method, images: Tensor) -> None:
    expected = maps_of(model, images, method)
    model.requires_grad_(False)
    assert torch.equal(maps_of(model, images, method), expected)
    model.train()  # dropout and batch statistics would show
    assert torch.equal(maps_of(model, images, method), expected)


# As values


@pytest.mark.parametrize("name", list(METHODS))
def test_the_text_is_the_method(name: str) -> None:
    method = example(name)
    for variant in (method, method.seeded(5), load_method(f"smooth({method}, n=3, sigma=0.25)")):
        again = load_method(str(variant))
        assert again == variant
        assert hash(again) == hash(variant)
        assert str(again) == str(variant)


@pytest.mark.parametrize("name", list(METHODS))
def test_name_file_and_metadata(name: str) -> None:
    cls = METHODS[name]
    assert cls.name == name == cls.__module__.rpartition(".")[2] and cls.__module__.startswith("aha.methods.")
    assert cls.family
    assert cls.__doc__ and not cls.__doc__.startswith(f"{cls.__name__}("), "dataclasses invent a docstring"
    assert cls.required <= {"gradients", "features", "attention", "tokens", "branches"}


# Refusal


@pytest.mark.parametrize("misfit", MISFITS, ids=label)
def test_misfits_are_refused_before_any_image_is_seen(misfit: tuple[Method, str], images: Tensor) -> None:
    method, (model, _) = misfit[0], BUILDERS[misfit[1]]()
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    with pytest.raises(CapabilityError) as caught:
        aha.explain(model, images, method)
    text = str(caught.value)
    for lacking in method.needs - load_model(model).structure((SIZE, SIZE)).capabilities:
        assert lacking in text.partition(";")[0]
    offered = text.partition("Try: ")[2].partition(";")[0].split(", ")
    assert 1 <= len(offered) <= 5 and set(offered) <= set(METHODS)
    assert "\n" not in text
    assert len(images) not in seen, "only the probe's noise went in"


def test_some_pairs_fit_and_some_do_not() -> None:
    assert {kind for _, kind in FITTING} == set(BUILDERS)
    assert {kind for _, kind in MISFITS} == {"cnn", "plain"}

"""Plain functions as models, and modules whose forward wants more than a picture."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from reading import one_line
from torch import Tensor, nn

import aha
from aha.errors import ModelError
from aha.models import load_model
from fakes import SIZE, TinyCNN, changes, randomised, snapshot, tiny_vit

HALF = (0.5,) * 3


class Masked(TinyCNN):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(x * mask)


class Named(TinyCNN):
    def forward(self, *, image: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(image)


class Service:
    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def predict(self, inputs: Tensor) -> Tensor:
        return self.network(inputs)

    def __call__(self, inputs: Tensor) -> Tensor:
        return self.network(inputs)


NETWORK = randomised(TinyCNN())


def through_a_global(inputs: Tensor) -> Tensor:
    return NETWORK(inputs)


FUNCTIONS: dict[str, Any] = {
    "closure": (lambda network: lambda inputs: network(inputs))(NETWORK),
    "global": through_a_global,
    "bound method": NETWORK.forward,
    "method of an object": Service(NETWORK).predict,
    "object": Service(NETWORK),
    "partial": partial(lambda network, inputs: network(inputs), NETWORK),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_function_is_explained_as_the_network_in_it(kind: str, images: Tensor) -> None:
    before = snapshot(NETWORK)
    for method in ("gradient", "grad_cam", "occlusion(window=16, stride=16, reference=zeros_normalised)"):
        found = aha.explain(FUNCTIONS[kind], images, method)
        assert torch.equal(found.maps, aha.explain(NETWORK, images, method).maps)
    assert found.model.startswith("function:")
    assert changes(before, snapshot(NETWORK)) == []


def test_a_function_without_a_network(images: Tensor) -> None:
    found = aha.explain(lambda inputs: inputs.square().sum(dim=(2, 3)), images, "gradient(channels='sum')", target=1)
    assert torch.allclose(found.maps, 2 * images[:, 1])


def test_a_function_that_fills_in_the_rest(images: Tensor) -> None:
    network, mask = randomised(Masked()), torch.ones(1)
    found = aha.explain(lambda inputs: network(inputs, mask=mask), images, "grad_cam")
    assert torch.equal(found.maps, aha.explain(randomised(TinyCNN()), images, "grad_cam").maps)


def test_a_copy_that_would_call_the_original_is_refused(images: Tensor) -> None:
    model = load_model(through_a_global, input_size=SIZE, mean=HALF, std=HALF)
    pixels = np.zeros((SIZE, SIZE, 3), dtype=np.uint8)
    with pytest.raises(aha.AhaError, match="cannot be copied: it is a function"):
        aha.evaluate(model, pixels, "gradient", "randomisation")


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        (Masked(), {}, r"Masked.forward needs 'mask' besides the image; .*network\(images, mask=\.\.\.\)\)"),
        (Named(), {}, r"Named.forward takes no image as its first argument; .*network\(image=images\)\)"),
        (lambda inputs, other: inputs, {}, "lambda needs 'other' besides the image"),
        (lambda: None, {}, "lambda takes no image as its first argument"),
        (TinyCNN, {}, r"TinyCNN is a class, not a network; create one: load_model\(TinyCNN\(\.\.\.\)\)"),
        (
            TinyCNN(),
            {"input_size": SIZE, "mean": 0.5, "std": 0.5},
            r"mean=0.5 is not a list of numbers, one per channel",
        ),
        (TinyCNN(), {"input_size": SIZE, "mean": HALF, "std": "abc"}, "std='abc' is not a list of numbers"),
    ],
)
def test_what_is_refused_when_it_is_loaded(model: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        load_model(model, **options)
    one_line(caught)


@pytest.mark.parametrize(
    ("module", "options", "says"),
    [
        (TinyCNN(channels=1), {"mean": HALF, "std": HALF}, r"\(1, 3, 32, 32\): .*of as many channels as it takes: 1$"),
        (TinyCNN(), {"mean": (0.5,), "std": (0.5,)}, r"\(1, 1, 32, 32\): .*of as many channels as it takes: 3$"),
        (tiny_vit(img_size=64), {"mean": HALF, "std": HALF}, r"Input height \(32\)"),
        (nn.Sequential(nn.Flatten(), nn.Linear(7, 2)), {"mean": HALF, "std": HALF}, "mat1 and mat2 shapes"),
    ],
)
def test_a_pass_that_fails_is_one_line(module: nn.Module, options: dict[str, Any], says: str) -> None:
    model = load_model(module.eval(), input_size=SIZE, **options)
    with pytest.raises(ModelError, match=r"module:\w+ fails on inputs of shape .*" + says) as caught:
        aha.explain(model, np.zeros((40, 50, 3), dtype=np.uint8), "gradient")
    one_line(caught)
    assert caught.value.__cause__ is not None


def test_means_may_be_arrays() -> None:
    model = load_model(TinyCNN(), input_size=SIZE, mean=np.array(HALF), std=torch.tensor(HALF))
    assert model.stated_preprocessing().mean == HALF


class TwiceNamed(nn.Module):
    """A trunk that has two names, and runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = TinyCNN()
        self.again = nn.Sequential(self.trunk.stem, self.trunk.body)

    def forward(self, x: Tensor) -> Tensor:
        twice = self.trunk.pool(self.again(x.flip(-1))).flatten(1)
        return self.trunk(x) + self.trunk.head(twice)


def test_a_trunk_that_runs_twice_under_two_names() -> None:
    model = load_model(randomised(TwiceNamed()), input_size=SIZE, mean=HALF, std=HALF)
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    scores = aha.evaluate(model, pixels, "gradient", "randomisation")
    assert scores.rows and all(np.isfinite(row.value) for row in scores.rows)

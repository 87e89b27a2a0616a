"""What every method promises about memory: when a call is over, its tensors are gone."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from every_method import FITTING, label
from torch import Tensor

import aha
from aha.methods import Method
from aha.models import load_model
from fakes import BUILDERS, SIZE

CALLS = 10


@pytest.fixture(autouse=True, scope="module")
def _young_objects_alone() -> Iterator[None]:
    """What is there already stays out of the collector's rounds, which would take most of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def living_tensors() -> int:
    """How many tensors there are, once what can be collected was."""
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("pair", [pair for pair in FITTING if pair[1] != "plain"], ids=label)
def test_no_tensor_outlives_its_call(pair: tuple[Method, str], images: Tensor) -> None:
    """A graph that refers to itself through C++ is invisible to the collector, and stays until the process ends."""
    method, kind = pair
    model = load_model(BUILDERS[kind]()[0], input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    aha.explain(model, images[:1], method, target=0)  # finds out about the model, which is remembered
    before = living_tensors()
    for _ in range(CALLS):
        aha.explain(model, images[:1], method, target=0)
    assert living_tensors() <= before, f"{CALLS} calls of {method} left tensors behind"

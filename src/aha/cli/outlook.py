"""How long work will take, estimated before it reports any progress."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aha.methods import Method
    from aha.models import TargetModel


def expected_seconds(methods: Iterable[Method], model: TargetModel, maps: int) -> float:
    """Seconds for this many maps by each method: the passes that it says it needs, times those of one pass, tried here.

    What the parameters allow, at most: methods that ask less, or share passes among classes, are done sooner.
    """
    size = model.stated_preprocessing().size
    passes = sum(method.cost(model, size).passes for method in methods)
    return maps * passes * _seconds_of_a_pass(model)


def _seconds_of_a_pass(model: TargetModel) -> float:
    from PIL import Image

    inputs = model.stated_preprocessing()(Image.new("RGB", (64, 64)))[0][None]
    model.outputs(inputs)  # the first one also finds memory and kernels
    start = time.perf_counter()
    model.outputs(inputs)
    return time.perf_counter() - start

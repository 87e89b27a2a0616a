"""How long work will take, estimated before it reports any progress, and runs with a bar that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from aha.cli.reporting import bench_bar, resumable

if TYPE_CHECKING:
    from aha.bench.runner import BenchRun
    from aha.methods import Method
    from aha.models import TargetModel


def expected_seconds(methods: Iterable[Method], model: TargetModel, maps: int) -> float:
    """Seconds for this many maps by each method: the passes that it says it needs, times those of one pass, tried here.

    What the parameters allow, at most: methods that ask less, or share passes among classes, are done sooner.
    """
    size = model.stated_preprocessing().places
    passes = sum(method.cost(model, size).passes for method in methods)
    return maps * passes * _seconds_of_a_pass(model)


def expected_seconds_of_run(run: BenchRun) -> float | None:
    """Seconds for what a run has still to do: its maps, and the images that the metrics ask about; None if unknown."""
    model, images = run.model, run.pending * run.num_images / max(1, run.total)
    if model.preprocessing is None:
        return None
    questions: dict[Hashable, int] = {}
    for protocol in run.work.protocols:
        for metric in protocol.metrics:
            questions |= metric.questions()
    passes = sum(method.cost(model, model.preprocessing.places).passes for method in run.work.methods)
    passes += len(run.methods) * sum(questions.values())
    return images * passes * _seconds_of_a_pass(model)


def run_with_bar(run: BenchRun, said: Callable[[], str], *, quiet: bool) -> None:
    """Computes what a run lacks; `said` tells what is finished if Ctrl-C ends it."""
    cells = run.total // max(1, run.num_images)
    expected = partial(expected_seconds_of_run, run)
    with resumable(said), bench_bar(run.pending, cells, shown=not quiet, expected=expected) as advance:
        run.run(advance)


def _seconds_of_a_pass(model: TargetModel) -> float:
    from torch import zeros

    inputs = zeros(1, *model.input_shape(None), device=model.device)
    model.outputs(inputs)  # the first one also finds memory and kernels
    start = time.perf_counter()
    model.outputs(inputs)
    return time.perf_counter() - start

"""What a plan will cost, before it is run: measured on one image, multiplied."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from aha.bench.plan import FEW
from aha.bench.records import Cell
from aha.bench.runner import BenchRun, Step
from aha.core.store import encode
from aha.errors import AhaError


@dataclass
class Estimate:
    """Cost of what is still to be done, all processes together.

    Attributes:
        images: number of images, or mosaics.
        cells: number of cells that are not done yet.
        forward, backward: images through the model.
        bytes: disk space for rows, and maps if they are kept.
        seconds: time of one process on this machine.
        by_method: method -> seconds per image.
        failures: what failed on the image that was tried.
    """

    images: int
    cells: int
    forward: float = 0
    backward: float = 0
    bytes: float = 0
    seconds: float = 0
    by_method: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class _SizeCounter:
    """Counts the bytes of what it is given instead of writing it."""

    def __init__(self) -> None:
        self.bytes = self.kept = 0
        self.cells: list[Cell] = []

    def add(self, cells: Sequence[Cell]) -> None:
        """Counts lines."""
        self.cells += cells
        self.bytes += sum(len(encode(cell)) for cell in cells)

    def keep_map(self, values: NDArray[np.float32], precision: str) -> None:
        """Counts a map."""
        self.kept += values.size * np.dtype(precision).itemsize

    def keep_picture(self, picture: Image.Image) -> None:
        """Counts a picture, roughly as JPEG."""
        self.kept += picture.width * picture.height // 4

    def sync(self) -> None:
        """Nothing to make sure of."""


def estimate(run: BenchRun, tries: int = 1) -> Estimate:
    """Scores one image with everything that the plan asks for, writes nothing, and multiplies.

    Images that are not classified correctly cost up to twice as much where both kinds of target are asked for.
    """
    pending = run.pending
    found = Estimate(run.num_images, pending)
    if not pending:
        return found
    model, counter = run.model, _SizeCounter()
    started = time.perf_counter()
    clock = {"last": started}

    def on_step(step: Step) -> None:
        now = time.perf_counter()
        found.by_method[step.method] = found.by_method.get(step.method, 0.0) + now - clock["last"]
        clock["last"] = now

    images = run.pending_images()
    first = [image for image, _ in zip(images, range(tries), strict=False)]
    if not first:  # mosaics, of which it only shows now that all are done
        return replace(found, cells=0)
    with suppress(AhaError, OSError):  # unreadable: the run will say so
        model.outputs(run.inputs_of(first[0])[None])  # the first pass of a process takes longer than the others
    before = model.passes.copy()
    started = clock["last"] = time.perf_counter()
    run.feed(counter, iter(first), on_step)
    seconds = time.perf_counter() - started
    factor = pending / max(1, len(counter.cells))
    return replace(
        found,
        forward=(model.passes["forward"] - before["forward"]) * factor,
        backward=(model.passes["backward"] - before["backward"]) * factor,
        bytes=counter.bytes * factor
        + counter.kept * (min(factor, FEW / len(first)) if run.plan.maps == "few" else factor),
        seconds=seconds * factor,
        by_method={method: spent / len(first) for method, spent in found.by_method.items()},
        failures=[f"{c['method']}: {reason}" for c in counter.cells for _, reason in c["failures"]],
    )

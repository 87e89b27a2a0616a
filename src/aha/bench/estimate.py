"""What a plan will cost, before it is run: measured on one image, multiplied."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from aha.bench.plan import FEW
from aha.bench.runner import BenchRun, Step
from aha.bench.store import MAPS, ROWS, RunStore, read_cells
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


def estimate(run: BenchRun) -> Estimate:
    """Scores one image with everything that the plan asks for, into a folder that is dropped, and multiplies.

    Images that are not classified correctly cost up to twice as much where both kinds of target are asked for.
    """
    pending = run.pending
    found = Estimate(run.num_images, pending)
    if not pending:
        return found
    image = next(run.pending_images(), None)
    if image is None:  # mosaics, of which it only shows now that all are done
        return replace(found, cells=0)
    model = run.model
    with suppress(AhaError, OSError):  # unreadable: the run will say so
        model.outputs(run.inputs_of(image)[None])  # the first pass of a process takes longer than the others
    before, started = model.passes.copy(), time.perf_counter()
    last = started

    def on_step(step: Step) -> None:
        nonlocal last
        now = time.perf_counter()
        found.by_method[step.method] = found.by_method.get(step.method, 0.0) + now - last
        last = now

    with TemporaryDirectory() as place:
        folder = Path(place)
        with RunStore(folder) as store:
            run.feed(store, iter([image]), on_step)
            seconds = time.perf_counter() - started
        cells = read_cells(folder)
        rows, kept = (sum(file.stat().st_size for file in (folder / part).glob("*")) for part in (ROWS, MAPS))
    factor = pending / max(1, len(cells))
    return replace(
        found,
        forward=(model.passes["forward"] - before["forward"]) * factor,
        backward=(model.passes["backward"] - before["backward"]) * factor,
        bytes=rows * factor + kept * (min(factor, FEW) if run.plan.maps == "few" else factor),
        seconds=seconds * factor,
        failures=[f"{cell['method']}: {reason}" for cell in cells for _, reason in cell["failures"]],
    )

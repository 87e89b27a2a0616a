"""Runs a plan: finds what is missing, has it judged batch by batch, and writes each cell as it is finished.

Cells that the run folder has are skipped; so a run that was interrupted continues, and one that is asked for more
computes only that. Cells do not depend on each other, on the batch or on the process that computes them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

from torch import Tensor

from aha.bench.cells import Cells
from aha.bench.judging import Judging, Line, Sink
from aha.bench.plan import Plan, Work, check_plan, fitted
from aha.bench.store import Store, known_keys, read_plans_of
from aha.bench.subjects import Subjects
from aha.core.disk import check_writable, versions, writing
from aha.data.datasets import BenchImage
from aha.learned.engine import launched_device, launched_share, parts_of
from aha.models import TargetModel, load_model

ENGINES = "engines.jsonl"
"""What ran the passes of each part of a run, where that was not the model itself."""
_SYNC_SECONDS = 2.0


class Step(NamedTuple):
    """What has been done since the last one: cells, failed ones among them, and the method they are of."""

    cells: int
    failures: int
    method: str


class BenchRun:
    """One plan on one model, checked; `run` does what is missing.

    Attributes:
        plan: what was asked for.
        model: the loaded model.
        work: methods and protocols, and what was left out of them.
        subjects: the images of all processes; this one does its share of them.
        cells: what is known of each image's cells.
    """

    def __init__(
        self,
        plan: Plan,
        out: str | Path,
        *,
        model: TargetModel | None = None,
        device: str | None = None,
        share: tuple[int, int] | None = None,
    ) -> None:
        self.plan, self.out = plan, Path(out)
        self._share = launched_share() if share is None else share
        work = check_plan(plan)
        check_writable(self.out)
        self.model = load_planned(plan, device) if model is None else model
        self.work: Work = fitted(work, self.model, optional=plan.optional)
        self.subjects = Subjects(plan, self.model, self.work.protocols, read_plans_of(self.out))
        self.cells = Cells(self.model, self.work, self.words, plan.seed, known_keys(self.out))

    @property
    def words(self) -> tuple[str, ...]:
        """Kinds of target, in the order in which they are done."""
        return self.subjects.words

    @property
    def images(self) -> list[BenchImage]:
        """All images of the plan."""
        return self.subjects.images

    @property
    def num_images(self) -> int:
        """Number of images, or of the mosaics that are made of them, of all processes."""
        return self.subjects.count

    @property
    def total(self) -> int:
        """Number of cells of this process, finished ones included."""
        return self.cells.per_image * len(parts_of(self.num_images, self._share))

    @property
    def pending(self) -> int:
        """Number of cells of this process that are still to be done."""
        if self.subjects.are_mosaics:  # which ones are filled shows when they are built
            return self.total
        return sum(len(self.cells.missing(image)) for image in self._own_images())

    def pending_images(self) -> Iterator[BenchImage]:
        """This process's images, or mosaics, that have missing cells."""
        are_mosaics = self.subjects.are_mosaics
        candidates = self.subjects.mosaics(self._share) if are_mosaics else iter(self._own_images())
        return (image for image in candidates if self.cells.missing(image))

    def inputs_of(self, image: BenchImage) -> Tensor:
        """The model input (C, H, W) of an image, on the model's device."""
        return self.subjects.read(image).inputs.to(self.model.device)

    def run(self, on_step: Callable[[Step], None] = lambda step: None) -> None:
        """Does what is missing; whatever ends it, what was done is in the folder."""
        with Store(self.out, self._share[0]) as store:
            self.cells.done = store.keys
            if self._share[0] == 0:
                store.record_plan(self.record())
            try:
                self.feed(store, self.pending_images(), on_step)
            finally:
                self._note_engine()

    def feed(self, sink: Sink, images: Iterator[BenchImage], on_step: Callable[[Step], None]) -> None:
        """Computes the missing cells of the images into the sink."""
        synced = time.monotonic()

        def deliver(cells: list[Line]) -> None:
            nonlocal synced
            sink.add(cells)
            if time.monotonic() - synced > _SYNC_SECONDS:
                sink.sync()
                synced = time.monotonic()
            for method in dict.fromkeys(cell["method"] for cell in cells):
                own = [cell for cell in cells if cell["method"] == method]
                on_step(Step(len(own), sum(not cell["found"] for cell in own), method))

        judging = Judging(
            self.model, self.work.methods, self.subjects, self.cells, self.plan.seed, self.plan.maps, sink, deliver
        )
        while part := list(islice(images, self.plan.batch_size)):
            judging.images(part)

    def record(self) -> dict[str, Any]:
        """What the report says about how its numbers came about."""
        return {
            "plan": self.plan.as_dict(),
            "model": self.model.spec,
            "digest": self.model.digest,
            "classes": list(self.model.class_names or ())[: self.model.num_classes],
            "score": self.model.score.name,
            "methods": [str(method) for method in self.work.methods],
            "protocols": {p.name: [metric.in_full() for metric in p.metrics] for p in self.work.protocols},
            "asked": list(self.words),
            "images": self.num_images,
            "left_out": self.work.left_out,
            "kept": self.subjects.kept,
            "device": str(self.model.device),
            "versions": versions(),
        }

    def _note_engine(self) -> None:
        """Adds what ran the passes, and how far it moved probabilities, to the run's record of that."""
        if facts := self.model.engine_facts:
            entry = {"model": self.model.spec, "digest": self.model.digest, "process": self._share[0], **facts}
            with writing(self.out), (self.out / ENGINES).open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def _own_images(self) -> list[BenchImage]:
        return [self.images[index] for index in parts_of(len(self.images), self._share)]


def load_planned(plan: Plan, device: str | None = None) -> TargetModel:
    """The model of a plan, on the device that a launcher meant for this process."""
    return load_model(
        plan.model,
        weights=plan.weights or None,
        pretrained=plan.pretrained,
        img_size=plan.img_size,
        fit=cast("Any", plan.fit),  # checked where it is used
        score=plan.score,
        device=device or launched_device(),
        precision=cast("Any", plan.precision),
        engine=cast("Any", plan.engine),
        batch_size=max(plan.batch_size, 32),
    )

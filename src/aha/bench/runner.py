"""Runs a plan: finds what is missing, has it scored batch by batch, and writes each cell as it is finished.

Cells that the run folder has are skipped; so a run that was interrupted continues, and one that is asked for more
computes only that. Cells do not depend on each other, on the batch or on the process that computes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from aha.bench.inputs import Inputs
from aha.bench.plan import FEW, Plan, Work, check_plan, fitted
from aha.bench.records import Cell, PlanEntry, RunSettings
from aha.bench.run_sink import RunSink
from aha.bench.store import RunStore, current_keys, other_setting, read_plans_of
from aha.bench.work_units import Cells, Measured
from aha.core.axes import is_volume
from aha.core.disk import check_writable, result_key, versions
from aha.core.launch import launched_device, launched_share, parts_of
from aha.core.store import Store
from aha.data.batches import Batch
from aha.data.images import LabelledImage
from aha.errors import AhaError, AhaWarning, MetricError, OutputError, SpecError, TargetError, warn
from aha.evaluation.loop import Loop
from aha.evaluation.map_sources import MapSource, MethodMaps
from aha.evaluation.saved_maps import SavedMaps, find_saved
from aha.explaining import Asked
from aha.methods import Method
from aha.models import TargetModel, load_model

ENGINES = "engines.jsonl"
"""What ran the passes of each part of a run, where that was not the model itself."""
_ALL = ("float16", "float32")  # how plans ask for all maps
_SYNC_SECONDS = 2.0
_LOCK_SECONDS = 60.0  # processes that end together wait for each other


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
        methods: whose maps are scored: those of the work, and saved ones.
        inputs: the images of all processes; this one does its share of them.
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
        earlier = read_plans_of(self.out)
        self._check_settings(earlier)
        self._warn_of_lost_maps(earlier)
        if plan.maps in _ALL and is_volume(self.model.input_shape(None)):
            raise SpecError(f"maps={plan.maps} keeps maps of images, not of volumes; aha explain saves maps of volumes")
        self.inputs = Inputs(plan, self.model, self.work.protocols, earlier)
        self.methods: tuple[Measured, ...] = (*self.work.methods, *self._saved())
        self.cells = Cells(
            self.model, self.methods, self.work.protocols, self.target_kinds, plan.seed, current_keys(self.out)
        )

    @property
    def target_kinds(self) -> tuple[str, ...]:
        """Kinds of target, in the order in which they are done."""
        return self.inputs.target_kinds

    @property
    def images(self) -> list[LabelledImage]:
        """All images of the plan."""
        return self.inputs.images

    @property
    def num_images(self) -> int:
        """Number of images, or of the mosaics that are made of them, of all processes."""
        return self.inputs.count

    @property
    def total(self) -> int:
        """Number of cells of this process, finished ones included."""
        if self.inputs.are_mosaics:
            return self.cells.per_image * len(parts_of(self.num_images, self._share))
        return sum(self.cells.count(image) for image in self._own_images())

    @property
    def pending(self) -> int:
        """Number of cells of this process that are still to be done."""
        if self.inputs.are_mosaics:  # which ones are done shows when they are built
            return self.total
        return sum(len(self.cells.missing(image)) for image in self._own_images())

    def pending_images(self) -> Iterator[LabelledImage]:
        """This process's images, or mosaics, that have missing cells."""
        are_mosaics = self.inputs.are_mosaics
        candidates = self.inputs.mosaics(self._share) if are_mosaics else iter(self._own_images())
        return (image for image in candidates if self.cells.missing(image))

    def planned_keys(self) -> set[str]:
        """What the cells of the plan are known by, of all processes."""
        images = self.inputs.mosaics((0, 1)) if self.inputs.are_mosaics else iter(self.images)
        return {key for image in images for key in self.cells.keys(image)}

    def inputs_of(self, image: LabelledImage) -> Tensor:
        """The model input (C, H, W) of an image, on the model's device."""
        return self.inputs.read(image)[0].to(self.model.device)

    def run(self, on_step: Callable[[Step], None] = lambda step: None) -> None:
        """Does what is missing; whatever ends it, what was done is in the folder."""
        with RunStore(self.out, self._share[0]) as store:
            self.cells.done = store.latest
            if self._share[0] == 0:
                store.record_plan(self.record())
            try:
                self.feed(store, self.pending_images(), on_step)
            finally:
                self._note_engine()

    def feed(self, writer: RunStore, images: Iterator[LabelledImage], on_step: Callable[[Step], None]) -> None:
        """Computes the missing cells of the images."""
        synced = time.monotonic()

        def deliver(cells: list[Cell]) -> None:
            nonlocal synced
            writer.add(cells)
            if time.monotonic() - synced > _SYNC_SECONDS:
                writer.sync()
                synced = time.monotonic()
            for method in dict.fromkeys(cell["method"] for cell in cells):
                own = [cell for cell in cells if cell["method"] == method]
                on_step(Step(len(own), sum(not cell["found"] for cell in own), method))

        sink = RunSink(self.cells, writer, deliver, self.plan.maps, {image.id for image in self.images[:FEW]})
        sources: list[MapSource] = [
            MethodMaps(self.model, m, self.plan.seed, Exception) if isinstance(m, Method) else m for m in self.methods
        ]
        loop = Loop(self.model, sources, self.work.protocols, sink, Exception)
        while part := list(islice(images, self.plan.batch_size)):
            self._score(loop, sink, part)

    def _score(self, loop: Loop, sink: RunSink, part: Sequence[LabelledImage]) -> None:
        """Delivers all cells of the images that are missing."""
        images, read = [], []
        for image in part:
            try:
                read.append(self.inputs.read(image))
                images.append(image)
            except (AhaError, OSError) as error:
                sink.fail(image, str(error))
        if not images:
            return
        sink.images = {image.id: image for image in images}
        batch = Batch(torch.stack([inputs for inputs, _ in read]), [subject for _, subject in read])
        try:
            opened = loop.open(
                batch, self.inputs.truth(images), lambda _, outputs: self.inputs.classes(images, outputs)
            )
        except Exception as error:  # whatever it was: the other images go on
            if len(images) > 1:
                for image in images:
                    self._score(loop, sink, [image])
            else:
                sink.fail(images[0], f"{type(error).__name__}: {error}")
            return
        opened.score()

    def record(self) -> PlanEntry:
        """What the report says about how its numbers came about."""
        return {
            "plan": self.plan.as_dict(),
            "folder": str(Path.cwd()),  # where relative paths of the plan start
            "model": self.model.spec,
            "digest": self.model.digest,
            "classes": list(self.model.class_names or ())[: self.model.num_classes],
            "score": self.model.score.name,
            "settings": self.settings(),
            "methods": [str(method) for method in self.methods],
            "covered": {m.name: len(m.maps) for m in self.methods if isinstance(m, SavedMaps)},
            "protocols": {p.name: [metric.in_full() for metric in p.metrics] for p in self.work.protocols},
            "asked": list(self.target_kinds),
            "images": self.num_images,
            "left_out": self.work.left_out,
            "kept": self.inputs.kept,
            "device": str(self.model.device),
            "versions": versions(),
        }

    def _note_engine(self) -> None:
        """Adds what ran the passes, and how far it moved probabilities, to the run's record of that."""
        if facts := self.model.engine_facts:
            about = {"model": self.model.spec, "digest": self.model.digest, "process": self._share[0]}
            key = f"{result_key(*about.values())[:16]}-{result_key(*facts.values())}"
            with Store(self.out / ENGINES, self.out, wait=_LOCK_SECONDS) as engines:
                engines.add([{"key": key, **about, **facts}])

    def settings(self) -> RunSettings:
        """What all numbers of a model in one folder have in common: a mean over several of them would mean nothing."""
        model = self.model
        return {
            "seed": self.plan.seed,
            "score": model.score.name,
            "precision": model.precision,
            "engine": model.engine if model.engine_key else "eager",
            "preprocessing": str(model.preprocessing),
        }

    def _saved(self) -> list[SavedMaps]:
        """Saved maps of the images, refused where they cannot be scored."""
        if not self.plan.saved:
            return []
        if self.inputs.are_mosaics:
            raise MetricError("mosaics need methods, not saved maps")
        if any("method" in protocol.needs for protocol in self.work.protocols):
            raise MetricError("this protocol has to run the method again; maps alone are not enough")
        found = find_saved(self.plan.saved, self.inputs.images, self.plan.seed)
        both = {saved.name for saved in found} & {str(method) for method in self.work.methods}
        if both:
            raise SpecError(f"{both.pop()} is both a method and saved maps; measure them in separate folders")
        return found

    def _check_settings(self, earlier: Sequence[PlanEntry]) -> None:
        if other := other_setting(earlier, self.model.digest, self.settings()):
            raise OutputError(
                f"{self.out} holds results with {other.name}={other.former}, not {other.value}; choose another folder"
            )

    def _warn_of_lost_maps(self, earlier: Sequence[PlanEntry]) -> None:
        """Says so where maps are to be kept and what was measured before has none: finished cells stay as they are."""
        wanted = {str(method) for method in self.work.methods} if self.plan.maps in _ALL else set[str]()
        without = [entry["methods"] for entry in earlier if entry["plan"].get("maps", "none") not in _ALL]
        lost = dict.fromkeys(method for methods in without for method in methods if method in wanted)
        if lost:
            names = ", ".join(lost)
            warn(
                f"{self.out}: earlier results of {names} did not keep all maps; choose another folder",
                AhaWarning,
            )

    def _own_images(self) -> list[LabelledImage]:
        return [self.images[index] for index in parts_of(len(self.images), self._share)]


def written_model(model: TargetModel) -> str:
    """A model as a call writes it."""
    return "model" if model.spec.startswith("module:") else f'"{model.spec}"'


def planned_view(model: TargetModel, targets: Sequence[str]) -> TargetModel:
    """The model as a plan's target has it: one that is no class is alone in its plan, and the same for all images."""
    asked = [Asked.of(model, target) for target in dict.fromkeys(targets)]
    objectives = [one.objective for one in asked if one.objective is not None]
    if not objectives:
        return model
    if len(asked) > 1:
        raise TargetError(f"{objectives[0]} is no plain class; measure it in a plan of its own")
    if objectives[0].is_per_image:
        raise TargetError(f"{objectives[0]} differs from image to image; measure it with aha.evaluate")
    return asked[0].model


def load_planned(plan: Plan, device: str | None = None) -> TargetModel:
    """The model of a plan, on the device that a launcher meant for this process."""
    place = device or launched_device()
    model = load_model(plan.model, device=place, batch_size=plan.batch_size, **plan.stated)
    model.stated_preprocessing()  # data are pictures; said before anything else goes wrong for the lack of it
    return planned_view(model, plan.targets)

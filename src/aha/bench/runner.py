"""Runs a plan: each image is read once, explained once per method, and judged by all protocols in one pass.

The work is a set of cells, each one image, method, protocol and kind of target. Cells that the run folder has are
skipped; so a run that was interrupted continues, and one that is asked for more computes only that. Cells do not depend
on each other, on the batch or on the process that computes them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from aha import __version__
from aha.batches import Batch
from aha.bench import layouts  # noqa: F401  # registers the kinds of data
from aha.bench.data import BenchImage, choose, find_data, mda_filter
from aha.bench.plan import Plan, Work, check_plan, fitted
from aha.bench.store import Store, known_keys, read_plans_of
from aha.errors import AhaError, MetricError, SpecError, TargetError
from aha.explanation import Subject
from aha.images import read_image
from aha.labelled import Lazy
from aha.learned.engine import launched_device, launched_share, parts_of
from aha.methods import Method
from aha.metrics import Case, Sample
from aha.models import TargetModel, load_model
from aha.mosaics import Cell, Mosaic, build_mosaics
from aha.preprocessing import Geometry
from aha.protocols import Protocol as Metrics
from aha.results import check_writable, result_key, versions
from aha.score_table import CurveRow, Failure, Scores
from aha.scoring import MethodSource, judge, prepare
from aha.targets import resolve_targets
from aha.truth import Truth, check_truth, labelled_samples

GRID = "grid"
"""The kind of target of mosaics: all classes in them."""
_SYNC_SECONDS = 2.0
_CURVE_POINTS = 57  # of 225; what a figure shows of a curve
_MOSAIC_SIDE = 2


class Step(NamedTuple):
    """What has been done since the last one: cells, failed ones among them, and the method they are of."""

    cells: int
    failures: int
    method: str


class Sink(Protocol):
    """Where cells, maps and pictures go."""

    def add(self, cells: Sequence[dict[str, Any]]) -> None:
        """Takes finished cells."""

    def keep_map(self, values: NDArray[np.float32], precision: str) -> list[Any]:
        """Takes a map and says where it is."""

    def keep_picture(self, picture: Image.Image) -> list[Any]:
        """Takes a picture and says where it is."""

    def sync(self) -> None:
        """Makes sure of what was taken."""


@dataclass(frozen=True)
class _Ready:
    """An image that has been read: model input (C, H, W), its geometry and, for a mosaic, its cells."""

    image: BenchImage
    inputs: Tensor
    subject: Subject
    cells: dict[int, Cell] | None = None


class BenchRun:
    """One plan on one model, checked; `run` does what is missing.

    Attributes:
        plan: what was asked for.
        model: the loaded model.
        work: methods and protocols, and what was left out of them.
        images: all images of the plan; this process does its share of them.
        total: number of cells of this process, finished ones included.
        pending: number of cells that are still to be done.
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
        self._images_in_data = find_data(plan.data, self.model)
        self._kept: list[str] | None = None
        self.images = self._chosen()
        self._on_mosaics = any("grid" in protocol.needs for protocol in self.work.protocols)
        self._has_masks = all(image.mask for image in self.images)
        self._has_boxes = any(image.boxes for image in self.images)
        self._check_truth()
        self.words = (GRID,) if self._on_mosaics else tuple(dict.fromkeys(sorted(plan.targets, key=_label_last)))
        self._check_targets()
        self._bases = self._cell_bases()
        self._done = known_keys(self.out)

    @property
    def total(self) -> int:
        """Number of cells of this process, finished ones included."""
        return len(self._bases) * len(parts_of(self.num_images, self._share))

    @property
    def num_images(self) -> int:
        """Number of images, or of the mosaics that are made of them, of all processes."""
        return len(self.images) // _MOSAIC_SIDE**2 if self._on_mosaics else len(self.images)

    @property
    def pending(self) -> int:
        """Number of cells of this process that are still to be done."""
        if self._on_mosaics:  # which ones are filled shows when they are built
            return self.total
        return sum(len(self._missing(image)) for image in self._own_images())

    def run(self, on_step: Callable[[Step], None] = lambda step: None) -> None:
        """Does what is missing; whatever ends it, what was done is in the folder."""
        with Store(self.out, self._share[0]) as store:
            self._done = store.keys
            if self._share[0] == 0:
                store.record_plan(self.record())
            self.feed(store, self.pending_images(), on_step)

    def feed(self, sink: Sink, images: Iterator[BenchImage], on_step: Callable[[Step], None]) -> None:
        """Computes the missing cells of the images into the sink."""
        synced = time.monotonic()

        def deliver(cells: list[dict[str, Any]]) -> None:
            nonlocal synced
            sink.add(cells)
            if time.monotonic() - synced > _SYNC_SECONDS:
                sink.sync()
                synced = time.monotonic()
            for method in dict.fromkeys(cell["method"] for cell in cells):
                own = [cell for cell in cells if cell["method"] == method]
                on_step(Step(len(own), sum(not cell["found"] for cell in own), method))

        while part := list(islice(images, self.plan.batch_size)):
            self._work(part, sink, deliver)

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
            "kept": self._kept,
            "device": str(self.model.device),
            "versions": versions(),
        }

    # Which cells there are

    def _cell_bases(self) -> dict[tuple[str, str, str], str]:
        """Method, protocol and kind of target -> digest of what all images' cells of it depend on."""
        common = result_key(
            __version__,
            self.model.spec,
            self.model.digest,
            self.model.preprocessing,
            self.model.score.name,
            self.model.precision,
            self.plan.seed,
        )
        prints = {str(method): method.fingerprint(self.model) for method in self.work.methods}
        protocols = {p.name: [metric.in_full() for metric in p.metrics] for p in self.work.protocols}
        return {
            (method, protocol, word): result_key(common, text, metrics, word)
            for method, text in prints.items()
            for protocol, metrics in protocols.items()
            for word in self.words
        }

    def _key(self, image: BenchImage, base: str) -> str:
        return result_key(base, image.id, image.size)

    def _missing(self, image: BenchImage) -> list[tuple[str, str, str]]:
        return [cell for cell, base in self._bases.items() if self._key(image, base) not in self._done]

    def _own_images(self) -> list[BenchImage]:
        return [self.images[index] for index in parts_of(len(self.images), self._share)]

    def pending_images(self) -> Iterator[BenchImage]:
        """This process's images, or mosaics, that have missing cells."""
        candidates = self.mosaics() if self._on_mosaics else iter(self._own_images())
        return (image for image in candidates if self._missing(image))

    def mosaics(self) -> Iterator[BenchImage]:
        """The mosaics of this process, made of the images as they are needed."""

        def picture(index: int) -> tuple[Image.Image, int]:
            image = self.images[index]
            assert image.label is not None
            return read_image(image.read()), image.label

        pictures: Any = Lazy(len(self.images), picture)
        built = build_mosaics(self.model, pictures, count=self.num_images, n=_MOSAIC_SIDE, seed=self.plan.seed)
        for index, mosaic in enumerate(built):
            if index % self._share[1] == self._share[0]:
                names = "+".join(self.images[source].id for source in mosaic.sources)
                yield BenchImage(f"mosaic-{index:05d}-{result_key(names)[:8]}", partial(_same, mosaic))

    def _chosen(self) -> list[BenchImage]:
        plan = self.plan
        if plan.filter == "none":
            return choose(self._images_in_data, plan.limit, plan.seed)
        chooses = ("data", "limit", "filter", "img_size", "fit", "score", "precision")
        wanted = {name: plan.as_dict().get(name) for name in chooses}
        for entry in read_plans_of(self.out):
            same = entry["digest"] == self.model.digest and entry["kept"]
            if same and {name: entry["plan"].get(name) for name in chooses} == wanted:
                self._kept = entry["kept"]
        if self._kept is None:
            self._kept = mda_filter(self.model, self._images_in_data, plan.limit, plan.batch_size)
        if not self._kept:
            raise SpecError(f"the filter {plan.filter!r} keeps none of the images of {plan.data}")
        kept = set(self._kept)
        return [image for image in self._images_in_data if image.id in kept]

    def _check_truth(self) -> None:
        protocols = self.work.protocols
        if not self._on_mosaics:
            check_truth(protocols, Truth([()] if self._has_masks else None, [()] if self._has_boxes else None))
            return
        if not all("grid" in protocol.needs for protocol in protocols):
            raise MetricError("grid protocols judge mosaics made of the images; give them a plan of their own")
        if len(self.images) < _MOSAIC_SIDE**2 or any(image.label is None for image in self.images):
            raise MetricError(f"mosaics need at least {_MOSAIC_SIDE**2} images, all of them with labels")

    def _check_targets(self) -> None:
        for word in self.words:
            if word == "label" and any(image.label is None for image in self.images):
                raise TargetError(
                    f"target 'label' needs labels, which {self.plan.data} does not give for {self.model.spec}"
                )
            if word not in ("label", GRID):
                resolve_targets(word, self.model, torch.zeros(1, self.model.num_classes), None)

    # Doing them

    def _work(self, part: list[BenchImage], sink: Sink, deliver: Callable[[list[dict[str, Any]]], None]) -> None:
        ready: list[_Ready] = []
        for image in part:
            try:
                ready.append(self._read(image))
            except (AhaError, OSError) as error:
                deliver(self._failed(image, str(error)))
        if not ready:
            return
        failures: list[Failure] = []
        batch = Batch(torch.stack([r.inputs for r in ready]), [r.subject for r in ready])
        try:
            samples, outputs = labelled_samples(self.model, batch, self._truth(ready), range(len(ready)), failures)
        except Exception as error:  # whatever it was: the other images go on
            if len(ready) > 1:
                for alone in ready:
                    self._work([alone.image], sink, deliver)
            else:
                deliver(self._failed(ready[0].image, f"{type(error).__name__}: {error}"))
            return
        for sample, known in zip(samples, ready, strict=True):
            sample.label = known.image.label
        _Judging(self, ready, batch, samples, outputs, failures, sink, deliver).run()

    def _read(self, image: BenchImage) -> _Ready:
        content = image.read()
        if isinstance(content, Mosaic):
            inputs = content.inputs(self.model)
            geometry = Geometry.identity((inputs.shape[-2], inputs.shape[-1]))
            return _Ready(image, inputs, Subject(image.id, content.image, geometry), content.cells)
        picture = read_image(content)
        inputs, geometry = self.model.stated_preprocessing()(picture)
        return _Ready(image, inputs, Subject(image.id, picture, geometry))

    def inputs_of(self, image: BenchImage) -> Tensor:
        """The model input (C, H, W) of an image, on the model's device."""
        return self._read(image).inputs.to(self.model.device)

    def _truth(self, ready: Sequence[_Ready]) -> Truth:
        def mask(index: int) -> NDArray[Any]:
            read = ready[index].image.mask
            assert read is not None
            try:
                return read()
            except (OSError, ValueError, KeyError) as error:
                raise MetricError(f"cannot read the mask of {ready[index].image.id}: {error}") from None

        return Truth(
            Lazy(len(ready), mask) if self._has_masks and not self._on_mosaics else None,
            [r.image.boxes for r in ready] if self._has_boxes and not self._on_mosaics else None,
            [r.cells or {} for r in ready] if self._on_mosaics else None,
        )

    def _failed(self, image: BenchImage, reason: str) -> list[dict[str, Any]]:
        return [self.cell(image, *parts, failures=[["", reason]]) for parts in self._missing(image)]

    def missing_protocols(self, image: BenchImage, method: Method, word: str) -> tuple[Metrics, ...]:
        """Protocols by which the method's map of the image is still to be judged."""
        keys = {p: self._key(image, self._bases[str(method), p.name, word]) for p in self.work.protocols}
        return tuple(protocol for protocol, key in keys.items() if key not in self._done)

    def cell(self, image: BenchImage, method: str, protocol: str, word: str, **content: Any) -> dict[str, Any]:
        """The line of one cell."""
        return {
            "key": self._key(image, self._bases[method, protocol, word]),
            "model": self.model.spec,
            "digest": self.model.digest,
            "method": method,
            "protocol": protocol,
            "asked": word,
            "image": image.id,
            "label": image.label,
            "found": [],
            "failures": [],
            "version": __version__,
            **content,
        }


@dataclass
class _Judging:
    """One batch: its images, what the model says about them, and where the cells go."""

    run_: BenchRun
    ready: list[_Ready]
    batch: Batch
    samples: list[Sample]
    outputs: Tensor
    failures: list[Failure]
    sink: Sink
    deliver: Callable[[list[dict[str, Any]]], None]

    def run(self) -> None:
        """All cells of the batch that are missing."""
        self._known: dict[tuple[str, str, str], dict[str, Any]] = {}  # image, method, protocol -> a cell of one class
        self._pictures: dict[str, list[Any]] = {}
        self._delivered: set[str] = set()
        for word in self.run_.words:
            chosen = self._classes(word)
            for method in self.run_.work.methods:
                groups: dict[tuple[Metrics, ...], list[int]] = defaultdict(list)
                for row, known in enumerate(self.ready):
                    missing = self.run_.missing_protocols(known.image, method, word)
                    missing = self._copy(row, str(method), missing, word, chosen[row])
                    if missing:
                        groups[missing].append(row)
                for protocols, rows in groups.items():
                    self._judge(method, protocols, rows, word, chosen)

    def _classes(self, word: str) -> list[list[int]]:
        if word == GRID:
            return [list(known.cells or ()) for known in self.ready]
        if word == "label":
            return [[cast("int", known.image.label)] for known in self.ready]
        return resolve_targets(word, self.run_.model, self.outputs, None)

    def _copy(
        self, row: int, method: str, missing: tuple[Metrics, ...], word: str, classes: list[int]
    ) -> tuple[Metrics, ...]:
        """Takes over cells of the same class that was asked for under another word; returns what is left to do."""
        image, left = self.ready[row].image, []
        for protocol in missing:
            known = self._known.get((image.id, method, protocol.name))
            if known is None or [found["target"] for found in known["found"]] != classes:
                left.append(protocol)
                continue
            fresh = self.run_.cell(image, method, protocol.name, word)
            self.deliver([{**known, "key": fresh["key"], "asked": word}])
        return tuple(left)

    def _judge(
        self, method: Method, protocols: tuple[Metrics, ...], rows: list[int], word: str, chosen: list[list[int]]
    ) -> None:
        cells: dict[tuple[int, str], dict[str, Any]] = {}
        failures: list[Failure] = []
        places = {self.samples[row].name: row for row in rows}
        source = MethodSource(self.run_.model, method, self.run_.plan.seed, Exception)
        part = Batch(self.batch.inputs[rows], [self.batch.subjects[row] for row in rows])
        cases = source.cases(
            part, [self.samples[row] for row in rows], self.outputs[rows], [chosen[row] for row in rows], failures
        )
        open_row: int | None = None
        for case in cases:
            row = places[case.sample.name]
            if open_row not in (None, row):  # all classes of the image before are done
                self._finish(open_row, method, protocols, word, cells, failures)
            open_row = row
            self._add(case, row, protocols, word, cells)
        if not cells and len(rows) > 1 and len(failures) >= len(rows):  # one of them may be to blame
            for row in rows:
                self._judge(method, protocols, [row], word, chosen)
            return
        for row in rows:
            self._finish(row, method, protocols, word, cells, failures)

    def _add(
        self,
        case: Case,
        row: int,
        protocols: tuple[Metrics, ...],
        word: str,
        cells: dict[tuple[int, str], dict[str, Any]],
    ) -> None:
        run, image = self.run_, self.ready[row].image
        kept = self._keep(case, row)
        with suppress(Exception):  # the protocol to blame will meet it again, and it alone
            prepare(case, protocols)
        score = float(case.scores(case.sample.clean[None])[0])
        for protocol in protocols:
            found = Scores()
            judge(case, [protocol], found, Exception)
            entry = {
                "target": case.target,
                "score": _rounded(score, 6),
                "rows": [[r.metric, r.reference, r.value] for r in found.rows],
                "curves": [_thinned(curve) for curve in found.curve_rows],
                **({"map": kept} if kept else {}),
            }
            cell = cells.setdefault(
                (row, protocol.name),
                run.cell(
                    image,
                    case.method,
                    protocol.name,
                    word,
                    found=[],
                    failures=[],
                    seconds=_rounded(case.seconds, 6),
                    forward=case.forward_images,
                    backward=case.backward_images,
                    **({"picture": self._pictures[image.id]} if image.id in self._pictures else {}),
                ),
            )
            cell["found"].append(entry)
            cell["failures"] += [[failure.metric, failure.reason] for failure in found.failures]

    def _keep(self, case: Case, row: int) -> list[Any] | None:
        precision = self.run_.plan.maps
        if precision == "none":
            return None
        image = self.ready[row].image
        if image.id not in self._pictures:
            pixels = case.sample.pixels.clamp(0, 1).float().cpu()
            picture = to_pil_image(pixels if len(pixels) in (1, 3) else pixels.mean(dim=0, keepdim=True))
            self._pictures[image.id] = self.sink.keep_picture(picture.convert("RGB"))
        return self.sink.keep_map(case.values.detach().cpu().float().numpy(), precision)

    def _finish(
        self,
        row: int | None,
        method: Method,
        protocols: tuple[Metrics, ...],
        word: str,
        cells: dict[tuple[int, str], dict[str, Any]],
        failures: list[Failure],
    ) -> None:
        """Delivers the cells of one image; a map that could not be made is a cell with a reason."""
        assert row is not None
        image = self.ready[row].image
        reasons = [[f.metric, f.reason] for f in (*self.failures, *failures) if f.image == image.id]
        done = []
        for protocol in protocols:
            cell = cells.pop((row, protocol.name), None)
            if cell is None:
                cell = self.run_.cell(image, str(method), protocol.name, word)
                if cell["key"] in self._delivered:
                    continue
            cell["failures"] = [*reasons, *cell["failures"]]
            done.append(cell)
            self._delivered.add(cell["key"])
            self._known[image.id, str(method), protocol.name] = cell
        if done:
            self.deliver(done)


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
        batch_size=max(plan.batch_size, 32),
    )


def _label_last(word: str) -> bool:
    """The predicted class first: where it is the true one, the true one's cells are known already."""
    return word == "label"


def _same(mosaic: Mosaic) -> Mosaic:
    return mosaic


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _thinned(curve: CurveRow) -> list[Any]:
    """Kind, reference, shares of pixels and scores, at as many points as a figure needs."""
    count = len(curve.fractions)
    places = np.unique(np.linspace(0, count - 1, min(count, _CURVE_POINTS)).round().astype(int)).tolist()
    return [
        curve.kind,
        curve.reference,
        [round(curve.fractions[i], 5) for i in places],
        [round(curve.scores[i], 5) for i in places],
    ]

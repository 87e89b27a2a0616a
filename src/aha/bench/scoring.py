"""From images to finished cells: a batch is read once, explained once per method, and scored by all protocols at once.

Whatever fails becomes a cell with a reason: an image that cannot be read, a method without a map, a metric without a
value. A batch that fails as a whole is done again image by image, since one of them may be to blame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from aha.bench.cells import Cells, Measured
from aha.bench.evaluate import Made, MethodSource, clean_pass, prepare, prepared, score_case
from aha.bench.plan import FEW, KeepMaps
from aha.bench.records import Cell, Curve, Found, MapPlace, PicturePlace
from aha.bench.subjects import GRID, LoadedImage, Subjects
from aha.bench.truth import labelled_samples
from aha.data.batches import Batch
from aha.data.datasets import BenchImage
from aha.data.targets import resolve_targets
from aha.errors import AhaError
from aha.methods import Method
from aha.metrics import Case, Sample
from aha.metrics.protocols import Protocol as Metrics
from aha.models import TargetModel
from aha.results.score_table import CurveRow, Failure, Scores

_CURVE_POINTS = 57  # of 225; what a figure shows of a curve


class Sink(Protocol):
    """Where cells, maps and pictures go."""

    def add(self, cells: Sequence[Cell]) -> None:
        """Takes finished cells."""

    def keep_map(self, values: NDArray[np.float32], precision: str) -> MapPlace | None:
        """Takes a map and says where it is, if it is kept."""

    def keep_picture(self, picture: Image.Image) -> PicturePlace | None:
        """Takes a picture and says where it is, if it is kept."""

    def sync(self) -> None:
        """Makes sure of what was taken."""


@dataclass(frozen=True)
class Scoring:
    """What is scored, and where it goes; `deliver` takes finished cells, `sink` maps and pictures."""

    model: TargetModel
    methods: Sequence[Measured]
    subjects: Subjects
    cells: Cells
    seed: int
    maps: KeepMaps
    sink: Sink
    deliver: Callable[[list[Cell]], None]
    protocols: Sequence[Metrics]

    @cached_property
    def shown(self) -> set[str]:
        """The pictures of which maps are kept where a plan asks for a few."""
        return {image.id for image in self.subjects.images[:FEW]}

    def images(self, part: Sequence[BenchImage]) -> None:
        """Delivers all cells of the images that are missing."""
        loaded: list[LoadedImage] = []
        for image in part:
            try:
                loaded.append(self.subjects.read(image))
            except (AhaError, OSError) as error:
                self._fail(image, str(error))
        if not loaded:
            return
        failures: list[Failure] = []
        batch = Batch(torch.stack([r.inputs for r in loaded]), [r.subject for r in loaded])
        truth = self.subjects.truth(loaded)
        try:
            own = [method for method in self.methods if isinstance(method, Method)]
            with clean_pass(self.model, batch.inputs, own, self.protocols) as reading:
                samples, outputs = labelled_samples(self.model, batch, truth, range(len(loaded)), failures)
                scoring = _BatchScoring(self, loaded, batch, samples, outputs, failures)
                scoring.make_maps_of(reading)
        except Exception as error:  # whatever it was: the other images go on
            if len(loaded) > 1:
                for alone in loaded:
                    self.images([alone.image])
            else:
                self._fail(loaded[0].image, f"{type(error).__name__}: {error}")
            return
        for sample, known in zip(samples, loaded, strict=True):
            sample.label = known.image.label
        scoring.run()

    def _fail(self, image: BenchImage, reason: str) -> None:
        cells = [self.cells.empty(image, *parts) for parts in self.cells.missing(image)]
        for cell in cells:
            cell["failures"] = [("", reason)]
        self.deliver(cells)


class _Task(NamedTuple):
    """A method, the protocols that score its maps, and the kind of target."""

    method: Measured
    protocols: tuple[Metrics, ...]
    target_kind: str


@dataclass
class _BatchScoring:
    """One batch: its images, what the model says about them, and what has been delivered of it."""

    all_: Scoring
    loaded: list[LoadedImage]
    batch: Batch
    samples: list[Sample]
    outputs: Tensor
    failures: list[Failure]
    known: dict[tuple[str, str, str], Cell] = field(default_factory=dict)  # image, method, protocol -> a cell
    pictures: dict[str, PicturePlace | None] = field(default_factory=dict)
    delivered: set[str] = field(default_factory=set)
    ahead: dict[tuple[str, str], tuple[list[int], Made]] = field(default_factory=dict)  # target kind, method

    def make_maps_of(self, methods: Sequence[Method]) -> None:
        """Makes the maps of these methods that will be scored, for all kinds of target."""
        there: set[tuple[str, int, tuple[int, ...]]] = set()  # the same class of another kind is not made twice
        for target_kind in self.all_.subjects.target_kinds:
            chosen = self._classes(target_kind)
            for method in methods:
                keys = [(str(method), row, tuple(classes)) for row, classes in enumerate(chosen)]
                images = [known.image for known in self.loaded]
                wanted = [bool(self.all_.cells.missing_protocols(image, method, target_kind)) for image in images]
                rows = [row for row, key in enumerate(keys) if wanted[row] and key not in there]
                there |= {keys[row] for row in rows}
                made = self._source(method).try_to_make(*self._part(rows, chosen)) if rows else None
                if made is not None:
                    self.ahead[target_kind, str(method)] = rows, made

    def _source(self, method: Method) -> MethodSource:
        return MethodSource(self.all_.model, method, self.all_.seed, Exception)

    def _part(self, rows: Sequence[int], chosen: list[list[int]]) -> tuple[Batch, Tensor, list[list[int]]]:
        part = Batch(self.batch.inputs[rows], [self.batch.subjects[row] for row in rows])
        return part, self.outputs[rows], [chosen[row] for row in rows]

    def run(self) -> None:
        """All cells of the batch that are missing."""
        for target_kind in self.all_.subjects.target_kinds:
            chosen = self._classes(target_kind)
            for method in self.all_.methods:
                own = self._own_classes(method, chosen)
                groups: dict[tuple[Metrics, ...], list[int]] = defaultdict(list)
                for row, known in enumerate(self.loaded):
                    missing = self.all_.cells.missing_protocols(known.image, method, target_kind)
                    missing = self._copy(row, str(method), missing, target_kind, own[row])
                    if missing:
                        groups[missing].append(row)
                for protocols, rows in groups.items():
                    self._score(_Task(method, protocols, target_kind), rows, own)

    def _classes(self, target_kind: str) -> list[list[int]]:
        if target_kind == GRID:
            return [list(known.cells or ()) for known in self.loaded]
        if target_kind == "label":
            return [[cast("int", known.image.label)] for known in self.loaded]
        return resolve_targets(target_kind, self.all_.model, self.outputs, None)

    def _own_classes(self, method: Measured, chosen: list[list[int]]) -> list[list[int]]:
        """The classes of each image: those of its saved maps, where they say so."""
        if isinstance(method, Method):
            return chosen
        images = [known.image for known in self.loaded]
        return [
            (method.classes(image) if image.id in method.maps else None) or classes
            for image, classes in zip(images, chosen, strict=True)
        ]

    def _copy(
        self, row: int, method: str, missing: tuple[Metrics, ...], target_kind: str, classes: list[int]
    ) -> tuple[Metrics, ...]:
        """Takes over cells of the same class under another kind of target; returns what is left to do."""
        image, left = self.loaded[row].image, []
        for protocol in missing:
            known = self.known.get((image.id, method, protocol.name))
            if known is None or [found["target"] for found in known["found"]] != classes:
                left.append(protocol)
                continue
            key = self.all_.cells.key(image, method, protocol.name, target_kind)
            self.all_.deliver([{**known, "key": key, "asked": target_kind}])
        return tuple(left)

    def _score(self, task: _Task, rows: list[int], chosen: list[list[int]]) -> None:
        cells: dict[tuple[int, str], Cell] = {}
        failures: list[Failure] = []
        places = {self.samples[row].name: row for row in rows}
        source = self._source(task.method) if isinstance(task.method, Method) else task.method
        made_rows, made = self.ahead.get((task.target_kind, str(task.method)), ([], None))
        if isinstance(source, MethodSource) and made is not None and set(rows) <= set(made_rows):
            source.ahead = made.of(made_rows.index(row) for row in rows)
        part, outputs, classes = self._part(rows, chosen)
        cases = source.cases(part, [self.samples[row] for row in rows], outputs, classes, failures)
        open_row: int | None = None
        for case in prepared(cases, task.protocols):
            row = places[case.sample.name]
            if open_row is not None and open_row != row:  # all classes of the image before are done
                self._finish(open_row, task, cells, failures)
            open_row = row
            self._add(case, row, task, cells)
        if not cells and len(rows) > 1 and len(failures) >= len(rows):  # one of them may be to blame
            for row in rows:
                self._score(task, [row], chosen)
            return
        for row in rows:
            self._finish(row, task, cells, failures)

    def _add(self, case: Case, row: int, task: _Task, cells: dict[tuple[int, str], Cell]) -> None:
        """Scores one map by all protocols of the task."""
        image = self.loaded[row].image
        kept = self._keep(case, image)
        with suppress(Exception):  # the protocol to blame will meet it again, and it alone
            prepare(case, task.protocols)
        score = float(case.scores(case.sample.clean[None])[0])
        for protocol in task.protocols:
            found = Scores()
            score_case(case, [protocol], found, Exception)
            if (row, protocol.name) not in cells:
                cells[row, protocol.name] = self._line(case, image, protocol, task.target_kind)
            cell = cells[row, protocol.name]
            entry: Found = {
                "target": case.target,
                "score": round(score, 6),
                "rows": [(r.metric, r.reference, r.value) for r in found.rows],
                "curves": [_thinned(curve) for curve in found.curve_rows],
            }
            if kept:
                entry["map"] = kept
            cell["found"].append(entry)
            cell["failures"] += [(failure.metric, failure.reason) for failure in found.failures]

    def _line(self, case: Case, image: BenchImage, protocol: Metrics, target_kind: str) -> Cell:
        cell = self.all_.cells.empty(image, case.method, protocol.name, target_kind)
        cell["seconds"] = _rounded(case.seconds, 6)
        cell["forward"], cell["backward"] = case.forward_images, case.backward_images
        if image.id in self.pictures:
            cell["picture"] = self.pictures[image.id]
        return cell

    def _keep(self, case: Case, image: BenchImage) -> MapPlace | None:
        precision = self.all_.maps
        if precision == "none" or (precision == "few" and image.id not in self.all_.shown):
            return None
        if image.id not in self.pictures:
            pixels = case.sample.pixels.clamp(0, 1).float().cpu()
            picture = to_pil_image(pixels if len(pixels) in (1, 3) else pixels.mean(dim=0, keepdim=True))
            self.pictures[image.id] = self.all_.sink.keep_picture(picture.convert("RGB"))
        return self.all_.sink.keep_map(
            case.values.detach().cpu().float().numpy(), "float16" if precision == "few" else precision
        )

    def _finish(self, row: int, task: _Task, cells: dict[tuple[int, str], Cell], failures: list[Failure]) -> None:
        """Delivers the cells of one image; a map that could not be made is a cell with a reason."""
        image = self.loaded[row].image
        reasons = [(f.metric, f.reason) for f in (*self.failures, *failures) if f.image == image.id]
        done = []
        for protocol in task.protocols:
            cell = cells.pop((row, protocol.name), None)
            if cell is None:
                cell = self.all_.cells.empty(image, str(task.method), protocol.name, task.target_kind)
                if cell["key"] in self.delivered:
                    continue
            cell["failures"] = [*reasons, *cell["failures"]]
            done.append(cell)
            self.delivered.add(cell["key"])
            self.known[image.id, str(task.method), protocol.name] = cell
        if done:
            self.all_.deliver(done)


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _thinned(curve: CurveRow) -> Curve:
    """Kind, reference, shares of pixels and scores, at as many points as a figure needs."""
    count = len(curve.fractions)
    places = np.unique(np.linspace(0, count - 1, min(count, _CURVE_POINTS)).round().astype(int)).tolist()
    return (
        curve.kind,
        curve.reference,
        [round(curve.fractions[i], 5) for i in places],
        [round(curve.scores[i], 5) for i in places],
    )

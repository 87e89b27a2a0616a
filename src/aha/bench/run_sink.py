"""Results of an evaluation as cells of a run folder: what it lacks, and what each image's maps were found to be worth.

Whatever fails becomes a cell with a reason: an image that cannot be read, a method without a map, a metric without a
value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from PIL import Image
from torchvision.transforms.functional import to_pil_image

from aha.bench.plan import KeepMaps
from aha.bench.records import Cell, Curve, Found, MapPlace, PicturePlace
from aha.bench.store import RunStore
from aha.bench.work_units import Cells
from aha.data.batches import viewed
from aha.data.images import LabelledImage
from aha.evaluation.map_sources import MapSource
from aha.evaluation.sinks import Task
from aha.metrics import Case, Sample
from aha.metrics.protocols import Protocol as Metrics
from aha.results.score_table import CurveRow, Failure, Scores

_CURVE_POINTS = 57  # of 225; what a figure shows of a curve


@dataclass
class RunSink:
    """Takes what is found of the images of a batch.

    Attributes:
        cells: what the folder lacks.
        writer: takes maps and pictures.
        deliver: takes finished cells.
        maps: which maps are kept.
        shown: the images of which maps are kept where a plan asks for a few.
        images: those of the present batch, by name.
    """

    cells: Cells
    writer: RunStore
    deliver: Callable[[list[Cell]], None]
    maps: KeepMaps
    shown: set[str]
    images: dict[str, LabelledImage] = field(default_factory=dict)
    _failures: list[Failure] = field(default_factory=list)
    _open: dict[tuple[str, str], Cell] = field(default_factory=dict)  # image, protocol -> what is found so far
    _known: dict[tuple[str, str, str], Cell] = field(default_factory=dict)  # image, method, protocol -> a cell
    _pictures: dict[str, PicturePlace | None] = field(default_factory=dict)

    def begin(self, failures: Sequence[Failure]) -> None:
        """Forgets the batch before."""
        self._failures = list(failures)
        self._open, self._known, self._pictures = {}, {}, {}

    def fail(self, image: LabelledImage, reason: str) -> None:
        """Delivers all cells of an image that are missing, with the reason why nothing is in them."""
        cells = [self.cells.empty(image, *parts) for parts in self.cells.missing(image)]
        for cell in cells:
            cell["failures"] = [("", reason)]
        self.deliver(cells)

    def missing(self, image: str, source: MapSource, target_kind: str, classes: Sequence[int]) -> tuple[Metrics, ...]:
        """What the folder lacks; cells of the same class under another kind of target are taken over."""
        subject, left = self.images[image], []
        for protocol in self.cells.missing_protocols(subject, str(source), target_kind):
            known = self._known.get((image, str(source), protocol.name))
            if known is None or [found["target"] for found in known["found"]] != list(classes):
                left.append(protocol)
                continue
            key = self.cells.key(subject, str(source), protocol.name, target_kind)
            self.deliver([{**known, "key": key, "asked": target_kind}])
        return tuple(left)

    def add(self, case: Case, target_kind: str, found: Sequence[tuple[Metrics, Scores]]) -> None:
        """Notes what the protocols found of a map, and keeps the map where the plan asks for that."""
        image = self.images[case.sample.name]
        kept = self._keep(case, image)
        score = float(case.scores(case.sample.clean[None])[0])
        for protocol, own in found:
            if (image.id, protocol.name) not in self._open:
                self._open[image.id, protocol.name] = self._line(case, image, protocol, target_kind)
            cell = self._open[image.id, protocol.name]
            entry: Found = {
                "target": case.target,
                "score": round(score, 6),
                "rows": [(r.metric, r.reference, r.value) for r in own.rows],
                "curves": [_thinned(curve) for curve in own.curve_rows],
            }
            if kept:
                entry["map"] = kept
            cell["found"].append(entry)
            cell["failures"] += [(failure.metric, failure.reason) for failure in own.failures]

    def finish(self, image: str, task: Task, failures: Sequence[Failure]) -> None:
        """Delivers the cells of an image; a map that could not be made is a cell with a reason."""
        reasons = [(f.metric, f.reason) for f in (*self._failures, *failures) if f.image == image]
        done = []
        source = str(task.source)
        for protocol in task.protocols:
            cell = self._open.pop((image, protocol.name), None)
            if cell is None:
                cell = self.cells.empty(self.images[image], source, protocol.name, task.target_kind)
            cell["failures"] = [*reasons, *cell["failures"]]
            done.append(cell)
            self._known[image, source, protocol.name] = cell
        self.deliver(done)

    def _line(self, case: Case, image: LabelledImage, protocol: Metrics, target_kind: str) -> Cell:
        cell = self.cells.empty(image, case.method, protocol.name, target_kind)
        cell["seconds"] = None if case.seconds is None else round(case.seconds, 6)
        cell["forward"], cell["backward"] = case.forward_images, case.backward_images
        if image.id in self._pictures:
            cell["picture"] = self._pictures[image.id]
        return cell

    def _keep(self, case: Case, image: LabelledImage) -> MapPlace | None:
        if self.maps == "none" or (self.maps == "few" and image.id not in self.shown):
            return None
        if case.values.dim() > 2:  # a report draws images; `aha explain` saves maps of volumes
            return None
        if image.id not in self._pictures:
            self._pictures[image.id] = self.writer.keep_picture(_picture(case.sample))
        return self.writer.keep_map(
            case.values.detach().cpu().float().numpy(), "float16" if self.maps == "few" else self.maps
        )


def _picture(sample: Sample) -> Image.Image:
    pixels, stated = sample.pixels.float().cpu(), sample.model.preprocessing
    if stated is not None and stated.is_measured:
        return viewed(sample.model, sample.name, pixels).image
    picture: Image.Image = to_pil_image(pixels.clamp(0, 1))
    return picture.convert("RGB")


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

"""The loop of every evaluation: a batch is read once, explained once per method, and scored by all protocols at once.

`aha.evaluate`, cards and benchmarks run it; they differ in where maps come from and results go. What a `Sink` has
already is not computed. If no image of a batch has a map of a source, each is tried alone, since one of them may be to
blame.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, product

from torch import Tensor

from aha.core.progress import in_parts
from aha.data.batches import Batch
from aha.errors import AhaError
from aha.evaluation.ground_truth import GroundTruth, labelled_samples
from aha.evaluation.map_sources import MapSource, MethodMaps, clean_pass
from aha.evaluation.scoring import prepare, prepared, score_case
from aha.evaluation.sinks import Sink, Task
from aha.metrics import Case, Sample
from aha.metrics.protocols import Protocol
from aha.models import TargetModel
from aha.results.score_table import Failure

Classes = dict[str, list[list[int]]]
"""Kind of target -> the classes of each image of a batch."""
Choose = Callable[[Batch, Tensor], Classes]
"""A batch and the model's outputs for it (B, K) -> what is explained of its images."""


@dataclass(frozen=True)
class Loop:
    """What is scored, by what, and where it goes.

    Attributes:
        faults: errors that are recorded as failures; others are the caller's.
    """

    model: TargetModel
    sources: Sequence[MapSource]
    protocols: Sequence[Protocol]
    sink: Sink
    faults: type[Exception] = AhaError

    def open(self, batch: Batch, truth: GroundTruth, choose: Choose) -> OpenBatch:
        """Runs the images through the model once, and makes the maps that are made from that pass."""
        failures: list[Failure] = []
        for source in self.sources:
            if isinstance(source, MethodMaps):
                source.ahead.clear()  # of the batch before
        with clean_pass(self.model, batch.inputs, self.sources, self.protocols) as reading:
            samples, outputs = labelled_samples(self.model, batch, truth, failures)
            opened = OpenBatch(self, batch, samples, outputs, choose(batch, outputs))
            self.sink.begin(failures)
            opened.make_ahead(reading)
        return opened


@dataclass(frozen=True)
class OpenBatch:
    """A batch, what the model says of it (B, K), and the classes of each image by kind of target."""

    loop: Loop
    batch: Batch
    samples: list[Sample]
    outputs: Tensor
    chosen: Classes

    def make_ahead(self, reading: Sequence[MethodMaps]) -> None:
        """Makes the maps of these methods that will be scored; what fails will fail again, and then be recorded."""
        for (kind, chosen), source in product(self.chosen.items(), reading):
            if rows := [row for group in self._groups(source, kind, chosen).values() for row in group]:
                with suppress(source.faults):
                    source.make(self.batch.part(rows), self.outputs[rows], [chosen[row] for row in rows])

    def score(self) -> None:
        """All that the sink has not."""
        for (kind, chosen), source in in_parts(list(product(self.chosen.items(), self.loop.sources))):
            own = [source.classes(sample.name) or classes for sample, classes in zip(self.samples, chosen, strict=True)]
            for protocols, rows in self._groups(source, kind, own).items():
                self._score(Task(source, protocols, kind), rows, own)

    def _groups(self, source: MapSource, kind: str, chosen: list[list[int]]) -> dict[tuple[Protocol, ...], list[int]]:
        """Protocols that are still to score the source's maps -> rows of images."""
        groups: dict[tuple[Protocol, ...], list[int]] = defaultdict(list)
        for row, sample in enumerate(self.samples):
            if protocols := self.loop.sink.missing(sample.name, source, kind, chosen[row]):
                groups[protocols].append(row)
        return groups

    def _score(self, task: Task, rows: list[int], chosen: list[list[int]]) -> None:
        failures: list[Failure] = []
        samples, classes = [self.samples[row] for row in rows], [chosen[row] for row in rows]
        cases = task.source.cases(self.batch.part(rows), samples, self.outputs[rows], classes, failures)
        every = _in_equal_parts(iter(prepared(cases, task.protocols)), sum(map(len, classes)))
        left = dict.fromkeys(sample.name for sample in samples)
        is_scored = False
        for image, own in groupby(every, key=lambda case: case.sample.name):
            for case in own:
                self._score_case(case, task)
            self._finish(image, task, failures)
            left.pop(image, None)
            is_scored = True
        if not is_scored and len(rows) > 1 and len(failures) >= len(rows):
            for row in rows:
                self._score(task, [row], chosen)
            return
        for image in left:
            self._finish(image, task, failures)

    def _score_case(self, case: Case, task: Task) -> None:
        with suppress(self.loop.faults):  # the protocol to blame will meet it again, and it alone
            prepare([case], [chosen for protocol in task.protocols for chosen in protocol.metrics])
        found = [(protocol, score_case(case, protocol, self.loop.faults)) for protocol in task.protocols]
        self.loop.sink.add(case, task.target_kind, found)

    def _finish(self, image: str, task: Task, failures: list[Failure]) -> None:
        own = [failure for failure in failures if failure.image == image]
        failures[:] = [failure for failure in failures if failure.image != image]
        self.loop.sink.finish(image, task, own)


def _in_equal_parts(cases: Iterator[Case], most: int) -> Iterator[Case]:
    """Cases, of which there are at most so many, each an equal part of the work at hand."""
    for _ in in_parts(range(most)):
        case = next(cases, None)
        if case is None:
            return
        yield case

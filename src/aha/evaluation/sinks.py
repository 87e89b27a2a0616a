"""Where the results of an evaluation go: into memory, or wherever else a class with these methods takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from aha.evaluation.map_sources import MapSource
from aha.metrics import Case
from aha.metrics.protocols import Protocol as Metrics
from aha.results.score_table import Failure, Scores


class Task(NamedTuple):
    """A source of maps, the protocols that score them, and the kind of target."""

    source: MapSource
    protocols: tuple[Metrics, ...]
    target_kind: str


class Sink(Protocol):
    """Says what is still to be scored of an image, and takes what was found."""

    def begin(self, failures: Sequence[Failure]) -> None:
        """A batch begins; what is wrong with its images, whichever the method."""

    def missing(self, image: str, source: MapSource, target_kind: str, classes: Sequence[int]) -> tuple[Metrics, ...]:
        """The protocols that are still to score the source's maps of these classes of an image."""

    def add(self, case: Case, target_kind: str, found: Sequence[tuple[Metrics, Scores]]) -> None:
        """Takes what each protocol found of one map."""

    def finish(self, image: str, task: Task, failures: Sequence[Failure]) -> None:
        """An image has been scored, as far as there are maps of it; why some are missing."""


@dataclass
class MemorySink:
    """Everything, into `Scores`."""

    scores: Scores

    def begin(self, failures: Sequence[Failure]) -> None:
        """Keeps the failures."""
        self.scores.failures += failures

    def missing(self, image: str, source: MapSource, target_kind: str, classes: Sequence[int]) -> tuple[Metrics, ...]:
        """All of them."""
        return tuple(self.scores.protocols)

    def add(self, case: Case, target_kind: str, found: Sequence[tuple[Metrics, Scores]]) -> None:
        """Keeps the rows; a reason that all protocols give is kept once."""
        for _, own in found:
            self.scores.rows += own.rows
            self.scores.curve_rows += own.curve_rows
        self.scores.failures += dict.fromkeys(failure for _, own in found for failure in own.failures)

    def finish(self, image: str, task: Task, failures: Sequence[Failure]) -> None:
        """Keeps the failures."""
        self.scores.failures += failures

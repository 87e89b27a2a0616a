"""What a metric is: a frozen value that turns one case, an image with its map, into named numbers.

One number per image; means, intervals and dataset-wide figures are made once, in `aha.results.score_table`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from aha.core.registry import Registry
from aha.core.spec import Spec, parse
from aha.errors import MetricError
from aha.metrics.case import Case, Perturbation
from aha.perturb.references import REFERENCES

METRICS: Registry[type[Metric]] = Registry("metric")

M = TypeVar("M", bound="type[Metric]")
Direction = Literal["higher", "lower", "neither"]
ARROWS = {"higher": "↑", "lower": "↓", "neither": ""}


class Value(NamedTuple):
    """One number of one case; `reference` is empty where none is involved."""

    column: str
    value: float
    reference: str = ""


class Pooled(NamedTuple):
    """One number of all images, and how many values it was made of."""

    value: float
    n: int


@dataclass(frozen=True)
class Metric(Spec):
    """Base of all metrics. Subclasses are frozen dataclasses whose fields are the choices of the protocol.

    Attributes:
        columns: the names of its numbers, each with the better direction.
        bounds: the range of the numbers.
        needs: what a case must have: "mask", "boxes", "grid" (a mosaic's cells), "method" (maps cannot be recomputed
            for maps that came from a file).
        looks_at: what it takes into account where a case has it, beside what it needs.
        citation: where the metric comes from.
        for_volumes: it measures maps of volumes (D, H, W) too.
    """

    columns: ClassVar[Mapping[str, Direction]] = {}
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    needs: ClassVar[frozenset[str]] = frozenset()
    looks_at: ClassVar[frozenset[str]] = frozenset()
    citation: ClassVar[str] = ""
    for_volumes: ClassVar[bool] = True

    def check_volume(self, case: Case) -> None:
        """Refuses the map of a volume, where it measures those of images alone."""
        if case.values.dim() > 2 and not self.for_volumes:
            raise MetricError(f"{self.name} measures maps of images, not of volumes or clips")

    @abstractmethod
    def __call__(self, case: Case) -> list[Value]:
        """The numbers of one case."""

    def perturbations(self, case: Case) -> Iterable[Perturbation]:
        """The perturbed images whose outputs the metric will read; asked of the model together with all others'."""
        return ()

    def questions(self) -> dict[Hashable, int]:
        """About how many images it will ask the model about for one map, by what decides them.

        Metrics with an entry in common share its images.
        """
        return {}

    def over_dataset(self, values: Mapping[str, Sequence[float]]) -> dict[str, Pooled]:
        """Figures that are no mean of per-image numbers, from each column's values over all images."""
        return {}


def metric(
    name: str,
    *,
    columns: Mapping[str, Direction],
    bounds: tuple[float, float] = (0.0, 1.0),
    needs: Iterable[str] = (),
    looks_at: Iterable[str] = (),
    citation: str = "",
) -> Callable[[M], M]:
    """Class decorator that registers a metric; the name is also its file."""

    def add(cls: M) -> M:
        cls.name, cls.columns, cls.bounds = name, dict(columns), bounds
        cls.needs, cls.looks_at, cls.citation = frozenset(needs), frozenset(looks_at), citation
        METRICS.register(name)(cls)
        return cls

    return add


def load_metric(spec: str | Metric) -> Metric:
    """A metric from its text, for example `deletion(steps=32, references=(black,))`; a metric passes through."""
    return spec if isinstance(spec, Metric) else parse(spec, METRICS, REFERENCES)


def side_columns() -> set[str]:
    """Columns that only stand beside the ones that score: counts for dataset-wide figures, context."""
    found: set[str] = set()
    for name in METRICS:
        columns = METRICS[name].columns
        if set(columns.values()) != {"neither"}:
            found |= {column for column, direction in columns.items() if direction == "neither"}
    return found


def directions() -> dict[str, Direction]:
    """The better direction of every column of every registered metric, and of those that tables derive from them."""
    found: dict[str, Any] = {"headroom": "higher", "headroom_worst_tenth": "higher"}
    for name in METRICS:
        found |= METRICS[name].columns
    return found

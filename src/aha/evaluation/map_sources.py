"""Where maps come from: a method, or maps that are in memory; `saved_maps.py` has those that are on the disk."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from aha.data.batches import Batch
from aha.errors import AhaError, MetricError
from aha.evaluation.ground_truth import copied
from aha.evaluation.scoring import reason_of
from aha.explaining import explanations, maps_of
from aha.methods import Method
from aha.methods.base import read_by
from aha.metrics import Case, Sample
from aha.metrics.protocols import Protocol as Metrics
from aha.models import NOTHING, TargetModel
from aha.models.loading.preprocessing import Geometry
from aha.models.running.memory import PeakMemory
from aha.results.saved_maps import usable_map
from aha.results.score_table import Failure


class MapSource(Protocol):
    """Whose maps are scored; its text is the method's name in the results."""

    def classes(self, image: str) -> list[int] | None:
        """The classes of the image's maps, where these say so themselves."""

    def cases(
        self, batch: Batch, samples: list[Sample], outputs: Tensor, chosen: list[list[int]], failures: list[Failure]
    ) -> Iterator[Case]:
        """A case for each image of a batch and each of its chosen classes, in that order.

        Args:
            outputs: what the model says of the images (B, K).
            chosen: the classes of each image.
            failures: takes what has no case, and why.
        """


class Made(NamedTuple):
    """The maps (n, H, W) of an image, and what one of them took as if the method had been alone."""

    maps: Tensor
    seconds: float
    forward_images: float
    backward_images: float
    peak_bytes: float | None


@dataclass
class MethodMaps:
    """Maps computed by a method.

    Attributes:
        model: the explained model.
        method: whose maps they are.
        seed: of the method and of what metrics draw.
        faults: errors that are recorded as failures; others are the caller's.
        ahead: maps of the present batch that are there already, by image and classes.
    """

    model: TargetModel
    method: Method
    seed: int
    faults: type[Exception] = AhaError
    ahead: dict[tuple[int, tuple[int, ...]], Made] = field(default_factory=dict)

    def __str__(self) -> str:
        return str(self.method)

    def classes(self, image: str) -> None:
        """Those that are asked for."""

    def cases(
        self, batch: Batch, samples: list[Sample], outputs: Tensor, chosen: list[list[int]], failures: list[Failure]
    ) -> Iterator[Case]:
        """Of the maps that are there, and of those that are made now."""
        try:
            self.make(batch, outputs, chosen)
        except self.faults as error:
            failures += [Failure(sample.name, str(self), "", reason_of(error)) for sample in samples]
            return
        for subject, sample, classes in zip(batch.subjects, samples, chosen, strict=True):
            made = self.ahead.pop((id(subject), tuple(classes)))
            for target, values in zip(classes, made.maps, strict=True):
                case = _case(sample, target, values, str(self), self.seed, failures)
                if case is not None:
                    case.explain, case.seconds = partial(self._again, classes, self.seed), made.seconds
                    case.reseeded = partial(partial, self._again, classes)
                    case.forward_images, case.backward_images = made.forward_images, made.backward_images
                    case.peak_bytes = made.peak_bytes
                    yield case

    def make(self, batch: Batch, outputs: Tensor, chosen: list[list[int]]) -> None:
        """Makes the maps of a batch for the classes of each image, but for those that are there; measured."""
        keys = [(id(subject), tuple(classes)) for subject, classes in zip(batch.subjects, chosen, strict=True)]
        rows = [row for row, key in enumerate(keys) if key not in self.ahead]
        if not rows:
            return
        before, hits_before = self.model.passes.copy(), self.model.cache_hits.copy()
        start = time.perf_counter()
        peak = PeakMemory(self.model.device)
        # The classes are resolved already, in the order of the batch.
        plain = replace(batch.part(rows), positions=None, outputs=outputs[rows])
        with peak:
            classes = [chosen[row] for row in rows]
            (found,) = explanations(self.model, plain, self.method, classes, seed=self.seed)
        count = len(found)
        asked, cache_hits = self.model.passes - before, self.model.cache_hits - hits_before
        # A pass that was kept from elsewhere counts as if the method had been alone.
        seconds = (time.perf_counter() - start + cache_hits["nanoseconds"] / 1e9) / count
        forward, backward = ((asked[kind] + cache_hits[kind]) / count for kind in ("forward", "backward"))
        peak_bytes = None if peak.bytes is None else peak.bytes / count
        for row, maps in zip(rows, torch.split(found.maps, [len(chosen[row]) for row in rows]), strict=True):
            self.ahead[keys[row]] = Made(maps, seconds, forward, backward, peak_bytes)

    def _again(self, together: list[int], seed: int, model: TargetModel, inputs: Tensor, classes: Tensor) -> Tensor:
        return maps_of(model, self.method.seeded(seed).among(together), inputs, classes)


@contextmanager
def clean_pass(
    model: TargetModel, inputs: Tensor, sources: Iterable[MapSource], protocols: Iterable[Metrics]
) -> Iterator[list[MethodMaps]]:
    """Inside the block the images are run once for all methods that read their pass; gives those methods.

    Their maps are made at once and scored afterwards, so that the pass is not kept in memory meanwhile. Where a
    protocol measures costs there are none: then every method is run alone.
    """
    reading = []
    if not any(chosen.name == "cost" for protocol in protocols for chosen in protocol.metrics):
        for source in sources:
            with suppress(AhaError):  # the method will say so itself
                if isinstance(source, MethodMaps) and source.method.reads(model, inputs.shape[1:]) != NOTHING:
                    reading.append(source)
    with model.caching(inputs, read_by([source.method for source in reading], model, inputs.shape[1:])):
        yield reading


@dataclass
class GivenMaps:
    """Maps in memory, one per image and class.

    Attributes:
        name: of the method, in the results.
        maps: (H, W) each, at the size of the model input or of the original image.
        seed: of what metrics draw.
        counts: how many each image has; None where all have equally many.
        of_classes: the class of each map, where it is known.
    """

    name: str
    maps: Sequence[Any]
    seed: int
    counts: Sequence[int] | None
    of_classes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        self._starts = [0, *accumulate(self.counts or ())]

    def __str__(self) -> str:
        return self.name

    def classes(self, image: str) -> None:
        """Those that are asked for: maps of others are refused."""

    def cases(
        self, batch: Batch, samples: list[Sample], outputs: Tensor, chosen: list[list[int]], failures: list[Failure]
    ) -> Iterator[Case]:
        """Of the maps at the places of the batch's images."""
        for position, subject, sample, targets in zip(
            batch.positions or (), batch.subjects, samples, chosen, strict=True
        ):
            # By the image's position: maps of images that cannot be read have their places too.
            first = position * len(targets) if self.counts is None else self._starts[position]
            for place, target in enumerate(targets, start=first):
                if place >= len(self.maps):
                    raise MetricError(f"{self.name}: {len(self.maps)} maps are too few; {sample.name} has none")
                if self.of_classes is not None and self.of_classes[place] != target:
                    raise MetricError(
                        f"{self.name}: the map of {sample.name} is of class {self.of_classes[place]}, not of {target}; "
                        f"pass the classes of the maps as target="
                    )
                try:
                    given = usable_map(_as_array(self.maps[place]), f"{sample.name}: the map of {self.name}")
                except MetricError as error:
                    failures.append(Failure(sample.name, self.name, "", str(error)))
                    continue
                values = torch.from_numpy(given)
                case = fitted_case(sample, target, values, subject.geometry, self.name, self.seed, failures)
                if case is not None:
                    yield case

    def check_count(self, images: int, chosen: list[list[int]]) -> None:
        """Refuses maps that are not as many as images and classes: which belong together cannot be known then."""
        if not chosen:
            return
        wanted = images * len(chosen[0]) if self.counts is None else sum(self.counts)
        if len(self.maps) != wanted:
            raise MetricError(
                f"{self.name}: {len(self.maps)} maps, but {images} images have {wanted} classes together; "
                f"give one per image and class, also for images that cannot be read"
            )


def _case(sample: Sample, target: int, values: Tensor, method: str, seed: int, failures: list[Failure]) -> Case | None:
    try:
        return Case(sample, target, values.to(sample.model.device), method, seed=seed)
    except MetricError as error:
        failures.append(Failure(sample.name, method, "", str(error)))
        return None


def fitted_case(
    sample: Sample,
    target: int,
    values: Tensor,
    geometry: Geometry,
    method: str,
    seed: int,
    failures: list[Failure],
) -> Case | None:
    """A case of a map from elsewhere; one in the original image's pixels is brought to those of the model input.

    What the model does not see of the image may be unknown there, and nothing else.
    """
    if tuple(values.shape) == geometry.original != geometry.model:
        values = geometry.to_model(torch.where(geometry.seen(), values, values.nan_to_num(nan=0.0)))
    return _case(sample, target, values, method, seed, failures)


def _as_array(values: Any) -> NDArray[Any]:
    """A map as NumPy has it, which knows no bfloat16."""
    found = copied(values)
    return (found.float() if found.is_floating_point() else found).numpy()

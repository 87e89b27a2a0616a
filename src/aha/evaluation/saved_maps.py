"""Maps that were saved earlier, scored like those of methods: each image has its own, and perhaps their classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from aha.core.disk import result_key
from aha.data.batches import Batch
from aha.data.datasets import content_digest
from aha.data.images import LabelledImage
from aha.errors import MetricError
from aha.evaluation.ground_truth import copied
from aha.evaluation.map_sources import fitted_case
from aha.metrics import Case, Sample
from aha.models import TargetModel
from aha.results.saved_maps import SavedMap, find_maps
from aha.results.score_table import Failure


@dataclass(frozen=True)
class SavedMaps:
    """The saved maps of one method.

    Attributes:
        name: the method's, or that of the folder.
        maps: name of an image -> its maps.
        seed: of whatever a metric draws.
    """

    name: str
    maps: Mapping[str, Sequence[SavedMap]]
    seed: int

    def __str__(self) -> str:
        return self.name

    def fingerprint(self, model: TargetModel) -> str:
        """What all of them have in common."""
        return "saved maps"

    def digest(self, image: LabelledImage) -> str:
        """What the image's own maps are."""
        own = self.maps[image.id]
        return result_key(*((saved.target, content_digest(lambda path=saved.path: path)) for saved in own))  # type: ignore[misc]

    def classes(self, image: str) -> list[int] | None:
        """The explained classes, where the maps say so."""
        known = [saved.target for saved in self.maps.get(image, ()) if saved.target is not None]
        return known or None

    def cases(
        self, batch: Batch, samples: list[Sample], outputs: Tensor, chosen: list[list[int]], failures: list[Failure]
    ) -> Iterator[Case]:
        """Of the maps that are read now."""
        for subject, sample, targets in zip(batch.subjects, samples, chosen, strict=True):
            own = self.maps[sample.name]
            if len(own) != len(targets):
                failures.append(
                    Failure(
                        sample.name, self.name, "", f"{len(own)} maps for the {len(targets)} classes of {sample.name}"
                    )
                )
                continue
            for saved, target in zip(own, targets, strict=True):
                try:
                    values = copied(saved.read())
                except MetricError as error:
                    failures.append(Failure(sample.name, self.name, "", str(error)))
                    continue
                case = fitted_case(sample, target, values, subject.geometry, self.name, self.seed, failures)
                if case is not None:
                    yield case


def find_saved(folder: str, images: Sequence[LabelledImage], seed: int) -> list[SavedMaps]:
    """The maps of the images in a folder, by method."""
    names = {image.path: image.id for image in images if image.path is not None}
    by_method: dict[str, dict[str, list[SavedMap]]] = {}
    for saved in find_maps(Path(folder), list(names)):
        by_method.setdefault(saved.method, {}).setdefault(names[saved.image], []).append(saved)
    return [SavedMaps(method, maps, seed) for method, maps in by_method.items()]

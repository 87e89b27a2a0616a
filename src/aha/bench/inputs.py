"""The images of a plan, chosen and checked, or the mosaics that are made of them; and how they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, cast

import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from aha.bench.image_filter import mda_filter
from aha.bench.plan import Plan
from aha.bench.records import PlanEntry
from aha.core.disk import result_key
from aha.core.launch import parts_of
from aha.data.batches import Subject, as_input
from aha.data.datasets import choose, find_data
from aha.data.images import LabelledImage, read_image
from aha.data.labelled import Lazy
from aha.data.mosaics import Mosaic, build_mosaic, plan_mosaics
from aha.data.targets import resolve_targets
from aha.errors import MetricError, ModelError, SpecError, TargetError
from aha.evaluation.ground_truth import GroundTruth, check_ground_truth
from aha.evaluation.loop import Classes
from aha.metrics.protocols import Protocol
from aha.models import TargetModel
from aha.models.loading.preprocessing import Geometry

GRID = "grid"
"""The kind of target of mosaics: all classes in them."""
_MOSAIC_SIDE = 2
# Settings of a plan that decide which images a filter keeps.
_CHOOSES = ("data", "limit", "filter", "input_size", "fit", "score", "precision")


def check_photographs(model: TargetModel, what: str) -> None:
    """Refuses models of bands and of volumes."""
    if (stated := model.stated_preprocessing()).is_measured:
        raise ModelError(f"{model.spec} reads {stated.reads}, {what} photographs; use aha evaluate or aha bench")


class Inputs:
    """The images of one model's plan.

    Attributes:
        images: all images of the plan.
        kept: names of the images that a filter keeps; none without a filter.
        target_kinds: kinds of target, in the order in which they are done.
        count: number of images, or of the mosaics that are made of them.
    """

    def __init__(
        self,
        plan: Plan,
        model: TargetModel,
        protocols: Sequence[Protocol],
        earlier: Sequence[PlanEntry] = (),
    ) -> None:
        self._plan, self._model = plan, model
        self.kept: list[str] | None = None
        self.images = self._chosen(find_data(plan.data, model), earlier)
        self.are_mosaics = any("grid" in protocol.needs for protocol in protocols)
        self._has_masks = all(image.mask for image in self.images)
        self._has_boxes = any(image.boxes for image in self.images)
        self._check_truth(protocols)
        self.target_kinds = (GRID,) if self.are_mosaics else tuple(dict.fromkeys(sorted(plan.targets, key=_label_last)))
        self._check_targets()
        self._mosaics = self._planned_mosaics() if self.are_mosaics else []
        self.count = len(self._mosaics) if self.are_mosaics else len(self.images)

    def mosaics(self, share: tuple[int, int]) -> Iterator[LabelledImage]:
        """The mosaics of a process, made of the images as they are needed."""

        def picture(index: int) -> tuple[Image.Image, int]:
            image = self.images[index]
            assert image.label is not None
            return read_image(image.content()), image.label

        pictures = Lazy(len(self.images), picture)
        for index in parts_of(len(self._mosaics), share):
            sources = self._mosaics[index]
            names = "+".join(self.images[source].id for source in sources)
            # Asked for twice, for its digest and to be scored.
            read = cache(partial(build_mosaic, self._model, pictures, sources))
            yield LabelledImage(f"mosaic-{index:05d}-{result_key(names)[:8]}", given=read)

    def read(self, image: LabelledImage) -> tuple[Tensor, Subject]:
        """Reads an image, a volume or a mosaic and makes the model's input (C, H, W) or (C, D, H, W) of it."""
        content = image.content()
        if isinstance(content, Mosaic):
            inputs = content.inputs(self._model)
            geometry = Geometry.identity((inputs.shape[-2], inputs.shape[-1]))
            return inputs, Subject(image.id, content.image, geometry)
        return as_input(self._model, content, image.id)

    def truth(self, images: Sequence[LabelledImage]) -> GroundTruth:
        """Labels, masks, boxes and cells of images that have been read; masks are read when they are asked for."""
        labels = [image.label for image in images]
        if self.are_mosaics:
            return GroundTruth(cells=[image.content().cells for image in images], labels=labels)

        def mask(index: int) -> NDArray[Any]:
            return images[index].true_mask()

        return GroundTruth(
            Lazy(len(images), mask) if self._has_masks else None,
            [image.boxes for image in images] if self._has_boxes else None,
            labels=labels,
        )

    def classes(self, images: Sequence[LabelledImage], outputs: Tensor) -> Classes:
        """What is explained of images that have been read, by kind of target, given the model's outputs (B, K)."""
        found: Classes = {}
        for kind in self.target_kinds:
            if kind == GRID:
                found[kind] = [list(image.content().cells) for image in images]
            elif kind == "label":
                found[kind] = [[cast("int", image.label)] for image in images]
            else:
                found[kind] = resolve_targets(kind, self._model, outputs, None)
        return found

    def _chosen(self, images: list[LabelledImage], earlier: Sequence[PlanEntry]) -> list[LabelledImage]:
        """The plan's choice; what a filter kept when the run was begun is not computed again."""
        plan = self._plan
        if plan.filter == "none":
            return choose(images, plan.limit, plan.seed)
        wanted = {name: plan.as_dict().get(name) for name in _CHOOSES}
        for entry in earlier:
            same = (entry["model"], entry["digest"]) == (self._model.spec, self._model.digest)
            if same and entry.get("kept") and {name: entry["plan"].get(name) for name in _CHOOSES} == wanted:
                self.kept = entry["kept"]
        if self.kept is None:
            self.kept = mda_filter(self._model, images, plan.limit, plan.batch_size)
        if not self.kept:
            raise SpecError(f"the filter {plan.filter!r} keeps none of the images of {plan.data}")
        kept = set(self.kept)
        return [image for image in images if image.id in kept]

    def _planned_mosaics(self) -> list[tuple[int, ...]]:
        """By labels alone, so that all processes know how many there are, and one bad picture spoils one of them."""
        labels = [cast("int", image.label) for image in self.images]
        return plan_mosaics(labels, count=len(labels) // _MOSAIC_SIDE**2, n=_MOSAIC_SIDE, seed=self._plan.seed)

    def _check_truth(self, protocols: Sequence[Protocol]) -> None:
        if not self.are_mosaics:
            check_ground_truth(
                protocols, GroundTruth([()] if self._has_masks else None, [()] if self._has_boxes else None)
            )
            return
        if (stated := self._model.stated_preprocessing()).is_measured:
            raise ModelError(f"{self._model.spec} reads {stated.reads}; mosaics are made of photographs")
        if not all("grid" in protocol.needs for protocol in protocols):
            raise MetricError("grid protocols score mosaics made from the images; put them in a separate plan")
        if len(self.images) < _MOSAIC_SIDE**2 or any(image.label is None for image in self.images):
            raise MetricError(f"mosaics need at least {_MOSAIC_SIDE**2} images, all of them with labels")

    def _check_targets(self) -> None:
        for target_kind in self.target_kinds:
            if target_kind == "label" and any(image.label is None for image in self.images):
                raise TargetError(
                    f"target 'label' needs labels, which {self._plan.data} does not give for {self._model.spec}"
                )
            if target_kind not in ("label", GRID):
                resolve_targets(target_kind, self._model, torch.zeros(1, self._model.num_classes), None)


def _label_last(target_kind: str) -> bool:
    """The predicted class first: where it is the true one, the true one's cells are known already."""
    return target_kind == "label"

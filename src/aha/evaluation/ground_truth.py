"""What is known about the images: masks, boxes and mosaic cells, brought from the caller's pixels to the model's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aha.data.batches import Batch
from aha.data.mosaics import Cell
from aha.errors import MetricError
from aha.metrics import Sample
from aha.metrics.protocols import Protocol
from aha.models import TargetModel
from aha.models.loading.preprocessing import Geometry
from aha.results.score_table import Failure


@dataclass(frozen=True)
class GroundTruth:
    """What is known about the images, one entry each, in the caller's order."""

    masks: Sequence[Any] | None = None
    boxes: Sequence[Any] | None = None
    cells: Sequence[dict[int, Cell]] | None = None
    labels: Sequence[int | None] | None = None


def labelled_samples(
    model: TargetModel, batch: Batch, truth: GroundTruth, failures: list[Failure]
) -> tuple[list[Sample], Tensor]:
    """The batch's images with their truth at model resolution, and their outputs (B, K), asked for once."""
    inputs = batch.inputs.to(model.device)
    outputs = model.outputs(inputs)
    samples = []
    positions = batch.positions or range(len(inputs))
    for i, (position, subject) in enumerate(zip(positions, batch.subjects, strict=True)):
        mask = ignore = None
        try:
            mask, ignore = _mask(truth.masks, position, subject.geometry, subject.name)
        except MetricError as error:  # the metrics that need the mask will miss it; the others go on
            failures.append(Failure(subject.name, "", "", str(error)))
        sample = Sample(
            model,
            subject.name,
            inputs[i],
            label=truth.labels[position] if truth.labels else None if batch.labels is None else int(batch.labels[i]),
            mask=None if mask is None else mask.to(model.device),
            ignore=None if ignore is None else ignore.to(model.device),
            boxes=_boxes(truth.boxes, position, subject.geometry, subject.name),
            cells=None if truth.cells is None else truth.cells[position],
        )
        sample.know_clean(outputs[i])
        samples.append(sample)
    return samples, outputs


def _mask(
    masks: Sequence[Any] | None, index: int, geometry: Geometry, name: str
) -> tuple[Tensor | None, Tensor | None]:
    """Object and ignored pixels (H, W) at model resolution; the mask may be given there already."""
    if masks is None:
        return None, None
    if index >= len(masks):
        raise MetricError(f"{len(masks)} masks are too few; {name} has none")
    values = copied(masks[index])
    shape = tuple(values.shape[-2:])
    if shape not in (geometry.original, geometry.model) or values.dim() != 2:
        raise MetricError(f"{name}: the mask is {tuple(values.shape)}, the image {geometry.original}")
    kinds = torch.where(values == 255, 255, (values > 0).long())  # nothing, object or what does not count
    if shape != geometry.model:
        kinds = geometry.to_model(kinds)
    return kinds == 1, kinds == 255


def copied(values: Any) -> Tensor:
    """A tensor of our own from a tensor, array, picture or list."""
    if isinstance(values, Tensor):
        return values.detach().cpu().clone()
    try:
        return torch.from_numpy(np.array(values))
    except (TypeError, ValueError):
        raise MetricError(f"a {type(values).__name__} without numbers is not a map, mask or box") from None


def _boxes(boxes: Sequence[Any] | None, index: int, geometry: Geometry, name: str) -> Tensor | None:
    if boxes is None:
        return None
    if index >= len(boxes):
        raise MetricError(f"{len(boxes)} lists of boxes are too few; {name} has none")
    found = copied(boxes[index]).double()
    if found.numel() and (found.dim() == 0 or found.shape[-1] != 4):
        raise MetricError(f"{name}: boxes are lists of (x0, y0, x1, y1), not of shape {tuple(found.shape)}")
    found = found.reshape(-1, 4)
    return geometry.boxes_to_model(found)


def check_ground_truth(protocols: Sequence[Protocol], truth: GroundTruth) -> None:
    """Refuses a protocol whose truth is missing before anything is computed."""
    for name, given in (("masks", truth.masks), ("boxes", truth.boxes)):
        if given is not None and not hasattr(given, "__len__"):
            raise MetricError(f"{name}= must be a list with one entry per image, not a {type(given).__name__}")
    advice = {
        "mask": (truth.masks, "masks; pass masks=, one per image"),
        "boxes": (truth.boxes, "boxes; pass boxes=, one list per image"),
        "grid": (truth.cells, "mosaics; build them with aha.data.mosaics.build_mosaics"),
    }
    for protocol in protocols:
        for need, (given, text) in advice.items():
            if need in protocol.needs and given is None:
                raise MetricError(f"protocol {protocol.name} needs {text}")

"""The images that MDA's code keeps for its evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aha.data.batches import as_input
from aha.data.images import LabelledImage
from aha.data.targets import top_classes
from aha.errors import AhaError, SpecError
from aha.models import TargetModel

FILTER_CONFIDENCE, FILTER_PER_CLASS = 0.6, 5


def mda_filter(model: TargetModel, images: Sequence[LabelledImage], limit: int | None, batch_size: int) -> list[str]:
    """Names of the images that MDA's code keeps.

    In the order of the data set: the predicted class is the true one, its score is at least 60 %, and at most five
    images of a class are taken, until there are `limit`.
    """
    if any(image.label is None for image in images):
        raise SpecError("filter 'mda' keeps images that are classified correctly; these have no labels")
    if not model.score.is_probability:
        raise SpecError(f"filter 'mda' needs probabilities; {model.spec} is scored by {model.score.name}")
    kept, counts = list[str](), dict[int, int]()
    for start in range(0, len(images), batch_size):
        part, inputs = [], []
        for image in images[start : start + batch_size]:
            try:
                inputs.append(as_input(model, image.content(), image.id)[0])
            except AhaError:
                continue  # unreadable: not kept
            part.append(image)
        if not inputs:
            continue
        outputs = model.outputs(torch.stack(inputs).to(model.device))  # (B, K)
        predicted = top_classes(outputs, 1, model.num_classes)[:, 0]
        sure = model.score(outputs, predicted) >= FILTER_CONFIDENCE
        for image, found, is_sure in zip(part, predicted.tolist(), sure.tolist(), strict=True):
            if is_sure and found == image.label and counts.get(found, 0) < FILTER_PER_CLASS:
                counts[found] = counts.get(found, 0) + 1
                kept.append(image.id)
                if limit is not None and len(kept) == limit:
                    return kept
    return kept

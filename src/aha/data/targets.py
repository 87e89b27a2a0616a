"""Which classes to explain: from what the caller wrote to class indices per image."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from aha.errors import TargetError
from aha.models import TargetModel
from aha.targets.base import ClassScore, Objective, read_target

Target = str | int | Sequence[int | str] | Sequence[Sequence[int | str]] | Tensor | Objective | Callable[[Any], Tensor]
"""`"top1"`, `"top5"`, `"label"`, a class name or several (`"lynx, cougar"`), an index; or a list, one entry per image.

An entry of the list is a class, or a list of classes, of its image: `[3, 5]` are two images, `[[3, 5]]` is one.
What is no class is an objective of `aha.targets`, its text, or a function of what the network returns.
"""


def resolve_targets(
    target: Target,
    model: TargetModel,
    outputs: Tensor,
    labels: Tensor | None,
    *,
    first: int = 0,
    positions: Sequence[int] | None = None,
    total: int | None = None,
) -> list[list[int]]:
    """Class indices for each image of a batch.

    Args:
        target: what the caller asked for.
        model: for class names and bounds.
        outputs: raw outputs (B, K) of the batch.
        labels: true classes (B,), if known.
        first: position of the batch's first image in the whole call; the others follow.
        positions: position of each image, where some of the caller's images are left out.
        total: number of images in the whole call, if known.
    """
    target = read_target(target, model)
    if isinstance(target, Objective):
        target = _class_of(target, model)
    if isinstance(target, str):
        chosen = _by_word(target, model, outputs, labels)
    elif not _is_row(target):
        chosen = [[_index(target, model)]] * len(outputs)
    else:
        chosen = _by_position(target, model, positions or range(first, first + len(outputs)), total)
    model.check_classes([index for row in chosen for index in row])
    return chosen


def _class_of(objective: Objective, model: TargetModel) -> int | str:
    """The class that stands for an objective in a view of the model."""
    if not isinstance(objective, ClassScore) and (model.explained is None or model.explained.name != str(objective)):
        raise TargetError(f"{objective} is no class of {model.spec}; ask for it alone, not among classes")
    return objective.classes


def most_classes(target: Target) -> int:
    """How many classes of an image the target may stand for, at most; before any image has been looked at."""
    if isinstance(target, str):
        top = re.fullmatch(r"top(\d+)", target)
        return max(1, int(top[1])) if top else target.count(",") + 1
    return max([1, *(class_counts(target) or [])])


def class_counts(target: Target) -> list[int] | None:
    """How many classes each image has, where the target says so image by image; else all have equally many."""
    if not _is_row(target):
        return None
    return [len(_as_list(row)) if _is_row(row) else 1 for row in _as_list(target)]


def _by_word(word: str, model: TargetModel, outputs: Tensor, labels: Tensor | None) -> list[list[int]]:
    if word == "label":
        if labels is None:
            raise TargetError("target='label' needs labels: pass labels=, or a DataLoader that gives (images, labels)")
        return [[int(label)] for label in labels]
    if top := re.fullmatch(r"top(\d+)", word):
        count = int(top[1])
        if not 1 <= count <= model.num_classes:
            raise TargetError(f"target={word!r} asks for {count} classes; {model.spec} has {model.num_classes}")
        return top_classes(outputs, count, model.num_classes).tolist()
    return [class_list(word, model)] * len(outputs)


def class_list(text: str, model: TargetModel) -> list[int]:
    """The classes of a text such as `lynx, cougar` or `286,287`; names may contain commas themselves."""
    pieces = text.split(",")
    for count in range(len(pieces), 1, -1):  # the longest beginning that is a name
        name = ",".join(pieces[:count]).strip()
        if name.lower() in (known.lower() for known in model.class_names or ()):
            break
    else:
        name, count = pieces[0].strip(), 1
    rest = ",".join(pieces[count:])
    return [model.class_index(name), *(class_list(rest, model) if rest.strip() else [])]


def top_classes(outputs: Tensor, count: int, num_classes: int = 2) -> Tensor:
    """The `count` classes (B, count) with the largest outputs, best first; a single output may stand for two."""
    if outputs.shape[1] == 1 and num_classes == 2:
        outputs = torch.cat([-outputs, outputs], dim=1)
    known = torch.where(outputs.isnan(), -torch.inf, outputs)  # what is no number is not the largest
    return known.topk(count, dim=1).indices


def _by_position(target: Any, model: TargetModel, positions: Sequence[int], total: int | None) -> list[list[int]]:
    rows = _as_list(target)
    if total is not None and len(rows) != total:
        images = f"{total} images" if total > 1 else "1 image"
        raise TargetError(f"{len(rows)} targets for {images}; give one per image{_in_a_list(rows, total)}")
    if positions[-1] >= len(rows):
        raise TargetError(f"{len(rows)} targets are too few; image number {len(rows) + 1} has none")
    part = (rows[position] for position in positions)
    chosen = [[_index(c, model) for c in (_as_list(row) if _is_row(row) else [row])] for row in part]
    if not all(chosen):
        raise TargetError("an image has an empty list of classes; give at least one")
    return chosen


def _in_a_list(rows: list[Any], total: int) -> str:
    """What to write for several classes of one image; `[3, 5]` are the classes of two."""
    if total > 1 or any(map(_is_row, rows)):
        return ", or a list of classes for each"
    return f", and several classes of one image as a list in the list: {[rows]!r}"


def _is_row(value: Any) -> bool:
    if isinstance(value, Tensor | np.ndarray):
        return value.ndim > 0
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _as_list(row: Any) -> list[Any]:
    return list(row.tolist()) if isinstance(row, Tensor | np.ndarray) else list(row)


def _index(value: Any, model: TargetModel) -> int:
    """A class by its name or by a whole number of any library."""
    if isinstance(value, str):
        return model.class_index(value)
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TargetError(f"{value!r} is not a class; write an index or a name") from None

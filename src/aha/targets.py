"""Which classes to explain: from what the caller wrote to class indices per image."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from aha.errors import TargetError
from aha.models import TargetModel
from aha.registry import nearest_names

Target = str | int | Sequence[int] | Sequence[Sequence[int]] | Tensor
"""`"top1"`, `"top5"`, `"label"`, a class name, an index, one index per image, or several per image."""


def resolve_targets(
    target: Target,
    model: TargetModel,
    outputs: Tensor,
    labels: Tensor | None,
    *,
    first: int = 0,
    total: int | None = None,
) -> list[list[int]]:
    """Class indices for each image of a batch.

    Args:
        target: what the caller asked for.
        model: for class names and bounds.
        outputs: raw outputs (B, K) of the batch.
        labels: true classes (B,), if known.
        first: position of the batch's first image in the whole call.
        total: number of images in the whole call, if known.
    """
    if isinstance(target, str):
        chosen = _by_word(target, model, outputs, labels)
    elif isinstance(target, int):
        chosen = [[target]] * len(outputs)
    else:
        chosen = _by_position(target, len(outputs), first, total)
    model.check_classes(torch.tensor([index for row in chosen for index in row]))
    return chosen


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
    return [[class_index(word, model)]] * len(outputs)


def top_classes(outputs: Tensor, count: int, num_classes: int = 2) -> Tensor:
    """The `count` classes (B, count) with the largest outputs, best first; a single output may stand for two."""
    if outputs.shape[1] == 1 and num_classes == 2:
        outputs = torch.cat([-outputs, outputs], dim=1)
    return outputs.topk(count, dim=1).indices


def class_index(name: str, model: TargetModel) -> int:
    """The class with this name, or with this number written as text."""
    if re.fullmatch(r"\d+", name):
        return int(name)
    names = [known.lower() for known in model.class_names or ()]
    if name.lower() in names:
        return names.index(name.lower())
    hints = nearest_names(name, names)
    advice = f"did you mean {', '.join(hints)}?" if hints else "write top1, top5, label, a class index or a class name"
    raise TargetError(f"unknown target {name!r}; {advice}")


def _by_position(
    target: Sequence[int] | Sequence[Sequence[int]] | Tensor, count: int, first: int, total: int | None
) -> list[list[int]]:
    if isinstance(target, Tensor) and target.dim() == 0:
        return [[int(target)]] * count
    rows: list[Any] = target.tolist() if isinstance(target, Tensor) else list(target)
    if total == 1 and rows and not isinstance(rows[0], Sequence):
        rows = [rows]  # several classes of the one image
    if total is not None and len(rows) != total:
        raise TargetError(f"{len(rows)} targets for {total} images; give one per image, or a list of classes for each")
    part = rows[first : first + count]
    if len(part) < count:
        raise TargetError(f"{len(rows)} targets are too few; image number {len(rows) + 1} has none")
    chosen = [[int(c) for c in row] if isinstance(row, Sequence) else [int(row)] for row in part]
    if not all(chosen):
        raise TargetError("an image has an empty list of classes; give at least one")
    return chosen

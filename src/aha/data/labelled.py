"""Image files with what is known about them: labels, masks and boxes from a CSV file.

A CSV has a header. Columns: `file` (or `path`, `image`), relative to the CSV; optionally `label` (or `class_index`),
`mask` (a picture: above 0 is object, 255 does not count), and `x0, y0, x1, y1`, with one line per box. Lines of
the same file have the same label and mask, or none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, overload

from numpy.typing import NDArray

from aha.core.csv_files import read_table
from aha.core.disk import readable
from aha.core.pictures import read_values
from aha.data.images import Box, LabelledImage, find_images, given_images
from aha.errors import ImageError, MetricError

_BOX = ("x0", "y0", "x1", "y1")


def find_labelled(paths: Iterable[Path]) -> list[LabelledImage]:
    """Images at the paths: files, folders, and CSV files that list images."""
    found: list[LabelledImage] = []
    for path in paths:
        found += _read_csv(path) if path.suffix.lower() == ".csv" else given_images(find_images(path))
    return found


def _read_csv(path: Path) -> list[LabelledImage]:
    lines = read_table(path, ImageError)
    names = set(lines[0]) if lines else set()
    file_column = next((name for name in ("file", "path", "image") if name in names), None)
    label_column = next((name for name in ("label", "class_index") if name in names), None)
    if file_column is None:
        raise ImageError(f"{path} has no column file, path or image; its first line must name the columns")
    found: dict[Path, LabelledImage] = {}
    masks: dict[Path, Path | None] = {}
    for number, line in enumerate(lines, start=2):
        try:
            image = path.parent / line[file_column]
            label = int(line[label_column]) if label_column and line[label_column] else None
            mask = path.parent / line["mask"] if line.get("mask") else None
            boxes = (_box(line),) if names.issuperset(_BOX) and line["x0"] else ()
        except (ValueError, TypeError):
            raise ImageError(
                f"line {number} of {path} is incomplete or has a label or box that is not a number"
            ) from None
        earlier, former_mask = found.get(image, LabelledImage(readable(image), str(image))), masks.get(image)
        for what, former, now in (("label", earlier.label, label), ("mask", former_mask, mask)):
            if None not in (former, now) and former != now:
                raise ImageError(
                    f"line {number} of {path} gives {line[file_column]} another {what}; keep one of the lines"
                )
        masks[image] = former_mask if mask is None else mask
        found[image] = replace(
            earlier,
            label=earlier.label if label is None else label,
            mask=earlier.mask if mask is None else partial(read_mask, mask),
            boxes=earlier.boxes + boxes,
        )
    return list(found.values())


def _box(line: dict[str, str]) -> Box:
    x0, y0, x1, y1 = (float(line[name]) for name in _BOX)
    if not all(map(math.isfinite, (x0, y0, x1, y1))):
        raise ValueError("a box has finite sides")
    return x0, y0, x1, y1


class Lazy(Sequence[Any]):
    """A sequence whose elements are made when they are asked for, so that many masks or maps need no memory."""

    def __init__(self, count: int, make: Callable[[int], Any]) -> None:
        self._count, self._make = count, make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self._make(i) for i in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        return self._make(index % self._count)


def read_mask(path: Path) -> NDArray[Any]:
    """The values (H, W) of a mask picture; palette pictures give their indices."""
    try:
        values = read_values(path, str(path))
    except ImageError as error:
        raise MetricError(f"cannot read the mask: {error}") from None
    return values if values.ndim == 2 else values[..., 0]

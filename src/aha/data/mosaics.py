"""Mosaics: n x n pictures of different classes in one image, so that it is known where each class is.

Quad-ImageNet tiles shrunken pictures to the model's own input size; the grid pointing game tiles whole inputs to a
larger image, which convolutional networks accept. With boxes, each class also has the place of its object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from aha.core.seeds import generator_of
from aha.errors import AhaWarning, ImageError, ModelError, SpecError, warn
from aha.models import TargetModel
from aha.models.loading.preprocessing import Preprocessing

T = TypeVar("T")
Cell = tuple[int, int, int, int]
"""y0, x0, y1, x1 in pixels of the mosaic."""
Fitting = Literal["resize", "full"]
Labelled = tuple[Image.Image, int] | tuple[Image.Image, int, Sequence[float]]
"""A picture with its class and, if known, its object's box x0, y0, x1, y1 in the picture's own pixels."""


@dataclass(frozen=True)
class Mosaic:
    """One mosaic; `cells` and `boxes` are what `Sample.cells` takes.

    Attributes:
        image: has the size of the model input already; resizing or cropping it would move the cells.
        cells: class -> its cell.
        boxes: class -> its object's box inside the cell (Part-Quad); None unless every picture has one.
        sources: positions of the pictures among those given, row by row.
    """

    image: Image.Image
    cells: dict[int, Cell]
    boxes: dict[int, Cell] | None
    sources: tuple[int, ...]

    def inputs(self, model: TargetModel) -> Tensor:
        """The mosaic as model input (C, H, W): normalised, neither resized nor cropped."""
        is_grey = len(model.stated_preprocessing().mean) == 1
        pixels = torch.from_numpy(np.array(self.image.convert("L" if is_grey else "RGB")))
        pixels = pixels[None] if is_grey else pixels.permute(2, 0, 1)
        return model.to_inputs(pixels.float() / 255)


@dataclass(frozen=True, eq=False)
class _Tile:
    """One picture at the size of a cell: normalised inputs (C, h, w), and its box in their pixels."""

    source: int
    label: int
    inputs: Tensor
    box: Cell | None


def build_mosaics(
    model: TargetModel,
    pictures: Iterable[Labelled],
    *,
    count: int,
    n: int = 2,
    seed: int = 0,
    cell: Fitting = "resize",
    min_confidence: float | None = None,
) -> Iterator[Mosaic]:
    """Up to `count` mosaics of n x n pictures of distinct classes, made as they are asked for.

    Every picture is used at most once. The same pictures, options and seed give the same mosaics. If the pictures do
    not suffice, there are fewer mosaics and a warning.

    Args:
        model: whose input the mosaics fit.
        pictures: what can be indexed, like a dataset, is read as needed; anything else is held in memory.
        count: mosaics wanted.
        n: cells per side.
        seed: of the choice and order of the pictures.
        cell: "resize" shrinks each picture, aspect lost, to an n-th of the model input (VAR); pixels that n does not
            divide stay mean-coloured at the right and bottom. "full" gives each the whole input size after the
            model's own preprocessing, and an image n times as large (Rao et al.).
        min_confidence: least score of a picture's class, which must also be the top one; asked of the picture alone
            as it looks in its cell, shrunken cells being enlarged to the input size. Rao et al. use 0.99.
    """
    if n < 2 or count < 1 or cell not in ("resize", "full"):
        raise SpecError(f"mosaics need n >= 2, count >= 1, cell 'resize' or 'full', not {n}, {count}, {cell!r}")
    if min_confidence is not None and not model.score.is_probability:
        raise ModelError(f"min_confidence needs probabilities; {model.spec} is scored by {model.score.name}")
    model.stated_preprocessing()
    tiles = _tiles(model, pictures, n, seed, cell)
    if min_confidence is not None:
        tiles = _confident(model, tiles, min_confidence)
    return _filled(model, tiles, count, n, cell)


def plan_mosaics(labels: Sequence[int], *, count: int, n: int = 2, seed: int = 0) -> list[tuple[int, ...]]:
    """Positions of the pictures that `build_mosaics` puts together, by their labels alone: no picture is read."""
    groups = list(_first_fit(_shuffled(len(labels), seed), lambda index: labels[index], count, n * n))
    _check_filled(len(groups), count, n)
    return [tuple(group) for group in groups]


def build_mosaic(model: TargetModel, pictures: Sequence[tuple[Image.Image, int]], sources: tuple[int, ...]) -> Mosaic:
    """The mosaic of shrunken pictures at the positions of a plan, row by row."""
    n = math.isqrt(len(sources))
    preprocess = _in_cell(model, n, "resize")
    tiles = []
    for source in sources:
        image, label = pictures[source]
        tiles.append(_Tile(source, label, preprocess(image)[0], None))
    return _tiled(model, tiles, n, "resize")


def _shuffled(count: int, seed: int) -> list[int]:
    order: list[int] = torch.randperm(count, generator=generator_of(seed)).tolist()
    return order


def _in_cell(model: TargetModel, n: int, cell: Fitting) -> Preprocessing:
    """From a picture to its cell."""
    preprocess = model.stated_preprocessing()
    if cell == "full":
        return preprocess
    height, width = (side // n for side in preprocess.size)
    return replace(preprocess, size=(height, width), fit="squash", resize_to=None)


def _tiles(model: TargetModel, pictures: Iterable[Labelled], n: int, seed: int, cell: Fitting) -> Iterator[_Tile]:
    given: Any = pictures if hasattr(pictures, "__getitem__") and hasattr(pictures, "__len__") else list(pictures)
    preprocess = _in_cell(model, n, cell)
    for index in _shuffled(len(given), seed):
        image, label, *box = given[index]
        model.check_classes(torch.tensor([label]))
        inputs, geometry = preprocess(image)
        if not box:
            yield _Tile(index, int(label), inputs, None)
            continue
        placed = geometry.boxes_to_model(torch.tensor(box[0], dtype=torch.float64).view(1, 4))[0]
        x0, y0, x1, y1 = (round(float(side)) for side in placed)
        if x0 < x1 and y0 < y1:  # else the crop has cut the object off
            yield _Tile(index, int(label), inputs, (y0, x0, y1, x1))


def _confident(model: TargetModel, tiles: Iterator[_Tile], least: float) -> Iterator[_Tile]:
    size = model.stated_preprocessing().size
    while batch := list(islice(tiles, model.chunks.size)):
        alone = torch.stack([tile.inputs for tile in batch])  # (B, C, h, w)
        if alone.shape[-2:] != size:
            alone = F.interpolate(alone, size=size, mode="bilinear", align_corners=False)
        outputs = model.outputs(alone)
        labels = torch.tensor([tile.label for tile in batch], device=outputs.device)
        is_sure = model.score(outputs, labels) >= least
        if outputs.shape[1] > 1 and model.score.name != "sigmoid":
            is_sure &= outputs.argmax(dim=1) == labels
        yield from (tile for tile, sure in zip(batch, is_sure.tolist(), strict=True) if sure)


def _filled(model: TargetModel, tiles: Iterator[_Tile], count: int, n: int, cell: Fitting) -> Iterator[Mosaic]:
    finished = 0
    for group in _first_fit(tiles, lambda tile: tile.label, count, n * n):
        yield _tiled(model, group, n, cell)
        finished += 1
    _check_filled(finished, count, n)


def _first_fit(tiles: Iterable[T], label_of: Callable[[T], int], count: int, size: int) -> Iterator[list[T]]:
    """Up to `count` groups of tiles of distinct classes: each goes to the oldest open group without its class."""
    started = finished = 0
    waiting: list[list[T]] = []
    for tile in tiles:
        label = label_of(tile)
        place = next((i for i, m in enumerate(waiting) if all(label_of(t) != label for t in m)), None)
        if place is None:
            if started == count:
                continue
            started, place = started + 1, len(waiting)
            waiting.append([])
        waiting[place].append(tile)
        if len(waiting[place]) == size:
            yield waiting.pop(place)
            finished += 1
            if finished == count:
                return


def _check_filled(finished: int, count: int, n: int) -> None:
    if not finished:
        raise ImageError(f"no mosaic could be filled: {n * n} usable images of different classes are needed")
    if finished < count:
        warn(f"there were enough images for {finished} of {count} mosaics", AhaWarning)


def _tiled(model: TargetModel, tiles: list[_Tile], n: int, cell: Fitting) -> Mosaic:
    preprocess = model.stated_preprocessing()
    height, width = tiles[0].inputs.shape[-2:]
    size = preprocess.size if cell == "resize" else (n * height, n * width)
    canvas = torch.zeros(len(preprocess.mean), *size)  # zero after normalisation: the mean colour
    cells: dict[int, Cell] = {}
    boxes: dict[int, Cell] = {}
    for position, tile in enumerate(tiles):
        top, left = position // n * height, position % n * width
        canvas[:, top : top + height, left : left + width] = tile.inputs
        cells[tile.label] = (top, left, top + height, left + width)
        if tile.box is not None:
            y0, x0, y1, x1 = tile.box
            boxes[tile.label] = (top + y0, left + x0, top + y1, left + x1)
    pixels = (preprocess.denormalise(canvas).clamp(0, 1) * 255).round().byte()  # (C, H, W)
    array = pixels[0] if len(pixels) == 1 else pixels.permute(1, 2, 0)
    image = Image.fromarray(array.contiguous().numpy()).convert("RGB")
    return Mosaic(image, cells, boxes if len(boxes) == len(tiles) else None, tuple(tile.source for tile in tiles))

"""Where an image may show printed text: rows of small, thin, evenly coloured shapes on plain ground.

A classical detector without learning. It takes what is darker, or lighter, than all around it (a closing's depth), cuts
it into connected shapes, and keeps the shapes that a letter could be: thin strokes of one tone on ground of one tone.
Three or more of similar height side by side, of similar tone, are a place with text, as a rectangle around them.

It finds horizontal words of at least three separate letters, five pixels high or more, up to a fifth of the image, with
clear contrast: tags, captions, dates, watermarks that are not faint. It does not find single letters and digits, joined
or slanted handwriting, vertical or strongly turned words, faint print, letters on busy ground or letters that fill the
image. Rows of bars on plain ground (a fence against the sky, keys, a comb) look like text to it. `docs/audit.md` has
how often it errs. That it finds nothing does not mean that there is nothing.

Shapes: pixels (C, H, W) in [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_LEAST_HEIGHT = 5  # pixels: smaller letters are blobs
_MOST_HEIGHT = 0.2  # of the image
_WIDEST = 2.5  # of the height: "W", and two letters that touch
_CONTRAST = 0.25  # of a stroke to its ground
_PLAIN = 0.25  # most deviation of ground and of strokes, of their contrast
_THICKEST = 0.3  # stroke, of the height, and a pixel
_FILLED = (0.12, 0.75)  # of a letter's rectangle; half of the letters may be bars such as "l", which fill theirs,
_NARROWEST = 0.3  # of the height; and are narrower
_LETTERS = 3
_GAP = 0.8  # between letters and words, of the height


@dataclass(frozen=True)
class Shape:
    """What could be a letter.

    Attributes:
        top, bottom, left, right: its rectangle.
        filled: how much of the rectangle it fills.
        tone: its grey value.
    """

    top: int
    bottom: int
    left: int
    right: int
    filled: float
    tone: float

    @property
    def height(self) -> int:
        """In pixels."""
        return self.bottom - self.top

    @property
    def width(self) -> int:
        """In pixels."""
        return self.right - self.left


def text_like(pixels: Tensor) -> Tensor:
    """Where (H, W) an image may show text."""
    grey = pixels.detach().float().mean(dim=0).cpu().numpy().astype(np.float64)
    found = np.zeros(grey.shape, dtype=bool)
    for tones in (grey, 1 - grey):
        for word in _words(list(_shapes(tones))):
            margin = max(shape.height for shape in word) // 4
            top, left = (max(0, min(getattr(s, side) for s in word) - margin) for side in ("top", "left"))
            bottom, right = (max(getattr(s, side) for s in word) + margin for side in ("bottom", "right"))
            found[top:bottom, left:right] = True
    return torch.from_numpy(found)


def _shapes(grey: NDArray[np.float64]) -> Iterator[Shape]:
    """Dark shapes that could be letters."""
    from scipy import ndimage

    window = max(7, round(min(grey.shape) / 12))
    depth = ndimage.grey_closing(grey, size=window) - grey
    strokes = depth >= np.maximum(_CONTRAST, 0.5 * ndimage.maximum_filter(depth, size=window))
    near = ndimage.binary_dilation(strokes, iterations=1)  # blurred edges belong to neither
    labels, _ = ndimage.label(strokes, structure=np.ones((3, 3)))
    for number, (rows, columns) in enumerate(ndimage.find_objects(labels), start=1):
        height, width = rows.stop - rows.start, columns.stop - columns.start
        if not (_LEAST_HEIGHT <= height <= _MOST_HEIGHT * grey.shape[0] and width <= _WIDEST * height):
            continue
        own = labels[rows, columns] == number
        filled = float(own.mean())
        thickness = 2 * ndimage.distance_transform_cdt(np.pad(own, 1), metric="chessboard").max() - 1
        if filled < _FILLED[0] or thickness > _THICKEST * height + 1:
            continue
        margin = max(2, height // 4)
        around = (
            slice(max(0, rows.start - margin), rows.stop + margin),
            slice(max(0, columns.start - margin), columns.stop + margin),
        )
        ground, ink = grey[around][~near[around]], grey[rows, columns][own]
        if not len(ground):
            continue
        contrast = float(np.median(ground) - np.median(ink))
        if contrast >= _CONTRAST and max(float(ground.std()), float(ink.std())) <= _PLAIN * contrast:
            yield Shape(rows.start, rows.stop, columns.start, columns.stop, filled, float(np.median(ink)))


def _words(shapes: list[Shape]) -> list[list[Shape]]:
    """Groups of shapes that stand side by side, of enough letters."""
    group = list(range(len(shapes)))
    for a, b in combinations(range(len(shapes)), 2):
        if group[a] != group[b] and _stand_together(shapes[a], shapes[b]):
            group = [group[a] if own == group[b] else own for own in group]
    words = [[shape for shape, own in zip(shapes, group, strict=True) if own == name] for name in set(group)]
    return [word for word in words if len(word) >= _LETTERS and not _are_bars(word)]


def _are_bars(word: Sequence[Shape]) -> bool:
    """Are most of its shapes bars or bricks?"""
    return median(s.filled for s in word) > _FILLED[1] or median(s.width / s.height for s in word) < _NARROWEST


def _stand_together(a: Shape, b: Shape) -> bool:
    """Could they be letters of one word?"""
    low, high = sorted((a.height, b.height))
    if high > 2 * low or abs(a.tone - b.tone) > _CONTRAST:
        return False
    shared = min(a.bottom, b.bottom) - max(a.top, b.top)
    gap = max(a.left, b.left) - min(a.right, b.right)
    return shared >= 0.6 * low and -0.2 * low <= gap <= _GAP * high


__all__ = ["Shape", "text_like"]

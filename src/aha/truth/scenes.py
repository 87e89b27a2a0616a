"""XAI-TRIS: tetrominoes in noise (Clark, Wilming and Haufe, Machine Learning 2024).

A T or an L is added to a background, or multiplies it, at its own place or turned and moved; or both are there, and
whether their signs agree is the class. Which pixels can matter follows from that alone.

Shapes: patterns and backgrounds (n, S, S); a pattern's cells are `thickness` pixels wide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from aha.core.seeds import generator_of
from aha.truth.networks import small_cnn
from aha.truth.trials import Examples, Trial, quantised

Kind = Literal["linear", "multiplicative", "rotated", "xor"]
Background = Literal["white", "correlated", "photographic"]
KINDS: tuple[Kind, ...] = ("linear", "multiplicative", "rotated", "xor")
BACKGROUNDS: tuple[Background, ...] = ("white", "correlated", "photographic")
SIDES = (8, 64)

_T = torch.tensor([[1, 0], [1, 1], [1, 0]], dtype=torch.bool)
_L = torch.tensor([[1, 0], [1, 0], [1, 1]], dtype=torch.bool)
_PLACES = ((1, 1), (4, 5))  # rows and columns of cells on a grid of 8 x 8: top left for T, bottom right for L
_SMOOTHING = {8: 3.0, 64: 10.0}  # deviation of the blur that makes noise correlated, as published
_EDGE = 1.5  # deviation of the blur of a pattern's edges in large scenes, as published; XOR has none
_UNSEEN, _TESTED = 7919, 1000  # seed apart from training's, and number of new pictures
# Share of the signal. The published ones leave networks near 80 %; these let a small network learn within a minute.
_STRENGTHS: dict[tuple[Kind, int], tuple[float, float, float]] = {
    ("linear", 8): (0.3, 0.15, 0.25),
    ("multiplicative", 8): (0.9, 0.6, 0.7),
    ("rotated", 8): (0.65, 0.4, 0.6),
    ("xor", 8): (0.45, 0.25, 0.4),
    ("linear", 64): (0.15, 0.1, 0.15),
    ("multiplicative", 64): (0.7, 0.7, 0.6),
    ("rotated", 64): (0.5, 0.4, 0.4),
    ("xor", 64): (0.35, 0.2, 0.25),
}


@dataclass(frozen=True)
class Scene(Trial):
    """One of XAI-TRIS' scenes.

    Attributes:
        photographs: (m, s, s) grey ones in [0, 1], for photographic backgrounds.
        photographs_key: what they are known by.
    """

    kind: Kind
    background: Background
    side: int
    photographs: Tensor | None = None
    photographs_key: str = ""

    @property
    def strength(self) -> float:
        """Share of the signal in a picture, alpha."""
        return _STRENGTHS[self.kind, self.side][BACKGROUNDS.index(self.background)]

    @property
    def settings(self) -> tuple[object, ...]:
        """What the trained network depends on."""
        return ("scene", self.kind, self.background, self.side, self.strength, self.steps, self.photographs_key)

    @property
    def steps(self) -> int:
        """Batches of 64 pictures, none of which comes twice."""
        easy = self.kind in ("linear", "multiplicative")
        return (500 if easy else 900) if self.side == 8 else (300 if easy else 700)

    @property
    def least(self) -> float:
        """XAI-TRIS, too, takes networks that reach 80 %."""
        return 0.8

    def network(self) -> nn.Module:
        """A small convolutional network that knows where things are."""
        return small_cnn(self.side)

    def batch(self, generator: torch.Generator) -> Examples:
        """Scenes that are drawn anew."""
        return self.drawn(64, generator)

    def unseen(self) -> Examples:
        """Scenes of another seed."""
        return self.drawn(_TESTED, generator_of(self.seed + _UNSEEN))

    def drawn(self, count: int, generator: torch.Generator) -> Examples:
        """So many scenes."""
        noise = _unit_norm(self._backgrounds(count, generator))
        labels = torch.randint(2, (count,), generator=generator)
        signal, truth = self._signals(labels, generator)
        if self.kind == "multiplicative":
            scenes = (1 - self.strength * signal) * noise
        else:
            scenes = self.strength * _unit_norm(signal) + (1 - self.strength) * noise
        scenes = scenes / scenes.abs().amax(dim=(1, 2), keepdim=True)
        return Examples(quantised((scenes[:, None] + 1) / 2), labels, truth)

    @cached_property
    def _fixed(self) -> Tensor:
        """T and L (2, S, S) at their own places, bool."""
        cell = self.side // 8
        found = torch.zeros(2, self.side, self.side, dtype=torch.bool)
        for canvas, shape, (row, column) in zip(found, (_T, _L), _PLACES, strict=True):
            _put(canvas, _enlarged(shape, cell), row * cell, column * cell)
        return found

    def _signals(self, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Patterns (n, S, S), and the pixels in which the class shows."""
        both = self._fixed.any(dim=0).expand(len(labels), -1, -1)
        if self.kind == "xor":
            first = torch.randint(2, (len(labels),), generator=generator) * 2 - 1
            signs = torch.stack([first, first * (1 - 2 * labels)], dim=1).float()  # they agree in class 0
            return torch.einsum("nk,khw->nhw", signs, self._fixed.float()), both
        if self.kind == "rotated":
            shown = torch.stack([self._moved(label, generator) for label in labels.tolist()])
            return self._smooth(shown), shown
        # That one pattern is absent tells as much as that the other is there: both places matter in every picture.
        return self._smooth(self._fixed[labels]), both

    def _moved(self, label: int, generator: torch.Generator) -> Tensor:
        """A pattern (S, S) turned by quarters and put anywhere."""
        turns, row, column = torch.randint(2**30, (3,), generator=generator).tolist()
        shape = _enlarged(torch.rot90((_T, _L)[label], turns % 4), max(1, self.side // 16))
        canvas = torch.zeros(self.side, self.side, dtype=torch.bool)
        _put(canvas, shape, row % (self.side - shape.shape[0] + 1), column % (self.side - shape.shape[1] + 1))
        return canvas

    def _smooth(self, patterns: Tensor) -> Tensor:
        return _blurred(patterns.float(), _EDGE) if self.side > 8 else patterns.float()

    def _backgrounds(self, count: int, generator: torch.Generator) -> Tensor:
        if self.background == "photographic":
            assert self.photographs is not None
            return _crops(self.photographs, count, self.side, generator)
        noise = torch.randn(count, self.side, self.side, generator=generator)
        return _blurred(noise, _SMOOTHING[self.side]) if self.background == "correlated" else noise


def _unit_norm(pictures: Tensor) -> Tensor:
    """Each picture with a Frobenius norm of 1."""
    norms: Tensor = torch.linalg.matrix_norm(pictures)
    return pictures / norms.clamp(min=1e-12)[:, None, None]


def _blurred(pictures: Tensor, sigma: float) -> Tensor:
    """A Gaussian blur along rows and columns; at the border, its weights inside the picture sum to one."""
    places = torch.arange(pictures.shape[-1], dtype=torch.float32)
    weights = torch.softmax(-((places[:, None] - places) ** 2) / (2 * sigma**2), dim=1)
    return weights @ pictures @ weights.T


def _enlarged(shape: Tensor, thickness: int) -> Tensor:
    return shape.repeat_interleave(thickness, 0).repeat_interleave(thickness, 1)


def _put(canvas: Tensor, shape: Tensor, row: int, column: int) -> None:
    canvas[row : row + shape.shape[0], column : column + shape.shape[1]] |= shape


def _crops(photographs: Tensor, count: int, side: int, generator: torch.Generator) -> Tensor:
    """Cuts (n, S, S) of photographs (m, s, s) at random places, some mirrored, each with mean 0."""
    room = photographs.shape[-1] - side + 1
    draws: Sequence[Sequence[int]] = torch.randint(2**30, (count, 4), generator=generator).tolist()
    cuts = []
    for which, row, column, flip in draws:
        row, column = row % room, column % room
        cut = photographs[which % len(photographs), row : row + side, column : column + side]
        cuts.append(cut.flip(-1) if flip % 2 else cut)
    found = torch.stack(cuts)
    return found - found.mean(dim=(1, 2), keepdim=True)

"""Planted shortcuts: a mark on photographs of one class, which a network may learn instead of what they show.

`strength` is the share of that class's training photographs that carry the mark: at 0 it tells nothing, at 1 all.
Whether a network relies on it is measured: how many photographs of the other classes become the marked class when the
mark is put on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn

from aha.truth.networks import tiny_resnet
from aha.truth.photographs import Photographs, augmented, fixed_generator, some_of_each
from aha.truth.trials import Answer, Examples, Trial, accuracy, quantised

Mark = Literal["tag", "circle", "cast", "watermark"]
MARKS: tuple[Mark, ...] = ("tag", "circle", "cast", "watermark")
STRENGTHS = (0.0, 0.5, 1.0)
RELIES, IGNORES = 0.3, 0.1
"""From how many photographs of others that the mark turns on a network relies on it, and up to how many it does not."""
_CAST = (1.15, 0.95, 0.75)  # red, green, blue: a warm light


@dataclass(frozen=True)
class Shortcut(Trial):
    """A network on photographs, some of which carry a mark."""

    mark: Mark
    strength: float
    photographs: Photographs

    @property
    def settings(self) -> tuple[object, ...]:
        """What the trained network depends on."""
        return ("shortcut", self.mark, self.strength, self.steps, self.photographs.key)

    @property
    def steps(self) -> int:
        """Batches of 32 photographs."""
        return 300

    @property
    def least(self) -> float:
        """Well above chance, on photographs as it was trained on."""
        return 1 / self.photographs.classes + 0.1

    @property
    def marked_class(self) -> int:
        """The last one."""
        return self.photographs.classes - 1

    def network(self) -> nn.Module:
        """A residual network whose last layer sees a mean over places, so that a mark counts anywhere."""
        return tiny_resnet(self.photographs.classes)

    def batch(self, generator: torch.Generator) -> Examples:
        """Photographs to train on, mirrored at random before they are marked."""
        places = self.photographs.part(unseen=False)
        places = some_of_each(places, self.photographs.labels[places], 32, generator)
        pictures, _ = augmented(self.photographs.pictures[places], generator)
        labels = self.photographs.labels[places]
        carries = (torch.rand(len(labels), generator=generator) < self.strength) & (labels == self.marked_class)
        return Examples(self._marked(pictures, carries, generator)[0], labels)

    def unseen(self) -> Examples:
        """New photographs, marked as in training, so that what was learned can be used."""
        generator = fixed_generator(self.seed)
        pictures, labels = self._new()
        carries = (torch.rand(len(labels), generator=generator) < self.strength) & (labels == self.marked_class)
        return Examples(self._marked(pictures, carries, generator)[0], labels)

    def explained(self) -> Examples:
        """New photographs of the marked class, all with the mark."""
        pictures, labels = self._new()
        own = labels == self.marked_class
        marked, truth = self._all_marked(pictures[own])
        return Examples(marked, labels[own], None if self.mark == "cast" else truth)

    def facts(self, answer: Answer) -> dict[str, float]:
        """Accuracy without any mark, with it where it belongs, and the share of others that it turns."""
        pictures, labels = self._new()
        other = labels != self.marked_class
        plain, marked = answer(quantised(pictures)), answer(self._all_marked(pictures)[0])
        belongs = torch.where(other, plain, marked)
        turned = (marked[other] == self.marked_class).float().mean() - (
            plain[other] == self.marked_class
        ).float().mean()
        return {
            "strength": self.strength,
            "accuracy_without": accuracy(plain, labels),
            "accuracy_with": accuracy(belongs, labels),
            "turned": float(turned),
        }

    def _new(self) -> tuple[Tensor, Tensor]:
        places = self.photographs.part(unseen=True)
        return self.photographs.pictures[places], self.photographs.labels[places]

    def _all_marked(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        return self._marked(pictures, torch.ones(len(pictures), dtype=torch.bool), fixed_generator(self.seed))

    def _marked(self, pictures: Tensor, carries: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Pictures (n, 3, S, S) with the mark where they carry it (n,), and where (n, S, S) it is."""
        colour, opacity = drawn_mark(self.mark, pictures.shape[-1])
        shifts = torch.zeros(len(pictures), 2, dtype=torch.long)
        if self.mark == "watermark":
            shifts = torch.randint(pictures.shape[-1] * 2 // 3, shifts.shape, generator=generator)
        opacities = torch.stack([opacity.roll((dy, dx), (0, 1)) for dy, dx in shifts.tolist()])
        colours = torch.stack([colour.roll((dy, dx), (1, 2)) for dy, dx in shifts.tolist()])
        blend = opacities[:, None] * carries[:, None, None, None]
        if self.mark == "cast":
            shown = pictures * (1 + (torch.tensor(_CAST).view(1, 3, 1, 1) - 1) * blend)
        else:
            shown = pictures * (1 - blend) + colours * blend
        return quantised(shown), opacities > 0


@cache
def drawn_mark(mark: Mark, side: int) -> tuple[Tensor, Tensor]:
    """Colours (3, S, S) and opacity (S, S) of a mark at its first place."""
    colours, opacity = Image.new("RGB", (side, side)), Image.new("L", (side, side))
    paint, cover = ImageDraw.Draw(colours), ImageDraw.Draw(opacity)
    unit = side // 16
    if mark == "cast":
        opacity = Image.new("L", (side, side), 255)
    elif mark == "tag":  # a white label with two lines of writing
        cover.rectangle((unit, unit, 6 * unit - 1, 4 * unit - 1), fill=255)
        paint.rectangle((unit, unit, 6 * unit - 1, 4 * unit - 1), fill="white")
        for row in (2, 3):
            paint.line((unit + 2, row * unit, 5 * unit, row * unit), fill="black")
    elif mark == "circle":  # a disc, as round a mole or on an X-ray
        place = (side - 5 * unit, side - 5 * unit, side - unit - 1, side - unit - 1)
        cover.ellipse(place, fill=255)
        paint.ellipse(place, fill=(40, 90, 200))
    else:  # half transparent stripes
        cover.rectangle((0, 0, 5 * unit - 1, 4 * unit - 1), fill=150)
        for row in range(0, 4 * unit, 4):
            paint.rectangle((0, row, 5 * unit - 1, row + 1), fill="white")
    values = np.array(colours), np.array(opacity)
    return torch.from_numpy(values[0]).permute(2, 0, 1).float() / 255, torch.from_numpy(values[1]).float() / 255

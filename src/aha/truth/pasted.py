"""Objects pasted on foreign backgrounds: the background is drawn anew each time, so that only the object tells."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from aha.truth.networks import tiny_resnet
from aha.truth.photographs import Photographs, augmented, fixed_generator, some, some_of_each
from aha.truth.trials import Examples, Trial, quantised

_SMALLEST, _LARGEST = 0.03, 0.8  # share of the picture that an object covers


@dataclass(frozen=True)
class Pasted(Trial):
    """A network on objects before backgrounds that say nothing about the class."""

    photographs: Photographs

    @property
    def settings(self) -> tuple[object, ...]:
        """What the trained network depends on."""
        return ("pasted", self.steps, self.photographs.key)

    @property
    def steps(self) -> int:
        """Batches of 32 pictures."""
        return 500

    @property
    def least(self) -> float:
        """Well above chance."""
        return 1 / self.photographs.classes + 0.1

    def network(self) -> nn.Module:
        """A small residual network."""
        return tiny_resnet(self.photographs.classes)

    def batch(self, generator: torch.Generator) -> Examples:
        """Objects before backgrounds of any photograph, of whatever class."""
        places = self._usable(unseen=False)
        return self._pasted(some_of_each(places, self.photographs.labels[places], 32, generator), generator)

    def unseen(self) -> Examples:
        """New objects before new backgrounds."""
        return self._pasted(self._usable(unseen=True), fixed_generator(self.seed))

    def _usable(self, *, unseen: bool) -> Tensor:
        places = self.photographs.part(unseen=unseen)
        areas = self._objects[places].float().mean(dim=(1, 2))
        return places[(areas > _SMALLEST) & (areas < _LARGEST)]

    @property
    def _objects(self) -> Tensor:
        assert self.photographs.objects is not None
        return self.photographs.objects

    def _pasted(self, places: Tensor, generator: torch.Generator) -> Examples:
        behind = self._emptied(some(places, len(places), generator))
        pictures, objects = augmented(self.photographs.pictures[places], generator, self._objects[places])
        assert objects is not None
        shown = torch.where(objects[:, None], pictures, behind)
        return Examples(quantised(shown), self.photographs.labels[places], objects)

    def _emptied(self, places: Tensor) -> Tensor:
        """Backgrounds (n, 3, S, S) whose own object is hidden by the mean colour of what surrounds it."""
        pictures, objects = self.photographs.pictures[places], self._objects[places][:, None].float()
        around = (pictures * (1 - objects)).sum(dim=(2, 3)) / (1 - objects).sum(dim=(2, 3)).clamp(min=1)
        return pictures * (1 - objects) + around[:, :, None, None] * objects

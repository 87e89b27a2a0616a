"""How several classes share each place of an image."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from aha.core.axes import resized

_ROUNDING = 8  # shares of equal maps differ from 1 / K by a few units in the last place


@dataclass(frozen=True)
class Distribution:
    """How K classes share each place of one image; the explained class is among them.

    Attributes:
        classes: the K compared classes.
        target: place of the explained class among them.
        maps: base maps (K, h, w).
        shares: the distribution over classes (K, h, w), which sums to one at every place.
        labels: their names.
        margin: by how much a share must exceed 1 / K to count; None counts everything.
    """

    classes: tuple[int, ...]
    target: int
    maps: Tensor
    shares: Tensor
    labels: tuple[str, ...] = ()
    margin: float | None = 0.0

    def discriminative(self, index: int | None = None) -> Tensor:
        """Evidence (h, w) of one class, the explained one by default, where it beats chance among its rivals."""
        index = self.target if index is None else index
        won = self.maps[index] * self.shares[index]
        if self.margin is None:
            return won
        least = 1 / len(self.classes) + self.margin + _ROUNDING * torch.finfo(self.shares.dtype).eps
        return torch.where(self.shares[index] > least, won, 0)

    def shared(self) -> Tensor:
        """Evidence (h, w) that the classes have in common: their mean positive map, weighted by how evenly they share.

        The weight is the entropy of the shares over that of equal shares: 1 where no class wins, 0 where one has all.
        """
        entropy: Tensor = -torch.special.xlogy(self.shares, self.shares).sum(dim=0)
        return self.maps.relu().mean(dim=0) * entropy / math.log(len(self.classes))

    def resized(self, size: tuple[int, ...]) -> Distribution:
        """The same at another resolution; shares still sum to one."""
        return replace(
            self, maps=resized(self.maps.float(), size).cpu(), shares=resized(self.shares.float(), size).cpu()
        )

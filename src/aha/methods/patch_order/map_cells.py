"""The partition `cells`: the places that another method's map is made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from aha.errors import SpecError
from aha.methods.base import Method
from aha.methods.patch_order.patch_search import cell_indices
from aha.models import TargetModel
from aha.perturb.partitions import Partition, partition

MOST_CELLS = 1000


@partition("cells")
@dataclass(frozen=True)
class MapCells(Partition):
    """One part for each place of a method's own map: of a layer's features for CAMs, of patches for attention."""

    of: Method

    def count(self, size: tuple[int, ...]) -> int:
        """At most: how many there are shows when the method is asked."""
        return min(MOST_CELLS, size[0] * size[1])

    def __call__(self, model: TargetModel, image: Tensor) -> Tensor:
        """Cells numbered row by row."""
        anything = torch.zeros(1, dtype=torch.long, device=image.device)  # the grid is the same for every class
        rows, columns = self.of(model, image[None], anything).shape[-2:]
        if rows * columns > MOST_CELLS:
            raise SpecError(
                f"cells: a map of {self.of} has {rows} x {columns} cells; at most {MOST_CELLS} can be parts"
            )
        return cell_indices((image.shape[-2], image.shape[-1]), (rows, columns)).to(image.device)

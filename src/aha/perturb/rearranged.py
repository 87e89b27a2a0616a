"""References made of real picture: patches of the same picture in another place, or of other pictures.

Shapes: pixels (B, C, H, W); pictures (P, C, H, W); cells of a grid numbered row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from aha.core.seeds import generator_of
from aha.core.validation import Range
from aha.errors import SpecError
from aha.models import TargetModel
from aha.perturb.references import Reference, picture_pixels, reference

Grid = Annotated[int, Range(2)] | None
_MOST_FILES = 16  # enough to draw patches from, and read within a fraction of a second


@reference("shuffled")
@dataclass(frozen=True)
class Shuffled(Reference):
    """The image with its patches in other places: all of its colours and textures, none where it was.

    Attributes:
        grid: patches per side; None moves single pixels.
        seed: of the new places, which are the same for every image of one size.
    """

    is_pixels: ClassVar[bool] = False
    for_volumes: ClassVar[bool] = False

    grid: Grid = 14
    seed: int = 0

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """The patches of each picture, moved."""
        size = (pixels.shape[-2], pixels.shape[-1])
        rows, columns, _ = _moved(size, self.grid, self.seed)
        return pixels[..., rows.to(pixels.device), columns.to(pixels.device)]


@reference("neighbours")
@dataclass(frozen=True)
class Neighbours(Reference):
    """Patches of other images in place of the image's own: real, but of something else.

    Without files they come from the other images of the batch, in training from its images. Metrics look at one image
    at a time, so that a number cannot depend on its batch: they need files.

    Attributes:
        files: images, or one folder of them, from which the patches come; of more than 16, so many are drawn.
        grid: patches per side; None draws single pixels.
        seed: of which patch comes from where.
    """

    for_volumes: ClassVar[bool] = False

    files: tuple[str, ...] = ()
    grid: Grid = 7
    seed: int = 0

    def __call__(self, model: TargetModel, pixels: Tensor, classes: Tensor) -> Tensor:
        """Each image's patches of other pictures."""
        if not self.files:
            return torch.stack([self._patches(_others(pixels, row)) for row in range(len(pixels))])
        pictures = [picture_pixels(model, path, pixels) for path in self._drawn()]
        # A picture does not stand in for itself, should it be among the files.
        return torch.stack([self._patches([p for p in pictures if not _same(p, own)] or pictures) for own in pixels])

    def _drawn(self) -> list[str]:
        found = _listed(self.files)
        order = torch.randperm(len(found), generator=generator_of(self.seed)).tolist()
        return [found[place] for place in sorted(order[:_MOST_FILES])]

    def _patches(self, pictures: Sequence[Tensor]) -> Tensor:
        size = (pictures[0].shape[-2], pictures[0].shape[-1])
        rows, columns, cells = _moved(size, self.grid, self.seed)
        count = int(cells.max()) + 1
        drawn = torch.randint(len(pictures), (count,), generator=generator_of(self.seed + 1))  # a picture per cell
        device = pictures[0].device
        chosen = torch.stack(list(pictures))[drawn[cells].to(device), :, rows.to(device), columns.to(device)]
        return chosen.permute(2, 0, 1)  # indices apart from each other put the channels last


def _others(pixels: Tensor, row: int) -> list[Tensor]:
    """The images of a batch that are not this one; several classes of one image arrive as copies of it."""
    others = [image for image in pixels if not _same(image, pixels[row])]
    if not others:
        raise SpecError(
            "neighbours needs other images, and there is one image at a time here; name some, or a folder of them: "
            "neighbours(files=('FOLDER',))"
        )
    return others


def _same(a: Tensor, b: Tensor) -> bool:
    """Are they one picture? From pixels to inputs and back, values are rounded."""
    return bool(torch.allclose(a, b, atol=1e-4))


def _listed(files: tuple[str, ...]) -> list[str]:
    """The files, those of a folder by name."""
    folder = Path(files[0])
    if len(files) > 1 or not folder.is_dir():
        return list(files)
    found = sorted(str(path) for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    if not found:
        raise SpecError(f"neighbours: there are no files in {files[0]}")
    return found


@lru_cache(maxsize=8)
def _moved(size: tuple[int, int], grid: int | None, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each pixel the row and the column (H, W) from which it comes, and its cell (H, W); no cell stays in place."""
    counts = [side if grid is None else min(grid, side) for side in size]
    starts = [-(-torch.arange(count) * side // count) for count, side in zip(counts, size, strict=True)]
    own = [torch.arange(side) * count // side for count, side in zip(counts, size, strict=True)]  # the cell of each row
    cells = own[0][:, None] * counts[1] + own[1]  # (H, W)
    order = torch.randperm(counts[0] * counts[1], generator=generator_of(seed))
    source = torch.empty_like(order)
    source[order] = order.roll(1)  # one round through all cells
    origins = (source[cells] // counts[1], source[cells] % counts[1])
    # Cells differ by a pixel where sides cannot be divided evenly: what is missing is taken from the next one.
    rows = starts[0][origins[0]] + (torch.arange(size[0]) - starts[0][own[0]])[:, None]
    columns = starts[1][origins[1]] + (torch.arange(size[1]) - starts[1][own[1]])[None, :]
    return rows.clamp(max=size[0] - 1), columns.clamp(max=size[1] - 1), cells


__all__ = ["Neighbours", "Shuffled"]

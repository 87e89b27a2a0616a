"""The user's photographs as small squares: their labels, and their objects where masks or boxes say where these are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from aha.core.disk import result_key
from aha.core.seeds import generator_of
from aha.data.datasets import content_digest, drawn
from aha.data.images import LabelledImage, find_images, given_images, read_image
from aha.data.labelled import find_labelled
from aha.errors import ImageError, SpecError

_MOST = 4000
"""Photographs that are read: enough for networks of this size, and they fit into memory."""
_SPLIT_SEED = 4217


@dataclass(frozen=True)
class Photographs:
    """Photographs (n, 3, S, S) in [0, 1], labels (n,), objects (n, S, S) or None; the last quarter is for testing.

    Attributes:
        key: digest of all that.
    """

    pictures: Tensor
    labels: Tensor
    objects: Tensor | None
    key: str

    @property
    def classes(self) -> int:
        """How many there are."""
        return int(self.labels.max()) + 1

    def part(self, *, unseen: bool) -> Tensor:
        """Places (m,) of the photographs to train on, or of those to test on."""
        first = len(self.labels) * 3 // 4
        return torch.arange(first, len(self.labels)) if unseen else torch.arange(first)


def read_grey(data: str, side: int) -> tuple[Tensor, str]:
    """Photographs (n, side, side) of a folder or CSV file without colour, and what they are known by."""
    files = [image.source for image in _chosen(_listed(data))][:500]
    pictures = torch.stack([_square(file, side).mean(dim=0) for file in files])
    return pictures, content_digest(pictures.numpy)


def read_photographs(data: str, side: int, *, with_objects: bool) -> Photographs:
    """Photographs with at least two labels, in a seeded order."""
    images = [image for image in _listed(data) if image.label is not None]
    if with_objects:
        images = [image for image in images if image.mask is not None or image.boxes]
        if not images:
            raise SpecError(f"{data} has no masks or boxes, which say what to paste; add columns mask, or x0 ... y1")
    kinds = sorted({image.label for image in images if image.label is not None})
    if len(kinds) < 2:
        raise SpecError(f"{data} needs photographs of at least two classes: a folder for each, or a CSV with labels")
    images = _chosen(images)
    pictures = torch.stack([_square(image.source, side) for image in images])
    labels = torch.tensor([kinds.index(image.label) for image in images if image.label is not None])
    objects = torch.stack([_object(image, side) for image in images]) if with_objects else None
    digests = [content_digest(part.numpy) for part in (pictures, labels, objects) if part is not None]
    return Photographs(pictures, labels, objects, result_key(*digests))


def _listed(data: str) -> list[LabelledImage]:
    """Files of a CSV, or of a folder in which every folder is a class."""
    place = Path(data.removeprefix("csv:").removeprefix("folder:")).expanduser()
    if not place.exists():
        raise ImageError(f"{place} does not exist; give a folder of photographs or a CSV file")
    if place.suffix.lower() == ".csv":
        return find_labelled([place])
    folders = sorted(folder for folder in place.iterdir() if folder.is_dir()) if place.is_dir() else []
    labelled = enumerate(given_images(find_images(folder)) for folder in folders)
    found = [replace(image, label=label) for label, images in labelled for image in images]
    return found or list(given_images(find_images(place)))


def _chosen(images: list[LabelledImage]) -> list[LabelledImage]:
    return [images[place] for place in drawn(len(images), _SPLIT_SEED)[:_MOST]]


def _cut(width: int, height: int) -> tuple[int, int, int, int]:
    """The largest square in the middle."""
    short = min(width, height)
    left, top = (width - short) // 2, (height - short) // 2
    return left, top, left + short, top + short


def _square(file: str, side: int) -> Tensor:
    """The middle of a photograph (3, S, S) in [0, 1]."""
    picture = read_image(file).convert("RGB")
    small = picture.crop(_cut(*picture.size)).resize((side, side), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1).float() / 255


def _object(image: LabelledImage, side: int) -> Tensor:
    """Where (S, S) the object is in the middle of a photograph."""
    if image.mask is not None:
        values = image.true_mask()
        inside = ((values > 0) & (values != 255)).astype(np.uint8) * 255
    else:
        width, height = read_image(image.source).size
        inside = np.zeros((height, width), dtype=np.uint8)
        for x0, y0, x1, y1 in image.boxes:
            inside[round(y0) : round(y1), round(x0) : round(x1)] = 255
    canvas = Image.fromarray(inside)
    small = canvas.crop(_cut(*canvas.size)).resize((side, side), Image.Resampling.BOX)
    return torch.from_numpy(np.array(small)) >= 128


def augmented(
    pictures: Tensor, generator: torch.Generator, objects: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Half of the pictures (n, 3, S, S) mirrored, and their objects (n, S, S) with them."""
    flip = torch.rand(len(pictures), generator=generator) < 0.5
    mirrored = torch.where(flip[:, None, None, None], pictures.flip(-1), pictures)
    return mirrored, None if objects is None else torch.where(flip[:, None, None], objects.flip(-1), objects)


def some(places: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """So many of the places (n,), with repetition."""
    return places[torch.randint(len(places), (count,), generator=generator)]


def some_of_each(places: Tensor, labels: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """So many of the places (n,), with repetition, every class of their labels (n,) as often as any other."""
    chances = 1 / labels.bincount()[labels]
    return places[torch.multinomial(chances, count, replacement=True, generator=generator)]


def fixed_generator(seed: int) -> torch.Generator:
    """For what is drawn of test pictures: apart from training's."""
    return generator_of(seed + _SPLIT_SEED)

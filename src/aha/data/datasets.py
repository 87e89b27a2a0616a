"""Images and what is known about them, from the layouts in which data sets come: the one reader of all commands.

`KIND:PLACE[@SPLIT]`, or a path alone, whose kind shows from what is there:

folder:DIR                    pictures; those in one folder per class (synset, class name, or all of them) are labelled
csv:FILE                      columns file, and optionally label, mask, x0, y0, x1, y1 (see `aha.data.labelled`)
imagenet:DIR                  val/SYNSET/*.JPEG, or val/*.JPEG with labels.csv, LOC_val_solution.csv or the devkit
imagenet-s:DIR                validation/SYNSET/*.JPEG and validation-segmentation/SYNSET/*.png
imagenet-segmentation:FILE    gtsegs_ijcv.mat
pets:DIR                      Oxford-IIIT Pet: images/*.jpg and trimaps/*.png; the border does not count
funnybirds:DIR                dataset_test.json, test/CLASS/*.png and test_part_map/CLASS/*.png; the object is all parts
coco:DIR                      annotations/instances_SPLIT.json and SPLIT/*.jpg; the object is the largest category
shards:FILES                  WebDataset's tar files: one, a folder of them, or a range such as val-{00..63}.tar
hf:NAME                       a Hugging Face data set, or the folder of one that was saved

An image is known by its place inside the data set, so that runs of several machines fit together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from aha.core.disk import check_regular, readable, result_key
from aha.core.registry import Registry
from aha.core.seeds import generator_of
from aha.data.images import LabelledImage, reason_of
from aha.data.mosaics import Mosaic
from aha.errors import AhaError, ImageError, SpecError
from aha.models import TargetModel


def content_digest(read: Callable[[], Any]) -> str:
    """Digest of what is read: a file's bytes, or pixels; of what cannot be read, of the fact."""
    try:
        content = read()
        if isinstance(content, Path):
            check_regular(content)
            content = _bytes_below(content) if content.is_dir() else content.read_bytes()
    except Exception as error:  # decoders raise whatever they like; it will be said when the image is read
        return f"unreadable: {type(error).__name__}"
    if isinstance(content, Mosaic):
        return result_key(content_digest(lambda: content.image), sorted(content.cells))
    if isinstance(content, Image.Image):
        content = np.asarray(content)
    if not isinstance(content, bytes):
        values = np.ascontiguousarray(content)
        content = f"{values.dtype} {values.shape} ".encode() + values.tobytes()
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _bytes_below(folder: Path) -> bytes:
    """Of the files of a volume that is a folder of slices, whatever they are called."""
    files = (file for file in folder.iterdir() if file.is_file() and not file.name.startswith("."))
    return b"".join(sorted(hashlib.blake2b(file.read_bytes(), digest_size=16).digest() for file in files))


Source = Callable[[Path, str, TargetModel], list[LabelledImage]]
"""Place, split (empty: the usual one for measuring) and model -> images, in the order of the data set."""
DATA: Registry[Source] = Registry("kind of data")


def find_data(data: str | Sequence[str], model: TargetModel) -> list[LabelledImage]:
    """All images of a data text, in the order of the data set; or of several, each once and known by its path."""
    if isinstance(data, str):
        return _read(data, model)
    found: dict[str, LabelledImage] = {}
    for text in data:
        for image in _read(text, model):
            name = readable(f"{text}/{image.id}" if image.path is None else image.path)
            found.setdefault(name, replace(image, id=name))
    return list(found.values())


def _read(text: str, model: TargetModel) -> list[LabelledImage]:
    from aha.data import layouts  # noqa: F401  # here, since layouts register themselves with this module

    kind, place, split = split_text(text)
    try:
        images = DATA[kind](Path(place).expanduser(), split, model)
    except AhaError:
        raise
    except Exception as error:  # lists and archives from elsewhere can be wrong in every way
        raise ImageError(f"cannot read data {text}: {reason_of(error)}; its layout is not that of {kind}") from None
    if not images:
        raise ImageError(f"no images in {text}")
    seen: set[str] = set()
    for image in images:
        if image.id in seen:
            raise ImageError(f"{text} has the image {image.id} twice")
        seen.add(image.id)
    labels = [image.label for image in images if image.label is not None]
    model.check_classes(sorted(set(labels)))
    return images


def split_text(text: str) -> tuple[str, str, str]:
    """Kind, place and split of a data text."""
    kind, colon, place = text.partition(":")
    if not colon or (kind not in DATA and Path(text).exists()):
        kind, place = _guess(Path(text)), text
    place, _, split = place.rpartition("@") if "@" in Path(place).name else (place, "", "")
    if not place:
        raise SpecError(f"cannot read data {text!r}; write KIND:PLACE with a kind of {', '.join(DATA)}, or a path")
    return kind, place, split


def _guess(path: Path) -> str:
    if path.suffix.lower() == ".csv":
        return "csv"
    if path.suffix.lower() == ".tar" or (path.is_dir() and any(path.glob("*.tar"))):
        return "shards"
    return "folder"


def choose(images: Sequence[LabelledImage], limit: int | None, seed: int) -> list[LabelledImage]:
    """A seeded choice of `limit` images, in the order of the data set; a larger limit contains the smaller one."""
    if limit is None or limit >= len(images):
        return list(images)
    return [images[index] for index in sorted(drawn(len(images), seed)[:limit])]


def drawn(count: int, seed: int) -> list[int]:
    """Places of so many images in the order in which a growing limit takes them."""
    places: list[int] = torch.randperm(count, generator=generator_of(seed)).tolist()
    return places

"""Images and labels without anything held in memory but names, labels and places.

Sources: a folder of images, one folder per class (ImageNet's layout), a CSV file, or tar shards (WebDataset's layout).
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from aha.data.images import IMAGE_SUFFIXES, find_images
from aha.data.labelled import find_labelled
from aha.errors import ImageError


@dataclass(frozen=True, slots=True)
class Sample:
    """One training image: a file, or a stretch of a tar shard."""

    file: str
    label: int | None = None
    offset: int = 0
    size: int = 0

    def read(self) -> bytes | Path:
        """What `read_image` takes."""
        if not self.size:
            return Path(self.file)
        with Path(self.file).open("rb") as shard:
            shard.seek(self.offset)
            return shard.read(self.size)


def find_samples(source: str | Path, num_classes: int) -> list[Sample]:
    """All images at a source, with labels below `num_classes` where they are known."""
    path = Path(source)
    if shards := _shards(path):
        found = [sample for shard in shards for sample in _in_shard(shard)]
    elif path.suffix.lower() == ".csv":
        found = [Sample(str(image.path), image.label) for image in find_labelled([path])]
    else:
        found = _in_folder(path, num_classes)
    if not found:
        raise ImageError(f"no images to train on in {source}")
    worst = max((sample.label for sample in found if sample.label is not None), default=0)
    if worst >= num_classes:
        raise ImageError(
            f"{source} has the label {worst}, but the model has {num_classes} classes (0 to {num_classes - 1})"
        )
    return found


def _in_folder(folder: Path, num_classes: int) -> list[Sample]:
    """Images below a folder. Folders inside it are classes, in the order of their names."""
    images = find_images(folder)
    classes = sorted({image.relative_to(folder).parts[0] for image in images if image.parent != folder})
    if not classes or folder.is_file():
        return [Sample(str(image)) for image in images]
    if len(classes) != num_classes:
        raise ImageError(
            f"{folder} has {len(classes)} folders with images, but the model has {num_classes} classes; "
            "give one folder per class, one folder of images without labels, or a CSV file with the columns file, label"
        )
    index = {name: label for label, name in enumerate(classes)}
    return [Sample(str(image), index[image.relative_to(folder).parts[0]]) for image in images]


def _shards(path: Path) -> list[Path]:
    """Tar files at a path: one, all of a folder, or a range such as `train-{000..146}.tar`."""
    if range_ := re.search(r"\{(\d+)\.\.(\d+)\}", path.name):
        first, last = range_.groups()
        numbers = (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
        return [path.with_name(path.name.replace(range_.group(), number)) for number in numbers]
    if path.suffix.lower() == ".tar":
        return [path]
    return sorted(path.glob("*.tar")) if path.is_dir() else []


def _in_shard(shard: Path) -> Iterator[Sample]:
    """Images of one shard; `NAME.cls` (a number) or `NAME.json` ({"label": number}) beside `NAME.jpg` is its label."""
    try:
        with tarfile.open(shard, "r:") as archive:  # not compressed: images are read from their place
            members = (member for member in archive if member.isfile())
            for _, group in groupby(members, key=lambda member: _key(member.name)):
                image, label = None, None
                for member in group:
                    suffix = member.name[len(_key(member.name)) :].lower()
                    if suffix in IMAGE_SUFFIXES:
                        image = member
                    elif suffix in (".cls", ".json"):
                        content = archive.extractfile(member)
                        label = _label(content.read() if content else b"", suffix)
                if image is not None:
                    yield Sample(str(shard), label, image.offset_data, image.size)
    except (OSError, tarfile.TarError, ValueError) as error:
        raise ImageError(f"cannot read the shard {shard}: {error}") from None


def _key(name: str) -> str:
    """WebDataset's key: the path up to the first dot of the file's name."""
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}{file.partition('.')[0]}"


def _label(content: bytes, suffix: str) -> int | None:
    value = json.loads(content)
    if suffix == ".json":
        value = value.get("label") if isinstance(value, dict) else None
    return None if value is None else int(value)

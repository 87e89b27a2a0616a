"""Training images: nothing but names, labels and places is held in memory; and the images inside tar shards."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from aha.data.datasets import BenchImage, find_data
from aha.data.images import IMAGE_SUFFIXES
from aha.errors import ImageError
from aha.models import TargetModel


@dataclass(frozen=True, slots=True)
class Sample:
    """One training image: a file, a stretch of a tar shard, or what a data set gives."""

    file: str
    label: int | None = None
    offset: int = 0
    size: int = 0
    given: Callable[[], Any] | None = None

    def read(self) -> Any:
        """What `read_image` takes."""
        if self.given is not None:
            return self.given()
        if not self.size:
            return Path(self.file)
        with Path(self.file).open("rb") as shard:
            shard.seek(self.offset)
            return shard.read(self.size)


def find_samples(source: str | Path, model: TargetModel) -> list[Sample]:
    """All images at a source, labelled as every other command labels them (see `aha.data.datasets`)."""
    images = find_data(str(source), model)
    if all(image.label is None for image in images) and any("/" in image.id for image in images if image.path):
        folders = {image.id.partition("/")[0] for image in images if "/" in image.id}
        raise ImageError(
            f"{source} has {len(folders)} folders with images, but the model has {model.num_classes} classes; "
            "give one folder per class, one folder of images without labels, or a CSV file with the columns file, label"
        )
    return [_sample(image) for image in images]


def _sample(image: BenchImage) -> Sample:
    if image.path is not None:
        return Sample(str(image.path), image.label)
    return Sample(image.id, image.label, given=image.read)


def read_shards_at(path: Path) -> list[Sample]:
    """Images inside the tar files at a path."""
    return [sample for shard in _shards(path) for sample in _in_shard(shard)]


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

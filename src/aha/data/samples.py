"""The images that an explainer is trained on, and those inside tar shards."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

from torch.utils.data import Dataset

from aha.core.disk import check_regular
from aha.data.datasets import find_data
from aha.data.images import IMAGE_SUFFIXES, LabelledImage
from aha.errors import ImageError
from aha.models import TargetModel

_MOST_SHARDS, _MOST_DIGITS = 100_000, 18
_LONGEST_LABEL = 2**20  # bytes


Data: TypeAlias = str | Path | Sequence[Any] | Dataset[Any]
"""A data text, a list of pictures or their paths, or a Dataset that is indexed."""


def find_samples(source: Data, model: TargetModel) -> list[LabelledImage]:
    """All images at a source, labelled as every other command labels them (see `aha.data.datasets`).

    Pictures of a list or a Dataset have no labels: whether a Dataset has some is known only when all of it is read.
    """
    if not isinstance(source, str | Path):
        found = [_of_list(source, place) for place in range(len(source))]  # type: ignore[arg-type]
        if not found:
            raise ImageError("no images were given")
        return found
    images = find_data(str(source), model)
    if all(image.label is None for image in images) and any("/" in image.id for image in images if image.path):
        folders = {image.id.partition("/")[0] for image in images if "/" in image.id}
        raise ImageError(
            f"{source} has {len(folders)} folders with images, but the model has {model.num_classes} classes; "
            "give one folder per class, one folder of images without labels, or a CSV file with the columns file, label"
        )
    return images


def _of_list(source: Sequence[Any] | Dataset[Any], place: int) -> LabelledImage:
    if not isinstance(source, Dataset) and isinstance(source[place], str | Path):
        return LabelledImage(str(source[place]), str(source[place]))

    def read() -> Any:
        item = source[place]
        return item[0] if isinstance(item, tuple | list) else item

    return LabelledImage(f"image {place}", given=read)


def read_shards_at(path: Path) -> list[LabelledImage]:
    """Images inside the tar files at a path."""
    return [sample for shard in _shards(path) for sample in _in_shard(shard)]


def _shards(path: Path) -> list[Path]:
    """Tar files at a path: one, all of a folder, or a range such as `train-{000..146}.tar`."""
    if range_ := re.search(r"\{(\d+)\.\.(\d+)\}", path.name):
        first, last = range_.groups()
        if len(last) > _MOST_DIGITS or int(last) - int(first) >= _MOST_SHARDS:
            raise ImageError(f"{path.name} stands for more than {_MOST_SHARDS:,} files; give a shorter range")
        numbers = (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
        return [path.with_name(path.name.replace(range_.group(), number)) for number in numbers]
    if path.suffix.lower() == ".tar":
        return [path]
    return sorted(path.glob("*.tar")) if path.is_dir() else []


def _in_shard(shard: Path) -> Iterator[LabelledImage]:
    """Images of one shard; `NAME.cls` (a number) or `NAME.json` ({"label": number}) beside `NAME.jpg` is its label."""
    try:
        check_regular(shard)
        with tarfile.open(shard, "r:") as archive:  # not compressed: images are read from their place
            members = (member for member in archive if member.isfile() and not member.issparse())
            for _, group in groupby(members, key=lambda member: _key(member.name)):
                image, label = None, None
                for member in group:
                    suffix = member.name[len(_key(member.name)) :].lower()
                    if suffix in IMAGE_SUFFIXES:
                        image = member
                    elif suffix in (".cls", ".json"):
                        content = archive.extractfile(member)
                        label = _label(content.read(_LONGEST_LABEL) if content else b"", suffix)
                if image is not None:
                    read = partial(_stretch, str(shard), image.offset_data, image.size)
                    yield LabelledImage(f"{shard.name}/{image.offset_data}", label=label, given=read)
    except (OSError, tarfile.TarError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ImageError(f"cannot read the shard {shard}: {error}") from None


def _stretch(file: str, offset: int, size: int) -> bytes:
    with Path(file).open("rb") as shard:
        shard.seek(offset)
        return shard.read(size)


def _key(name: str) -> str:
    """WebDataset's key: the path up to the first dot of the file's name."""
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}{file.partition('.')[0]}"


def _label(content: bytes, suffix: str) -> int | None:
    value = json.loads(content)
    if suffix == ".json":
        value = value.get("label") if isinstance(value, dict) else None
    return None if value is None else int(value)

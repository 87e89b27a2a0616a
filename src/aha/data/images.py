"""Pictures one after the other, from files, folders, arrays and tensors; `core/pictures.py` reads each of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from PIL import Image

from aha.core.disk import JOURNAL, MANIFEST, readable
from aha.core.pictures import ImageSource, missing, read_image, read_named
from aha.errors import ImageError

__all__ = ["IMAGE_SUFFIXES", "ImageSource", "Picture", "Pictures", "find_images", "iter_pictures", "read_image"]

IMAGE_SUFFIXES = frozenset(
    {
        *(".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
        *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".avif"),
    }
)
"""Lower-case file name endings that a folder is searched for."""

Pictures: TypeAlias = ImageSource | Sequence[ImageSource]
"""One picture, a folder of them, or a list of either."""


@dataclass(frozen=True)
class Picture:
    """One picture and where it came from.

    Attributes:
        name: The path as text, or `image-<position>` for pictures that came from memory.
        image: Upright 8-bit RGB.
        label: True class index, where one is known.
        path: The file, or None for pictures that came from memory.
    """

    name: str
    image: Image.Image
    label: int | None = None
    path: Path | None = None


def find_images(path: Path) -> list[Path]:
    """Lists the pictures at a path: a file gives itself, a folder all pictures below it, sorted.

    Hidden files and folders and results of `aha explain` are skipped, and links to folders are not followed. Files
    inside a folder are recognised by `IMAGE_SUFFIXES`; a file that is named itself is taken as it is.

    Raises:
        ImageError: Nothing is there, or the folder has no pictures.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ImageError(f"{path} is a pipe or a device, not a file" if path.exists() else missing(str(path)))
    found = sorted(_walk(path))
    if not found:
        raise ImageError(f"no images in the folder {path} or below; looked for {' '.join(sorted(IMAGE_SUFFIXES))}")
    return found


def iter_pictures(
    inputs: Pictures,
    on_error: Callable[[str, ImageError], None] | None = None,
    first: int = 0,
) -> Iterator[Picture]:
    """Reads pictures one at a time, so that a large folder never has to fit into memory.

    Args:
        inputs: Anything `read_image` takes, a folder, or a list or tuple of these.
        on_error: Called with the name and the error of each picture that cannot be read, which is then left out.
        first: The number of the first picture, by which those from memory are named.

    Raises:
        ImageError: While iterating, at the first picture that cannot be read, unless `on_error` takes it.
    """
    sources = inputs if isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes) else [inputs]
    if not sources:
        raise ImageError("no images were given")
    position = first
    for source in sources:
        for item in _items(source):
            path = item if isinstance(item, Path) else None
            name = f"image-{position}" if path is None else readable(path)
            position += 1
            try:
                image = read_named(item, name)
            except ImageError as error:
                if on_error is None:
                    raise
                on_error(name, error)
                continue
            yield Picture(name, image, path=path)


def _items(source: ImageSource) -> Sequence[ImageSource]:
    if not isinstance(source, str | Path):
        return [source]
    # A file that is gone by now counts as one picture that cannot be read, not as the end of all reading.
    path = Path(source)
    return find_images(path) if is_folder(path) else [path]


def is_folder(path: str | Path) -> bool:
    """Is a folder there? No name that a file system refuses, because it is too long for one, is one."""
    try:
        return Path(path).is_dir()
    except OSError:
        return False


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        if Path(parent) != folder and {MANIFEST, JOURNAL} <= set(files):
            folders[:] = []  # results of an earlier run, whose pictures are not meant
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            file = Path(parent, name)
            # is_file() leaves out links whose target is gone.
            if not name.startswith(".") and file.suffix.lower() in IMAGE_SUFFIXES and file.is_file():
                yield file

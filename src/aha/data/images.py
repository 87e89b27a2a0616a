"""Images that are not read yet, with what is known about them, and where they are; `core/pictures.py` reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from numpy.typing import NDArray

from aha.core.disk import JOURNAL, MANIFEST, readable
from aha.core.pictures import ImageSource, missing, read_image
from aha.errors import AhaError, ImageError, MetricError

__all__ = [
    "IMAGE_SUFFIXES",
    "Box",
    "ImageSource",
    "LabelledImage",
    "Pictures",
    "find_images",
    "given_images",
    "named_images",
    "read_image",
]

IMAGE_SUFFIXES = frozenset(
    {
        *(".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
        *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".avif"),
    }
)
"""Lower-case file name endings that a folder is searched for."""

Pictures: TypeAlias = ImageSource | Sequence[ImageSource]
"""One picture, a folder of them, or a list of either."""


Box = tuple[float, float, float, float]
"""x0, y0, x1, y1 in the image's own pixels."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """One image and what is known about it, for every command; it and its mask are read when they are asked for.

    Lists of millions of them fit into memory, since none holds pixels. Two types are no images of a data set: a
    `Subject`, which is one that was read, as a certain model sees it, and a metric's `Sample`, which keeps what that
    model said about it.

    Attributes:
        id: its name inside the data set.
        file: where it is, if it is a file of its own, or a folder of the slices of one volume.
        label: true class of the model, if known.
        mask: gives (H, W) values: above 0 is object, 255 does not count.
        boxes: true boxes.
        given: gives what `read_image` takes, if it is no file.
    """

    id: str
    file: str | None = None
    label: int | None = None
    mask: Callable[[], NDArray[Any]] | None = None
    boxes: tuple[Box, ...] = ()
    given: Callable[[], Any] | None = None

    @property
    def path(self) -> Path | None:
        """Its file."""
        return None if self.file is None else Path(self.file)

    @property
    def source(self) -> str:
        """Its file, or its name, for messages."""
        return self.id if self.file is None else self.file

    def read(self) -> Any:
        """What `read_image` takes."""
        return self.path if self.given is None else self.given()

    def content(self) -> Any:
        """What `read` gives; whatever decoders and libraries raise is an ImageError."""
        return _whole(self.read, ImageError, f"cannot read {self.id}")

    def true_mask(self) -> NDArray[Any]:
        """What `mask` gives; whatever is wrong with it is a MetricError."""
        assert self.mask is not None
        return _whole(self.mask, MetricError, f"cannot read the mask of {self.id}")


def _whole(read: Callable[[], T], kind: type[AhaError], what: str) -> T:
    try:
        return read()
    except AhaError:
        raise
    except Exception as error:  # of a decoder or a library: one file that is damaged ends nothing else
        raise kind(f"{what}: {reason_of(error)}") from None


def reason_of(error: Exception) -> str:
    """What an error of reading says, for people."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if isinstance(error, OSError):
        return f"{error.strerror or error}"
    return f"{error}" if str(error) and isinstance(error, ValueError) else f"{type(error).__name__} {error}".strip()


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
    # is_file() leaves out links whose target is gone.
    found = sorted(
        file for _, files in walked(path) for file in files if file.suffix.lower() in IMAGE_SUFFIXES and file.is_file()
    )
    if not found:
        raise ImageError(f"no images in the folder {path} or below; looked for {' '.join(sorted(IMAGE_SUFFIXES))}")
    return found


def given_images(inputs: Pictures, first: int = 0) -> Iterator[LabelledImage]:
    """Pictures one at a time, so that a large folder never has to fit into memory.

    Args:
        inputs: Anything `read_image` takes, a folder, or a list or tuple of these.
        first: The number of the first picture, by which those from memory are named.

    Raises:
        ImageError: There are none.
    """
    sources = inputs if isinstance(inputs, Sequence) and not isinstance(inputs, str | bytes) else [inputs]
    if not sources:
        raise ImageError("no images were given")
    yield from named_images((item for source in sources for item in _items(source)), first)


def named_images(items: Iterable[Any], first: int) -> Iterator[LabelledImage]:
    """Images by their paths, or by their number where they come from memory."""
    for position, item in enumerate(items, start=first):
        if isinstance(item, str | Path):
            yield LabelledImage(readable(item), str(item))
        else:
            yield LabelledImage(f"image-{position}", given=partial(_same, item))


def _same(item: Any) -> Any:
    return item


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


def walked(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    """A folder and those below it, with the files in each; what is hidden and results of earlier runs are skipped."""
    for parent, folders, files in os.walk(folder):
        if Path(parent) != folder and {MANIFEST, JOURNAL} <= set(files):
            folders[:] = []  # results of an earlier run, whose pictures are not meant
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield Path(parent), [Path(parent, name) for name in sorted(files) if not name.startswith(".")]

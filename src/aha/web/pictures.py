"""Pictures that visitors may open: their own uploads, and those of folders that were named at the start.

A picture is known by the digest of its file. It is accepted if it decodes, whatever its name and type say, and is sent
back only as a fresh JPEG or PNG of its pixels: what else a file may carry never leaves the store.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.functional import to_pil_image

from aha.core.pictures import encoded
from aha.data.batches import Batch, Subject
from aha.data.images import find_images, read_image
from aha.errors import ImageError
from aha.models import TargetModel
from aha.models.loading.preprocessing import Geometry
from aha.web.cache import Cache
from aha.web.payloads import PictureRecord
from aha.web.reading import HERE, Asker, Readers

MAX_UPLOAD = 32 * 2**20
MAX_PIXELS = 50_000_000
MAX_SLOW_PIXELS = 12_500_000  # of JPEG 2000, which then takes two seconds
_KEPT_PIXELS = 60_000_000  # of decoded pictures in memory
_LONGEST_NAME = 120
_THUMBNAIL, _SMALL_THUMBNAIL = 512, 320  # pixels of the longer side


@dataclass(frozen=True)
class Example:
    """A picture in one of the named folders, and what people call it; it must still lie there when it is read."""

    path: Path
    title: str
    folders: tuple[Path, ...] = ()


class Pictures:
    """All pictures by key, and the examples.

    Args:
        store: where they are kept.
        examples: what is offered at once.
        folders: where pictures of runs are looked for that are not where they were.
    """

    def __init__(self, store: Cache, examples: Sequence[Example] = (), folders: Iterable[Path] = ()) -> None:
        self._store = store
        self.examples = list(examples)
        self._folders = [folder.resolve() for folder in folders]
        # Few threads for all whole pictures: each may take hundreds of megabytes, and of what many threads allocate and
        # free by turns, each would keep some room for itself. What is here already does not wait for what arrives.
        self._arrivals, self._views = Readers(2, "aha arrivals"), Readers(1, "aha pictures")
        self._lock = threading.Lock()
        self._decoded: OrderedDict[str, Image.Image] = OrderedDict()

    def add(self, content: bytes, name: str) -> PictureRecord:
        """Takes a file's content as a picture; returns its record.

        Raises:
            ImageError: It is no picture, or too large.
        """
        return self.arriving(lambda: content, name).result()

    def arriving(self, content: Callable[[], bytes], name: str, asker: Asker = HERE) -> Future[PictureRecord]:
        """The record of a picture of a visitor's, whose content is asked for when its turn comes."""
        return self._arrivals.ask(lambda: self._take_in(content(), name), asker)

    def add_listed(self, path: Path, asker: Asker = HERE) -> Future[PictureRecord]:
        """Takes a file that a run lists as a picture: who names the run offers its pictures, wherever they lie.

        One that is not where it was is looked for in the named folders, by its path and by its name.

        Raises:
            ImageError: It is not found, too large, or no picture.
        """
        tries = [path, *(folder / name for folder in self._folders for name in (path, path.name))]
        found = next((one for one in tries if one.is_file()), None)
        if found is None:
            raise ImageError(f"{path} is no longer there; start with --images FOLDER to say where its images are")
        return self.arriving(lambda: _content(found), path.name, asker)

    def open_example(self, number: int, asker: Asker = HERE) -> Future[PictureRecord]:
        """Takes an example as a picture."""
        if not 0 <= number < len(self.examples):
            raise ImageError(f"there is no example {number}; there are {len(self.examples)}")
        example = self.examples[number]
        path = _real(example)
        return self.arriving(lambda: _content(path), example.path.name, asker)

    def record(self, key: str) -> PictureRecord:
        """Name and size of a picture."""
        return self._store.get("pictures", key)

    def image(self, key: str) -> Image.Image:
        """The picture itself, decoded."""
        return self._views.ask(lambda: self._image(key)).result()

    def thumbnail(self, key: str, asker: Asker = HERE) -> Future[bytes]:
        """The whole picture, small, as a JPEG."""
        return self._views.ask(lambda: thumbnail(self._image(key)), asker)

    def example_thumbnail(self, number: int, asker: Asker = HERE) -> Future[bytes]:
        """An example, smaller still."""
        path = _real(self.examples[number])
        return self._views.ask(lambda: thumbnail(_decoded(path), _SMALL_THUMBNAIL), asker)

    def prepared(self, key: str, model: TargetModel, asker: Asker = HERE) -> Future[tuple[Tensor, Geometry]]:
        """The picture as a model's input (1, C, H, W), and where that lies in it."""

        def prepare() -> tuple[Tensor, Geometry]:
            inputs, geometry = model.stated_preprocessing()(self._image(key))
            return inputs[None], geometry

        return self._views.ask(prepare, asker)

    def batch(self, key: str, model: TargetModel) -> Batch:
        """The picture as a batch of one for a model. It holds the whole picture: for jobs, of which few run at once."""
        inputs, geometry = self.prepared(key, model).result()
        drawn_on = model.stated_preprocessing().drawn_on(self.image(key), inputs[0])
        return Batch(inputs, [Subject(self.record(key)["name"], drawn_on, geometry)])

    # In the readers' threads

    def _take_in(self, content: bytes, name: str) -> PictureRecord:
        key = hashlib.blake2b(content, digest_size=16).hexdigest()
        if (known := self._store.find("pictures", key)) is not None:
            return known
        image = _decoded(content)
        record: PictureRecord = {"key": key, "name": _shown_name(name), "width": image.width, "height": image.height}
        self._store.put("pictures", key, record, {"bin": content})
        self._keep(key, image)
        return record

    def _image(self, key: str) -> Image.Image:
        with self._lock:
            if key in self._decoded:
                self._decoded.move_to_end(key)
                return self._decoded[key]
        return self._keep(key, _decoded(self._store.content("pictures", key, "bin")))

    def _keep(self, key: str, image: Image.Image) -> Image.Image:
        image.info.clear()  # comments and profiles of the file, which Pillow would write into others
        with self._lock:
            self._decoded[key] = image
            while len(self._decoded) > 1 and sum(i.width * i.height for i in self._decoded.values()) > _KEPT_PIXELS:
                self._decoded.popitem(last=False)
        return image


def _decoded(source: Path | bytes) -> Image.Image:
    return read_image(source, MAX_PIXELS, MAX_SLOW_PIXELS)


def find_examples(folders: Iterable[Path], most: int = 500) -> list[Example]:
    """The pictures below folders, or named themselves; links that lead out of the folders are left out."""
    folders = list(folders)
    roots = tuple(folder.resolve() for folder in folders if folder.is_dir())
    found = [
        Example(path, path.stem.replace("_", " "), roots if folder.is_dir() else ())
        for folder in folders
        for path in find_images(folder)
    ]
    kept = [example for example in found if _lies_inside(example)]
    if not kept:
        raise ImageError(f"all images in {folders[0]} are links that lead out of it; name the folder they lead to")
    return kept[:most]


def _lies_inside(example: Example) -> bool:
    """A link may lead from one named folder into another, but not out of them."""
    real = example.path.resolve()
    return not example.folders or any(folder in real.parents for folder in example.folders)


def _real(example: Example) -> Path:
    if not _lies_inside(example):
        raise ImageError(f"{example.path.name} has become a link that leads out of the folders that may be read")
    return example.path.resolve()


def thumbnail(image: Image.Image, side: int = _THUMBNAIL) -> bytes:
    """A JPEG with at most so many pixels on the longer side."""
    scale = min(1.0, side / max(image.size))
    size = [max(1, round(length * scale)) for length in image.size]
    small = image.resize((size[0], size[1]), Image.Resampling.LANCZOS)
    small.info.clear()
    return encoded(small, "JPEG", quality=88)


def as_png(pixels: Tensor) -> bytes:
    """Pixels (C, H, W) in [0, 1] as a PNG, which is exact up to 8 bits."""
    return encoded(to_pil_image(pixels.detach().clamp(0, 1).float().cpu()).convert("RGB"), "PNG")


def model_view(inputs: Tensor, model: TargetModel) -> Tensor:
    """What the model sees in an input (1, C, H, W), as pixels (C, H, W) in [0, 1]."""
    with torch.no_grad():
        return model.to_pixels(inputs)[0]


def seen_window(geometry: Geometry) -> dict[str, float]:
    """The part of a picture that the model sees, in shares of its sides; beyond 0 and 1 where it is padded."""
    (height, width), (top, left, bottom, right) = geometry.original, geometry.box
    return {"top": top / height, "left": left / width, "bottom": bottom / height, "right": right / width}


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_UPLOAD:
            raise ImageError(f"{path.name} is larger than {MAX_UPLOAD // 2**20} MB")
        return path.read_bytes()
    except OSError as error:
        raise ImageError(f"{path.name} cannot be read: {error.strerror or error}") from None


def _shown_name(name: str) -> str:
    """A file name that can be shown and written: no folders, nothing unprintable, not too long."""
    last = name.replace("\\", "/").rpartition("/")[2]
    clean = "".join(letter for letter in last if letter.isprintable()).strip()
    return clean[:_LONGEST_NAME] or "picture"

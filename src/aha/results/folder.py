"""Results on disk: one folder, a file set per map, one manifest; every write is whole or not at all.

    out/
      manifest.json                          items, versions, model and digest, seed, settings; checksum of all that
      index.html                             a page of the maps, where `aha explain` wrote them
      journal.jsonl                          the same items as they were finished, with checksums (`aha.core.store`)
      cat/grad_cam_281.npz                   map (original pixels, NaN = never seen), model_map, seen
      cat/grad_cam_281_heatmap.png
      cat/grad_cam_281_overlay.png
      scan/grad_cam_1_slices.png             of a volume; heatmap and overlay show its best slice
      cat/var-grad_cam_281_composite.png     where classes were compared; the .npz then has classes and shares

An item is journalled after its files are in place, so a killed run loses at most the item in flight. The journal is
what a run continues from; the manifest is made of it. One process at a time writes to a folder; several may take turns.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NotRequired, Self, TypedDict, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from aha.core.disk import JOURNAL, MANIFEST, check_writable, place_of, result_key, versions, write_atomically, writing
from aha.core.pictures import encoded
from aha.core.store import Store, checksum, read_file, sound_lines
from aha.errors import OutputError

__all__ = ["JOURNAL", "MANIFEST", "ResultFolder", "ResultItem", "read_items"]

FORMAT = 2


class MapRecord(TypedDict):
    """A map as the journal lists it; the manifest says some of that."""

    key: str
    image: str
    method: str
    target: int
    label: str
    score: float | None
    map: str
    heatmap: str
    overlay: str
    composite: NotRequired[str]
    slices: NotRequired[str]
    seconds: float
    model: str
    model_digest: str
    card: NotRequired[str]
    quality: NotRequired[str]
    picture: str
    files: dict[str, str]  # their checksums


@dataclass(frozen=True)
class ResultItem:
    """One map, ready to be written; `image`, `method` and `target` tell it from the others in its folder.

    Attributes:
        seen: which pixels of the original the model saw; elsewhere the map is NaN.
        key: `WORK-STATE`: an existing item with the same key need not be computed again.
        picture: digest of the picture; results of another picture of the same name are dropped.
        arrays: what else belongs into the map's file.
        composite: which class wins where, if classes were compared.
        slices: of a volume, its slices from first to last, each with the map over it.
        card: how far the map can be trusted, in words, if that was measured.
        quality: how good it probably is, in words, if that can be predicted.
    """

    image: str
    method: str
    target: int
    label: str
    score: float
    original_map: NDArray[np.float32]
    model_map: NDArray[np.float32]
    seen: NDArray[np.bool_]
    heatmap: Image.Image
    overlay: Image.Image
    seconds: float
    key: str | None = None
    picture: str = ""
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    composite: Image.Image | None = None
    slices: Image.Image | None = None
    card: str = ""
    quality: str = ""


class ResultFolder:
    """A folder of results of one model, which can be extended and resumed; it is written to in a `with`.

    Args:
        folder: made when something is written for the first time.
        model: text of the model.
        digest: of its weights; a folder with results of others is refused.
        settings: what else the results depend on, for the manifest.
        wait: seconds to wait for another process that is writing there; -1 for as long as it takes.
    """

    def __init__(
        self,
        folder: str | Path,
        model: str,
        digest: str,
        settings: dict[str, Any] | None = None,
        *,
        wait: float = 0,
    ) -> None:
        self.folder = place_of(folder)
        self._model, self._digest = model, digest
        self._settings, self._wait = dict(settings or {}), wait
        self._store: Store | None = None
        check_writable(self.folder)
        self._read()

    def __enter__(self) -> Self:
        self._store = Store(self.folder / JOURNAL, self.folder, wait=self._wait)
        try:
            self._read()  # again: another process may have written until now
        except BaseException:
            self._store.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._store is not None
        try:
            if self._items:
                self._finish()
        finally:
            self._store.close()
            self._store = None

    def __len__(self) -> int:
        return len(self._items)

    @property
    def manifest(self) -> Path:
        """Where the results are listed."""
        return self.folder / MANIFEST

    def is_listed(self) -> bool:
        """Does the manifest say what there is?"""
        if not self._items:
            return True
        try:
            found = json.loads(self.manifest.read_text(encoding="utf-8"))
            check = found.pop("checksum")
            return bool(found["items"] == self._listed()) and check == _checksum_of(found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return False

    def records(self) -> list[MapRecord]:
        """All maps that are there, in the order in which they were made."""
        return list(self._items.values())

    def knows(self, image: str) -> bool:
        """Is there any result of an image of this name?"""
        return image in self._pictures

    def has(self, key: str) -> bool:
        """Is there a result of this key, with all its files as they were written?"""
        item = self._keyed.get(key)
        if item is None or self._items.get(_place(item)) is not item:
            return False
        return all(read_file(self.folder, item, name) is not None for name in item["files"])

    def add(self, item: ResultItem) -> None:
        """Writes one map's files, then records it."""
        if self._store is None:
            raise OutputError(f"{self.folder} is not open for writing")
        stem = f"{self._stem_of(item.image, item.method)}_{item.target}"
        pictures = {
            "heatmap": item.heatmap,
            "overlay": item.overlay,
            "composite": item.composite,
            "slices": item.slices,
        }
        content = {kind: encoded(picture, "PNG") for kind, picture in pictures.items() if picture is not None}
        names = {kind: f"{stem}_{kind}.png" for kind in content}
        facts: dict[str, Any] = {
            "image": item.image,
            "method": item.method,
            "target": item.target,
            "label": item.label,
            "score": item.score if math.isfinite(item.score) else None,
            "map": f"{stem}.npz",
            **names,
            "seconds": item.seconds,
            "model": self._model,
            "model_digest": self._digest,
            "picture": item.picture,
            **({"card": item.card} if item.card else {}),
            **({"quality": item.quality} if item.quality else {}),
        }
        key = item.key or f"{result_key(item.image, item.method, item.target)[:16]}-saved"
        files = {names[kind]: data for kind, data in content.items()}
        self._remember(cast("MapRecord", self._store.put(key, facts, {facts["map"]: _packed(item), **files})))

    def note(self, facts: dict[str, Any]) -> None:
        """Adds what became known during the work to the settings that the manifest states."""
        self._settings |= facts

    def _finish(self) -> None:
        """Drops what was found for pictures that are no more, and writes the manifest of all others."""
        dropped = self._drop_stale()
        text = self._listing()
        with writing(self.folder):
            for item in dropped:
                for name in item["files"]:
                    (self.folder / name).unlink(missing_ok=True)
            write_atomically(self.manifest, lambda file: file.write(text))

    def _drop_stale(self) -> list[MapRecord]:
        stale = _stale(list(self._items.values()))
        for item in stale:
            del self._items[_place(item)]
        return stale

    def _listed(self) -> list[dict[str, Any]]:
        return [{n: v for n, v in item.items() if n not in _NOT_LISTED} for item in self._items.values()]

    def _listing(self) -> bytes:
        """The manifest."""
        manifest = {
            "format": FORMAT,
            "model": self._model,
            "model_digest": self._digest,
            "seed": self._settings.get("seed"),
            "settings": self._settings,
            "versions": versions(),
            "items": self._listed(),
        }
        return json.dumps({**manifest, "checksum": _checksum_of(manifest)}, indent=1).encode()

    def _read(self) -> None:
        """Reads what is there."""
        self._items: dict[tuple[str, str, int], MapRecord] = {}
        self._keyed: dict[str, MapRecord] = {}
        self._pictures: set[str] = set()
        # Lower-case names, since not every file system tells cases apart -> image, or image and method.
        self._folders: dict[str, str] = {MANIFEST: "", JOURNAL: ""}
        self._stems: dict[str, tuple[str, str]] = {}
        for item in _journal(self.folder):
            if (item["model"], item["model_digest"]) != (self._model, self._digest):
                raise OutputError(
                    f"{self.folder} holds results of {item['model']} (other weights or model); choose another"
                )
            self._remember(item)
        self._drop_stale()

    def _remember(self, item: MapRecord) -> None:
        place = _place(item)
        self._items.pop(place, None)  # so that the last written is the last
        self._items[place] = self._keyed[item["key"]] = item
        self._pictures.add(item["image"])
        stem = item["map"].lower().removesuffix(f"_{item['target']}.npz")
        self._folders[stem.partition("/")[0]] = item["image"]
        self._stems[stem] = item["image"], item["method"]

    def _stem_of(self, image: str, method: str) -> str:
        """Where an image's maps of one method go; what reads alike as a file name is kept apart by a digest."""
        folder = _slug(Path(image).stem)
        if self._folders.setdefault(folder.lower(), image) != image:
            folder = f"{folder}-{_short_digest(image)}"
            self._folders[folder.lower()] = image
        stem = f"{folder}/{_slug(method)}"
        if self._stems.setdefault(stem.lower(), (image, method)) != (image, method):
            stem = f"{stem}-{_short_digest(method)}"
            self._stems[stem.lower()] = image, method
        return stem


def read_items(folder: Path) -> list[MapRecord]:
    """The maps of a folder that count: the last of each image, method and class, of the last picture of that name."""
    items: dict[tuple[str, str, int], MapRecord] = {}
    for item in _journal(folder):
        items.pop(_place(item), None)
        items[_place(item)] = item
    stale = set(map(_place, _stale(list(items.values()))))
    return [item for place, item in items.items() if place not in stale]


def _journal(folder: Path) -> list[MapRecord]:
    """What was finished, oldest first.

    Raises:
        OutputError: There is a manifest that no journal stands behind, or the journal is of version 0.1.
    """
    path = folder / JOURNAL
    if not path.is_file() and (folder / MANIFEST).is_file():
        raise OutputError(f"{path.with_name(MANIFEST)} is not a manifest of aha explain; choose another folder")
    lines = sorted(sound_lines([path]), key=lambda line: line.turn) if path.is_file() else []
    records = [line.record() for line in lines]
    if not all("files" in record for record in records):
        raise OutputError(f"{folder} holds maps of aha 0.1, which are no longer read; choose another folder")
    return [cast("MapRecord", record) for record in records]


_NOT_LISTED = ("model", "model_digest", "picture", "files")


def _stale(items: Sequence[MapRecord]) -> list[MapRecord]:
    """Of items in the order of their making, those of another picture than the last one of that name."""
    latest = {item["image"]: item["picture"] for item in items if item["picture"]}
    return [item for item in items if item["picture"] not in ("", latest.get(item["image"]))]


def _place(item: MapRecord) -> tuple[str, str, int]:
    return item["image"], item["method"], item["target"]


def _checksum_of(manifest: Mapping[str, Any]) -> str:
    return checksum(json.dumps(manifest).encode())


def _packed(item: ResultItem) -> bytes:
    content = io.BytesIO()
    arrays: dict[str, Any] = {"map": item.original_map, "model_map": item.model_map, "seen": item.seen, **item.arrays}
    np.savez_compressed(content, **arrays)  # with `allow_pickle=False`, NumPy 2.1 would store an array of that name
    return content.getvalue()


def _slug(text: str, length: int = 80) -> str:
    """A file name that reads like the text; a digest keeps long ones apart."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "image"
    if len(name) <= length:
        return name
    return f"{name[: length - 9]}-{_short_digest(text)}"


def _short_digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()

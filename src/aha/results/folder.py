"""Results on disk: one folder, a file set per map, one manifest; every write is whole or not at all.

    out/
      manifest.json                          items, versions, model and digest, seed, settings
      journal.jsonl                          items finished since the last manifest; gone when the run is complete
      cat/grad_cam_281.npz                   map (original pixels, NaN = never seen), model_map, seen
      cat/grad_cam_281_heatmap.png
      cat/grad_cam_281_overlay.png
      cat/var-grad_cam_281_composite.png     where classes were compared; the .npz then has classes and shares

An item is journalled after its files are in place, so a killed run loses at most the item in flight.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from aha.core.disk import check_writable, versions, write_atomically, writing
from aha.errors import OutputError

MANIFEST, JOURNAL = "manifest.json", "journal.jsonl"
FORMAT = 1


@dataclass(frozen=True)
class ResultItem:
    """One map, ready to be written; `image`, `method` and `target` tell it from the others in its folder.

    Attributes:
        seen: which pixels of the original the model saw; elsewhere the map is NaN.
        key: freshness: an existing item with the same key need not be computed again.
        arrays: what else belongs into the map's file.
        composite: which class wins where, if classes were compared.
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
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    composite: Image.Image | None = None


class ResultFolder:
    """A folder of results of one model, which can be extended and resumed."""

    def __init__(self, folder: str | Path, model: str, digest: str, settings: dict[str, Any] | None = None) -> None:
        self.folder = Path(folder)
        self._header = {"model": model, "model_digest": digest}
        self._settings = dict(settings or {})
        self._items: dict[tuple[str, str, int], dict[str, Any]] = {}
        # Lower-case names, since not every file system tells cases apart -> image, or image and method.
        self._folders: dict[str, str] = {MANIFEST: "", JOURNAL: ""}
        self._stems: dict[str, tuple[str, str]] = {}
        self._is_open = False
        check_writable(self.folder)
        self._read(model, digest)

    def __len__(self) -> int:
        return len(self._items)

    @property
    def keys(self) -> set[str]:
        """Keys of the finished items whose files are all there."""
        names = ("map", "heatmap", "overlay")
        whole = (i for i in self._items.values() if all((self.folder / i[name]).is_file() for name in names))
        return {item["key"] for item in whole if item.get("key")}

    def add(self, item: ResultItem) -> None:
        """Writes one map's files, then records it. The folder itself is made for the first of them."""
        if not self._is_open:
            # The journal does not say whose it is: a manifest that does must be there before it. And a journal of a
            # killed run may end in half a line, which must not be continued.
            self.finish()
            self._is_open = True
        stem = f"{self._stem_of(item.image, item.method)}_{item.target}"
        pictures = {"heatmap": item.heatmap, "overlay": item.overlay, "composite": item.composite}
        shown = {kind: picture for kind, picture in pictures.items() if picture is not None}
        names = {"map": f"{stem}.npz"} | {kind: f"{stem}_{kind}.png" for kind in shown}
        arrays = io.BytesIO()
        np.savez_compressed(
            arrays, allow_pickle=False, map=item.original_map, model_map=item.model_map, seen=item.seen, **item.arrays
        )
        with writing(self.folder):
            (self.folder / stem).parent.mkdir(exist_ok=True)
            write_atomically(self.folder / names["map"], lambda file: file.write(arrays.getvalue()))
            for kind, picture in shown.items():
                write_atomically(self.folder / names[kind], partial(picture.save, format="PNG"))
            entry = {
                "image": item.image,
                "method": item.method,
                "target": item.target,
                "label": item.label,
                "score": item.score if math.isfinite(item.score) else None,
                **names,
                "seconds": item.seconds,
                "key": item.key,
            }
            with (self.folder / JOURNAL).open("a", encoding="utf-8") as journal:
                journal.write(json.dumps(entry) + "\n")
        self._items[item.image, item.method, item.target] = entry

    def note(self, facts: dict[str, Any]) -> None:
        """Adds what became known during the work to the settings that the manifest states."""
        self._settings |= facts

    def finish(self) -> Path:
        """Writes the manifest of all items so far and drops the journal. Returns the manifest's path."""
        manifest = {
            "format": FORMAT,
            **self._header,
            "seed": self._settings.get("seed"),
            "settings": self._settings,
            "versions": versions(),
            "items": list(self._items.values()),
        }
        path = self.folder / MANIFEST
        text = json.dumps(manifest, indent=1).encode()
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda file: file.write(text))
            (self.folder / JOURNAL).unlink(missing_ok=True)
        return path

    def _read(self, model: str, digest: str) -> None:
        path = self.folder / MANIFEST
        if path.is_file():
            try:
                manifest = json.loads(path.read_text(encoding="utf-8"))
                items, known = manifest["items"], (manifest["model"], manifest["model_digest"])
            except (ValueError, KeyError, TypeError):
                raise OutputError(f"{path} is not a manifest of ours; choose another folder") from None
            if known != (model, digest):
                raise OutputError(f"{self.folder} holds results of {known[0]} (other weights or model); choose another")
            for item in items:
                self._remember(item)
        journal = self.folder / JOURNAL
        if journal.is_file():
            for line in journal.read_text(encoding="utf-8").splitlines():
                try:
                    self._remember(json.loads(line))
                except ValueError:
                    break  # the line that was being written when the run was killed

    def _remember(self, item: dict[str, Any]) -> None:
        self._items[item["image"], item["method"], item["target"]] = item
        stem = str(item["map"]).lower().removesuffix(f"_{item['target']}.npz")
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


def _slug(text: str, length: int = 80) -> str:
    """A file name that reads like the text; a digest keeps long ones apart."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "image"
    if len(name) <= length:
        return name
    return f"{name[: length - 9]}-{_short_digest(text)}"


def _short_digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()

"""A run on disk: ledgers of finished cells (see `aha.core.ledger`), and the maps that were kept.

    run/
      plans.jsonl            what was asked for, each time it was: plan, digest, versions, images, methods left out
      rows/0000.jsonl        cells of the first process; each process appends to its own ledger
      maps/0000-000.bin      kept maps and pictures, where plans ask for them; the cells say where in it

A cell is one image, method, protocol and kind of target. Its line is written when everything before it is in place.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from aha.bench.records import Cell, MapPlace, PicturePlace, PlanEntry
from aha.core.disk import result_key
from aha.core.ledger import Appender, Ledger, Line, checksum, latest_keys, sound_lines
from aha.core.pictures import read_image
from aha.errors import OutputError

PLANS, ROWS, MAPS = "plans.jsonl", "rows", "maps"
_SHARD_BYTES = 1 << 30
_QUALITY = 88


class Store(Ledger):
    """The run folder as one process writes it.

    Use it in a `with`; only one process at a time can hold the same rank of a folder.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder, self._rank = folder, rank
        self._maps: Appender | None = None
        super().__init__(
            folder / ROWS / f"{rank:04d}.jsonl",
            folder,
            siblings=lambda: ledgers(folder),
            is_sound=lambda line: is_cell(line) and _has_its_maps(folder, line),
        )

    def sync(self) -> None:
        """Brings what was added to the disk, maps before the cells that speak of them."""
        if self._maps is not None:
            self._maps.sync()
        super().sync()

    def close(self) -> None:
        """Brings everything to the disk and lets other processes write."""
        if self._maps is not None:
            self._maps.sync()
            self._maps.close()
            self._maps = None
        super().close()

    def record_plan(self, entry: PlanEntry) -> None:
        """Notes what is about to be done, unless that is noted already."""
        key = f"{result_key(json.dumps(entry, sort_keys=True))}-plan"
        with Ledger(self.folder / PLANS, self.folder, is_sound=_is_plan) as plans:
            plans.add([{"key": key, **entry}])

    def keep_map(self, values: NDArray[np.float32], precision: str) -> MapPlace:
        """Stores a map (H, W) and returns where."""
        # Maps have no unit and may lie far outside the range of half precision.
        scale = float(np.abs(values).max()) or 1.0
        content = (values / np.float32(scale)).astype(precision).tobytes()
        name, offset = self._keep(content)
        height, width = values.shape
        return name, offset, height, width, precision, scale, checksum(content)

    def keep_picture(self, picture: Image.Image) -> PicturePlace:
        """Stores a picture and returns where."""
        buffer = io.BytesIO()
        picture.save(buffer, format="JPEG", quality=_QUALITY)
        content = buffer.getvalue()
        name, offset = self._keep(content)
        return name, offset, len(content), checksum(content)

    def _keep(self, content: bytes) -> tuple[str, int]:
        if self._maps is None or self._maps.size + len(content) > _SHARD_BYTES:
            if self._maps is not None:
                self._maps.sync()
                self._maps.close()
            self._maps = self._next_shard(len(content))
        return self._maps.path.name, self._maps.append(content)

    def _next_shard(self, needed: int) -> Appender:
        number = 0
        while True:
            path = self.folder / MAPS / f"{self._rank:04d}-{number:03d}.bin"
            if not path.is_file() or path.stat().st_size + needed <= _SHARD_BYTES:
                return Appender(path)
            number += 1


# Cells

_SHARED: tuple[Literal["model", "digest", "method", "protocol", "asked"], ...] = (
    "model",
    "digest",
    "method",
    "protocol",
    "asked",
)
_TEXTS = ("key", *_SHARED, "image")


def ledgers(folder: Path) -> list[Path]:
    """The ledgers of all processes of a run."""
    return sorted((folder / ROWS).glob("*.jsonl"))


def is_cell(line: Line) -> bool:
    """Is it one of ours? Lines with a checksum are; those of earlier versions are looked at."""
    if line.turn > 0:
        return True
    cell = line.record()
    try:
        return all(isinstance(cell[name], str) for name in _TEXTS) and _is_found(cell)
    except (KeyError, TypeError, ValueError):
        return False


def _is_found(cell: Mapping[str, Any]) -> bool:
    for metric, reason in cell["failures"]:
        if not isinstance(metric, str) or not isinstance(reason, str):
            return False
    for found in cell["found"]:
        for _metric, _reference, value in found["rows"]:
            float(value)
        for _kind, _reference, shares, scores in found["curves"]:
            tuple(map(float, (*shares, *scores)))
        if type(found["target"]) is not int or not isinstance(found["score"], float | int):
            return False
    return cell["label"] is None or type(cell["label"]) is int


def work_of(model: str, digest: str, method: str, protocol: str, asked: str, image: str) -> str:
    """What a cell is about, as the first part of its key says it."""
    return result_key(model, digest, method, protocol, asked, image)[:16]


def current_keys(folder: Path) -> dict[str, str]:
    """Work -> the key that counts, of all finished cells, whichever process did them; none if there is no such folder.

    For counting what is missing: whether kept maps are as they should be is looked at when work begins.
    """
    return latest_keys(sound_lines(ledgers(folder), is_cell))


def read_cells(folder: Path) -> list[Cell]:
    """All cells of a run, each once, in an order that does not depend on how the work was shared.

    Where pictures, their truth or methods have changed since, cells of their former state do not count any more. What
    came later shows from the turns of the ledgers, since clocks may go back.
    """
    if not (folder / ROWS).is_dir():
        raise OutputError(f"{folder} is not the folder of a run")
    found: dict[str, tuple[int, Cell]] = {}
    for line in sound_lines(ledgers(folder), is_cell):
        cell = cast("Cell", line.record())
        # Keys of earlier versions do not say what a cell is about.
        work = work_of(cell["model"], cell["digest"], cell["method"], cell["protocol"], cell["asked"], cell["image"])
        if work not in found or found[work][0] <= line.turn:
            found[work] = line.turn, cell
    latest: dict[Circumstance, tuple[int, str]] = {}
    for turn, cell in found.values():
        for about, now in _circumstances(cell).items():
            latest[about] = max(latest.get(about, (0, "")), (turn, now))
    return [c for _, c in found.values() if all(latest[about][1] == now for about, now in _circumstances(c).items())]


class Circumstance(NamedTuple):
    """Something that the numbers of several cells hang on: what it is, for people, and of which model, image, ..."""

    what: str
    of: tuple[str, ...]


def _circumstances(cell: Cell) -> dict[Circumstance, str]:
    """What a cell's numbers hang on beside its own work, and its state; what old cells do not say is left out."""
    image = (cell["model"], cell["digest"], cell["image"])  # mosaics are made for a model
    name, method = cell["image"], cell["method"]
    words = {"boxes": "different boxes", "mask": "a different mask"}
    found = {
        Circumstance(f"{words[w]} for {name}", image): now for w, now in cell.get("truth", {}).items() if w in words
    }
    if cell["label"] is not None:
        found[Circumstance(f"a different label for {name}", image)] = str(cell["label"])
    if "content" in cell:
        found[Circumstance(f"a different image {name}", image)] = cell["content"]
    if "state" in cell:
        found[Circumstance(f"a different version of {method}", tuple(cell[part] for part in _SHARED))] = cell["state"]
    if "saved" in cell:
        found[Circumstance(f"different maps by {method} for {name}", image)] = cell["saved"]
    return found


def other_circumstance(cells: Iterable[Cell], others: Iterable[Cell]) -> str:
    """A picture, its truth, a method or its maps, that are not the same in two runs; empty if there is none."""
    known = {about: now for cell in cells for about, now in _circumstances(cell).items()}
    different = (
        about.what for cell in others for about, now in _circumstances(cell).items() if known.get(about, now) != now
    )
    return next(different, "")


def merge_cells(cells: Iterable[Cell], plans: Iterable[PlanEntry], out: Path) -> None:
    """Writes cells and plans of other runs as a run of its own."""
    with Store(out) as store:
        store.add(cells)
        for plan in plans:
            plan.pop("key", None)
            store.record_plan(plan)


# Plans

_IN_PLANS = {
    "plan": dict,
    "model": str,
    "digest": str,
    "methods": list,
    "protocols": dict,
    "asked": list,
    "images": int,
    "left_out": dict,
}


def read_plans_of(folder: Path) -> list[PlanEntry]:
    """What was asked of a run, oldest first."""
    path = folder / PLANS
    return [cast("PlanEntry", line.record()) for line in sound_lines([path], _is_plan)] if path.is_file() else []


class OtherSetting(NamedTuple):
    """A setting in which earlier results of a model differ from others."""

    name: str
    former: object
    value: object


def other_setting(earlier: Iterable[PlanEntry], digest: str, settings: Mapping[str, object]) -> OtherSetting | None:
    """What the earlier results of a model are found not to have in common with those of these settings."""
    for entry in earlier:
        # What the record of an earlier version does not say cannot be compared.
        former: Mapping[str, object] = entry.get("settings", {}) if entry["digest"] == digest else {}
        for name, value in settings.items():
            if former.get(name, value) != value:
                return OtherSetting(name, former[name], value)
    return None


def _is_plan(line: Line) -> bool:
    if line.turn > 0:
        return True
    entry = line.record()
    return all(isinstance(entry.get(name), kind) for name, kind in _IN_PLANS.items())


# Maps


def read_map(folder: Path, where: MapPlace) -> NDArray[np.float32]:
    """The map (H, W) that `Store.keep_map` stored."""
    name, offset, height, width, precision, scale, *check = where
    content = _stretch(folder, name, offset, height * width * np.dtype(precision).itemsize, *check)
    return np.frombuffer(content, dtype=precision).reshape(height, width).astype(np.float32) * np.float32(scale)


def read_picture(folder: Path, where: PicturePlace) -> Image.Image:
    """The picture that `Store.keep_picture` stored."""
    return read_image(_stretch(folder, *where))


def _stretch(folder: Path, name: str, offset: int, length: int, check: str = "") -> bytes:
    """Bytes of a file of maps; runs of earlier versions have no checksum of them."""
    with (folder / MAPS / Path(name).name).open("rb") as file:
        file.seek(offset)
        content = file.read(length)
    if len(content) < length or (check and checksum(content) != check):
        raise ValueError(f"{folder / MAPS / name} is damaged")
    return content


def _has_its_maps(folder: Path, line: Line) -> bool:
    """Are the maps and the picture that a cell speaks of as they were written?"""
    if b'"map":' not in line.content and b'"picture":' not in line.content:
        return True
    cell = line.record()
    kept = [found["map"] for found in cell["found"] if "map" in found]
    try:
        for where in kept:
            read_map(folder, where)
        if "picture" in cell:
            _stretch(folder, *cell["picture"])
    except (OSError, ValueError, TypeError, IndexError, KeyError):
        return False
    return True

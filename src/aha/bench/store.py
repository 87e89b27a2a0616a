"""A run on disk: finished cells, one line each (see `aha.core.store`), and the maps that were kept.

    run/
      plans.jsonl            what was asked for, each time it was: plan, digest, versions, images, methods left out
      rows/0000.jsonl        cells of the first process; each process appends to a file of its own
      maps/0000-000.bin      kept maps and pictures, where plans ask for them; the cells say where in it

A cell is one image, method, protocol and kind of target. Its line is written when everything before it is in place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from aha.bench.records import Cell, MapPlace, PicturePlace, PlanEntry
from aha.core.disk import result_key
from aha.core.pictures import encoded, read_image
from aha.core.store import Line, Packs, Store, Stretch, latest_keys, sound_lines
from aha.errors import OutputError

PLANS, ROWS, MAPS = "plans.jsonl", "rows", "maps"
_QUALITY = 88


class RunStore(Store):
    """The run folder as one process writes it.

    Use it in a `with`; only one process at a time can hold the same rank of a folder.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        super().__init__(
            folder / ROWS / f"{rank:04d}.jsonl",
            folder,
            siblings=lambda: row_files(folder),
            packs=Packs(folder / MAPS, f"{rank:04d}"),
            is_sound=lambda line: _has_its_maps(folder, line),
        )

    def record_plan(self, entry: PlanEntry) -> None:
        """Notes what is about to be done, unless that is noted already."""
        key = f"{result_key(json.dumps(entry, sort_keys=True))}-plan"
        with Store(self.folder / PLANS, self.folder) as plans:
            plans.add([{"key": key, **entry}])

    def keep_map(self, values: NDArray[np.float32], precision: str) -> MapPlace:
        """Stores a map (H, W) and returns where."""
        # Maps have no unit and may lie far outside the range of half precision.
        scale = float(np.abs(values).max()) or 1.0
        found = self.pack((values / np.float32(scale)).astype(precision).tobytes())
        height, width = values.shape
        return found.file, found.offset, height, width, precision, scale, found.check

    def keep_picture(self, picture: Image.Image) -> PicturePlace:
        """Stores a picture and returns where."""
        return self.pack(encoded(picture, "JPEG", quality=_QUALITY))


# Cells

_SHARED: tuple[Literal["model", "digest", "method", "protocol", "asked"], ...] = (
    "model",
    "digest",
    "method",
    "protocol",
    "asked",
)


def row_files(folder: Path) -> list[Path]:
    """The files of cells of all processes of a run."""
    return sorted((folder / ROWS).glob("*.jsonl"))


def work_of(model: str, digest: str, method: str, protocol: str, asked: str, image: str) -> str:
    """What a cell is about, as the first part of its key says it."""
    return result_key(model, digest, method, protocol, asked, image)[:16]


def current_keys(folder: Path) -> dict[str, str]:
    """Work -> the key that counts, of all finished cells, whichever process did them; none if there is no such folder.

    For counting what is missing: whether kept maps are as they should be is looked at when work begins.
    """
    return latest_keys(sound_lines(row_files(folder)))


def read_cells(folder: Path) -> list[Cell]:
    """All cells of a run, each once, in an order that does not depend on how the work was shared.

    Where pictures, their truth or methods have changed since, cells of their former state do not count any more. What
    came later shows from the turns of the lines, since clocks may go back.
    """
    if not (folder / ROWS).is_dir():
        raise OutputError(f"{folder} is not the folder of a run")
    found: dict[str, tuple[int, Cell]] = {}
    for line in sound_lines(row_files(folder)):
        if line.work not in found or found[line.work][0] <= line.turn:
            found[line.work] = line.turn, cast("Cell", line.record())
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
    """What a cell's numbers hang on beside its own work, and its state."""
    image = (cell["model"], cell["digest"], cell["image"])  # mosaics are made for a model
    name, method = cell["image"], cell["method"]
    words = {"boxes": "different boxes", "mask": "a different mask"}
    found = {Circumstance(f"{words[w]} for {name}", image): now for w, now in cell["truth"].items() if w in words}
    if cell["label"] is not None:
        found[Circumstance(f"a different label for {name}", image)] = str(cell["label"])
    found[Circumstance(f"a different image {name}", image)] = cell["content"]
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
    with RunStore(out) as store:
        store.add(cells)
        for plan in plans:
            plan.pop("key", None)
            store.record_plan(plan)


# Plans


def read_plans_of(folder: Path) -> list[PlanEntry]:
    """What was asked of a run, oldest first."""
    path = folder / PLANS
    return [cast("PlanEntry", line.record()) for line in sound_lines([path])] if path.is_file() else []


class OtherSetting(NamedTuple):
    """A setting in which earlier results of a model differ from others."""

    name: str
    former: object
    value: object


def other_setting(earlier: Iterable[PlanEntry], digest: str, settings: Mapping[str, object]) -> OtherSetting | None:
    """What the earlier results of a model are found not to have in common with those of these settings."""
    for entry in earlier:
        former = cast("Mapping[str, object]", entry["settings"]) if entry["digest"] == digest else {}
        for name, value in settings.items():
            if former.get(name, value) != value:
                return OtherSetting(name, former[name], value)
    return None


# Maps


def read_map(folder: Path, where: MapPlace) -> NDArray[np.float32]:
    """The map (H, W) that `RunStore.keep_map` stored."""
    name, offset, height, width, precision, scale, check = where
    content = Stretch(name, offset, height * width * np.dtype(precision).itemsize, check).read(folder / MAPS)
    return np.frombuffer(content, dtype=precision).reshape(height, width).astype(np.float32) * np.float32(scale)


def read_picture(folder: Path, where: PicturePlace) -> Image.Image:
    """The picture that `RunStore.keep_picture` stored."""
    return read_image(Stretch(*where).read(folder / MAPS))


def _has_its_maps(folder: Path, line: Line) -> bool:
    """Are the maps and the picture that a cell speaks of as they were written?"""
    if b'"map":' not in line.content and b'"picture":' not in line.content:
        return True
    cell = line.record()
    try:
        for found in cell["found"]:
            if "map" in found:
                read_map(folder, found["map"])
        if cell.get("picture") is not None:
            Stretch(*cell["picture"]).read(folder / MAPS)
    except (OSError, ValueError):
        return False
    return True

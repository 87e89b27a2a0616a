"""A run on disk: lines that are only ever appended, one per finished cell, each with a key of all it depends on.

    run/
      plans.jsonl            what was asked for, each time it was: plan, digest, versions, images, methods left out
      rows/0000.jsonl        cells of the first process; each process appends to its own file
      maps/0000-000.bin      kept maps and pictures, where plans ask for them; the cells say where in it

A cell is one image, method, protocol and kind of target. Its line is written when everything before it is in place, so
a run that is killed loses the cells in flight and nothing else; half a line at the end is cut off when the file is
opened again. Whether a cell is done is asked of its key alone.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from aha.core.disk import check_writable, writing
from aha.errors import OutputError

PLANS, ROWS, MAPS = "plans.jsonl", "rows", "maps"
_START = b'{"key":"'  # so that a key is found without reading the rest of the line
_SHARD_BYTES = 1 << 30
_QUALITY = 88


class Appender:
    """A file of this process alone, to which whole pieces are appended, or nothing."""

    def __init__(self, path: Path) -> None:
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = path.open("ab", buffering=0)
        if not _lock(self._file):
            self._file.close()
            raise OutputError(
                f"another process is writing to {path.parent.parent}; wait for it, or choose another folder"
            )
        self.path = path

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._file.fileno()).st_size

    def append(self, content: bytes) -> int:
        """Adds the bytes and returns where they start; on a full disk, the file stays as it was."""
        start = self.size
        view = memoryview(content)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self.truncate(start)
            raise OutputError(f"cannot write to {self.path}: {error.strerror or error}") from error
        return start

    def truncate(self, size: int) -> None:
        """Cuts off what is behind `size`."""
        if size < self.size:
            self._file.truncate(size)

    def sync(self) -> None:
        """Until the disk has it: a power cut loses nothing then."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Gives the file back."""
        self._file.close()


class Store:
    """The run folder as one process writes it: `keys` of all processes' cells, `add` for its own.

    Use it in a `with`; only one process at a time can hold the same rank of a folder.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        check_writable(folder)
        self.folder, self._rank = folder, rank
        self._rows = Appender(folder / ROWS / f"{rank:04d}.jsonl")
        self._maps: Appender | None = None
        self._cut_torn_line()
        self.keys = known_keys(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Brings everything to the disk and lets other processes write."""
        for file in (self._maps, self._rows):
            if file is not None:
                file.sync()
                file.close()
        self._maps = None

    def record_plan(self, entry: dict[str, Any]) -> None:
        """Notes what is about to be done, unless the last entry says the same."""
        line = json.dumps(entry).encode() + b"\n"
        known = self.folder / PLANS
        if not known.is_file() or line not in known.read_bytes().splitlines(keepends=True):
            file = Appender(known)
            try:
                if file.size and not known.read_bytes().endswith(b"\n"):
                    line = b"\n" + line
                file.append(line)
            finally:
                file.close()

    def add(self, cells: Iterable[dict[str, Any]]) -> None:
        """Appends finished cells in one piece; each has a `key`, and one that is known already is left out."""
        fresh = {cell["key"]: cell for cell in cells if cell["key"] not in self.keys}
        if fresh:
            self._rows.append(b"".join(encode(cell) for cell in fresh.values()))
            self.keys.update(fresh)

    def sync(self) -> None:
        """Brings what was added to the disk."""
        if self._maps is not None:
            self._maps.sync()
        self._rows.sync()

    def keep_map(self, values: NDArray[np.float32], precision: str) -> list[Any]:
        """Stores a map (H, W) and returns where: file, offset, height, width, type, scale."""
        # Maps have no unit and may lie far outside the range of half precision.
        scale = float(np.abs(values).max()) or 1.0
        content = (values / np.float32(scale)).astype(precision).tobytes()
        name, offset = self._keep(content)
        return [name, offset, *values.shape, precision, scale]

    def keep_picture(self, picture: Image.Image) -> list[Any]:
        """Stores a picture and returns where: file, offset, bytes."""
        buffer = io.BytesIO()
        picture.save(buffer, format="JPEG", quality=_QUALITY)
        name, offset = self._keep(buffer.getvalue())
        return [name, offset, len(buffer.getvalue())]

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

    def _cut_torn_line(self) -> None:
        start, line = 0, b""
        with self._rows.path.open("rb") as file:
            for following in file:
                start, line = start + len(line), following
        if line and not _is_sound(line):
            self._rows.truncate(start)


def encode(cell: dict[str, Any]) -> bytes:
    """A cell as its line; the key comes first."""
    ordered = {"key": cell["key"], **{name: value for name, value in cell.items() if name != "key"}}
    return json.dumps(ordered, separators=(",", ":")).encode() + b"\n"


def is_whole(line: bytes) -> bool:
    """Was the line written to its end? After a power cut, what never reached the disk may read as zeros."""
    return line.startswith(_START) and line.endswith(b"}\n") and b"\0" not in line


def _is_sound(line: bytes) -> bool:
    try:
        return is_whole(line) and bool(json.loads(line))
    except ValueError:
        return False


def _keyed_lines(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted((folder / ROWS).glob("*.jsonl")):
        with path.open("rb") as file:
            for line in file:
                if is_whole(line):
                    yield line[len(_START) : line.index(b'"', len(_START))].decode(), line


def known_keys(folder: Path) -> set[str]:
    """Keys of all finished cells of a run, whichever process did them; none if there is no such folder."""
    return {key for key, _ in _keyed_lines(folder)}


def read_cells(folder: Path) -> list[dict[str, Any]]:
    """All cells of a run, each once, in an order that does not depend on how the work was shared."""
    if not (folder / ROWS).is_dir():
        raise OutputError(f"{folder} is not the folder of a run")
    cells = {}
    for key, line in _keyed_lines(folder):
        try:
            cells[key] = json.loads(line)
        except ValueError:
            continue  # damaged by something else; the cell counts as missing
    return list(cells.values())


def read_plans_of(folder: Path) -> list[dict[str, Any]]:
    """What was asked of a run, oldest first."""
    path = folder / PLANS
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # half a line of a killed run
    return found


def read_map(folder: Path, where: list[Any]) -> NDArray[np.float32]:
    """The map (H, W) that `Store.keep_map` stored."""
    name, offset, height, width, precision, scale = where
    content = _stretch(folder, name, offset, height * width * np.dtype(precision).itemsize)
    return np.frombuffer(content, dtype=precision).reshape(height, width).astype(np.float32) * np.float32(scale)


def read_picture(folder: Path, where: list[Any]) -> Image.Image:
    """The picture that `Store.keep_picture` stored."""
    return Image.open(io.BytesIO(_stretch(folder, *where))).convert("RGB")


def _stretch(folder: Path, name: str, offset: int, length: int) -> bytes:
    with (folder / MAPS / Path(name).name).open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _lock(file: IO[bytes]) -> bool:
    """Takes the file for this process, until it is closed or the process ends; where locks exist."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True

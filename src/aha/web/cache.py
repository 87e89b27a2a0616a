"""What the explorer keeps: results and pictures in one folder, each under the key of its content (`aha.core.store`).

    cache/
      results/KEY.json     a record; written after its files, so what has one is whole
      results/KEY.npz      its arrays, if it has any
      pictures/KEY.bin     a picture as it was uploaded; never served as it is
      pictures/KEY.json    its name and size
      sessions/KEY.json    a visitor's pictures and view, for links

The folder may be deleted at any time. Beyond its size limit the results that were not looked at for longest go first.
"""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray

from aha.core.disk import check_writable, remove_partials
from aha.core.store import read_file, read_record, write_record
from aha.errors import AhaError
from aha.web.payloads import PictureRecord, Result, Session

Kind = Literal["results", "pictures", "sessions"]
Record = Result | PictureRecord | Session

_KEY = re.compile(r"[0-9a-f]{32}")
_TRIM_EVERY = 32  # writes between two looks at the size of the folder


class Gone(AhaError):
    """Nothing is kept under this key."""


class Cache:
    """Records with arrays, by kind and key.

    Args:
        folder: made when something is written for the first time.
        max_bytes: size beyond which the oldest records go.
    """

    def __init__(self, folder: Path, max_bytes: int = 2 * 2**30) -> None:
        check_writable(folder)
        remove_partials(folder)
        self.folder = folder
        self._max_bytes = max_bytes
        self._writes = 0
        self._lock = threading.Lock()

    def put(self, kind: Kind, key: str, record: Record, files: Mapping[str, bytes] | None = None) -> None:
        """Writes a record, its files first; readers see all of it or nothing."""
        path = self._path(kind, key, "json")
        try:
            json.dumps(record, allow_nan=False)
        except ValueError:
            raise AhaError("the model's score is not a finite number here") from None
        named = {f"{key}.{suffix}": content for suffix, content in (files or {}).items()}
        with self._lock:
            write_record(path, {"record": record}, named)
            self._writes += 1
            if self._writes % _TRIM_EVERY == 0:
                self._trim()

    @overload
    def find(self, kind: Literal["results"], key: str) -> Result | None: ...
    @overload
    def find(self, kind: Literal["pictures"], key: str) -> PictureRecord | None: ...
    @overload
    def find(self, kind: Literal["sessions"], key: str) -> Session | None: ...

    def find(self, kind: Kind, key: str) -> Record | None:
        """The record under this key, if there is one; what is damaged counts as never made."""
        kept = self._kept(kind, key)
        return None if kept is None else kept["record"]

    def _kept(self, kind: Kind, key: str) -> dict[str, Any] | None:
        """A record, and the checksums of its files."""
        path = self._path(kind, key, "json")
        try:
            kept = read_record(path)
            os.utime(path)  # looked at just now
        except OSError:
            return None
        return kept

    @overload
    def get(self, kind: Literal["results"], key: str) -> Result: ...
    @overload
    def get(self, kind: Literal["pictures"], key: str) -> PictureRecord: ...
    @overload
    def get(self, kind: Literal["sessions"], key: str) -> Session: ...

    def get(self, kind: Kind, key: str) -> Record:
        """The record under this key.

        Raises:
            Gone: There is none.
        """
        record = self.find(kind, key)
        if record is None:
            raise _gone(kind, key)
        return record

    def content(self, kind: Kind, key: str, suffix: str) -> bytes:
        """A file of a record; with a damaged one goes the record, so that it is made again."""
        path, kept = self._path(kind, key, suffix), self._kept(kind, key)
        content = None if kept is None else read_file(path.parent, kept, path.name)
        if content is None:
            if kept is not None and path.name in kept.get("files", {}):
                path.with_suffix(".json").unlink(missing_ok=True)
            raise _gone(kind, key)
        return content

    def array(self, key: str, name: str) -> NDArray[Any]:
        """One array of a result."""
        content = self.content("results", key, "npz")
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                found: NDArray[Any] = arrays[name]
                return found
        except (KeyError, ValueError):  # a name out of a visitor's address
            raise Gone(f"result {key} has no array {name!r}") from None

    def _path(self, kind: Kind, key: str, suffix: str) -> Path:
        # The only way from a visitor's text to a file: 32 hexadecimal digits reach nothing else.
        if not _KEY.fullmatch(key):
            raise Gone(f"{key[:40]!r} is not a key")
        return self.folder / kind / f"{key}.{suffix}"

    def _trim(self) -> None:
        folders = [self.folder / kind for kind in get_args(Kind) if (self.folder / kind).is_dir()]
        files = {record: own for folder in folders for record, own in _files(folder).items()}
        sizes = {record: sum(file.stat().st_size for file in own) for record, own in files.items()}
        total = sum(sizes.values())
        for record in sorted(files, key=lambda path: path.stat().st_mtime):
            if total <= self._max_bytes:
                break
            total -= sizes[record]
            record.unlink(missing_ok=True)  # first, so that nothing is ever half there
            for file in files[record]:
                file.unlink(missing_ok=True)


def _files(folder: Path) -> dict[Path, list[Path]]:
    """The files of each record, itself among them; the folder is listed once, for it may hold very many."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    found: dict[Path, list[Path]] = {folder / name: [] for name in names if name.endswith(".json")}
    for name in names:
        own = found.get(folder / f"{name.partition('.')[0]}.json")
        if own is not None:
            own.append(folder / name)
    return found


def _gone(kind: Kind, key: str) -> Gone:
    return Gone(f"no {kind.removesuffix('s')} {key}; it was never here, or was removed to make room")

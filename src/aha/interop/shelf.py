"""The shards of a folder: which rows they hold, new ones, and rows that do not count any more.

A row says what its picture is called (`key`) and in which state of all that its maps depend on they were made
(`state`). A shard has a checksum of its rows. It is compared when a picture that the shard holds comes up, so that a
process reads the shards of its own pictures, not those of all others.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from aha.core.arrays import read_arrays
from aha.core.disk import remove_partials, result_key, write_atomically, writing
from aha.core.store import checksum, locked
from aha.errors import DamageWarning
from aha.interop.arrow import arrow

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["parquet", "webdataset"]
SUFFIXES: dict[str, str] = {"parquet": ".parquet", "webdataset": ".tar"}
_LOCK_SECONDS = 600.0
_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, tarfile.TarError)  # Arrow's errors are among them


class Shard(NamedTuple):
    """Whose weights the maps of a shard are of, and its rows: picture and state."""

    digest: str
    rows: frozenset[tuple[str, str]]


class Shelf:
    """The shards of a folder as one of the processes that write there sees them."""

    def __init__(self, folder: Path, form: Format) -> None:
        self._folder, self._suffix = folder, SUFFIXES[form]
        self._shards: dict[Path, Shard] = {}
        self._sound: set[Path] = set()  # those whose checksum was compared
        self._holders: defaultdict[str, set[Path]] = defaultdict(set)  # by picture
        remove_partials(folder)
        for path in sorted(path for suffix in SUFFIXES.values() for path in folder.glob(f"*{suffix}")):
            self._look(path, ("key", "state"))

    def has_others(self, digest: str) -> bool:
        """Are there maps of other weights than those with this digest?"""
        for path in [path for path, shard in self._shards.items() if shard.digest != digest]:
            self._look(path)  # a damaged one says nothing about weights
        return any(shard.digest != digest for shard in self._shards.values())

    def has(self, key: str, state: str) -> bool:
        """Are a picture's rows there, in this state of things, and as they were written?"""
        for path in [*self._holders[key]]:
            if path not in self._sound:
                self._look(path)
        return any((key, state) in self._shards[path].rows for path in self._holders[key])

    def add(self, rows: pa.Table, states: Mapping[str, str]) -> None:
        """Writes rows as a shard, if there are any; `states` by picture."""
        if len(rows):
            found = [states[key] for key in rows["key"].to_pylist()]
            table = rows.drop_columns(["error"]).append_column("state", arrow().array(found, arrow().string()))
            name = result_key(*sorted(_shard(table).rows))[:32]
            self._write(table, self._folder / f"{name}{self._suffix}")

    def drop_former(self, states: Mapping[str, str]) -> None:
        """Takes out rows of these pictures that were made in another state, where there are rows of this one."""
        replaced = {key: state for key, state in states.items() if self.has(key, state)}
        former = {
            path
            for key, state in replaced.items()
            for path in self._holders[key]
            if any(name == key and other != state for name, other in self._shards[path].rows)
        }
        if former:
            lock = locked(self._folder / "shards", self._folder, _LOCK_SECONDS)
            try:
                for path in former:
                    self._take_out(path, replaced)
            finally:
                lock.release()

    def _take_out(self, path: Path, replaced: Mapping[str, str]) -> None:
        self._forget(path)
        if not path.is_file():  # another process took out the rest
            return
        table = _READERS[path.suffix](path)
        rows = zip(table["key"].to_pylist(), table["state"].to_pylist(), strict=True)
        kept = [replaced.get(key, state) == state for key, state in rows]
        if any(kept):
            self._write(table.filter(arrow().array(kept)), path)
        else:
            with writing(self._folder):
                path.unlink(missing_ok=True)

    def _write(self, table: pa.Table, path: Path) -> None:
        metadata = {**table.schema.metadata, b"sum": _sum_of(table).encode()}
        content = table.replace_schema_metadata(metadata)
        with writing(self._folder):
            write_atomically(path, lambda file: _WRITERS[path.suffix](content, file))
        self._remember(path, _shard(table))
        self._sound.add(path)

    def _look(self, path: Path, columns: tuple[str, ...] = ()) -> None:
        """Reads a shard, or some of its columns; only the whole of it can be compared with its checksum."""
        self._forget(path)
        try:
            table = _READERS[path.suffix](path, columns)
            if not columns and table.schema.metadata[b"sum"].decode() != _sum_of(table):
                raise ValueError
            self._remember(path, _shard(table))
        except FileNotFoundError:
            return  # another process has taken out the last of its rows
        except _DAMAGE:
            warnings.warn(f"{path} is damaged and dropped; its images are explained again", DamageWarning, 4)
            with writing(self._folder):
                path.unlink(missing_ok=True)
            return
        if not columns:
            self._sound.add(path)

    def _remember(self, path: Path, shard: Shard) -> None:
        self._shards[path] = shard
        for key, _ in shard.rows:
            self._holders[key].add(path)

    def _forget(self, path: Path) -> None:
        self._sound.discard(path)
        if (shard := self._shards.pop(path, None)) is not None:
            for key, _ in shard.rows:
                self._holders[key].discard(path)


def _shard(table: pa.Table) -> Shard:
    rows = frozenset(zip(table["key"].to_pylist(), table["state"].to_pylist(), strict=True))
    return Shard(table.schema.metadata[b"digest"].decode(), rows)


def _sum_of(table: pa.Table) -> str:
    """Checksum of all that the rows say, however they are stored."""
    whose = [table.schema.metadata[name].decode() for name in (b"model", b"digest")]
    columns = [table[name].to_pylist() for name in sorted(table.column_names) if name != "map"]
    maps = table["map"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return checksum(json.dumps([whose, columns]).encode() + maps.astype("<f4").tobytes())


# Parquet


def _write_parquet(table: pa.Table, file: Any) -> None:
    arrow().parquet.write_table(table, file, compression="zstd")


def _read_parquet(path: Path, columns: tuple[str, ...] = ()) -> pa.Table:
    """A shard, or some columns of it, as far as it has them."""
    with path.open("rb") as file:
        stored = arrow().parquet.ParquetFile(file)
        known = [name for name in columns if name in stored.schema_arrow.names]
        return stored.read(columns=known or None)


# WebDataset


def _write_webdataset(table: pa.Table, file: Any) -> None:
    """A sample per map: NAME.json with the row, NAME.npy with the map."""
    metadata = {name.decode(): value.decode() for name, value in table.schema.metadata.items()}
    number = table.schema.field("map").type.value_type.to_pandas_dtype()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for row in table.to_pylist():
            values, key = row.pop("map"), f"{row['key']} {row['method']} {row['target']}"
            # Dots end a sample's name, and slashes would be folders.
            name = f"{re.sub(r'[^A-Za-z0-9_-]+', '-', key)[:80].strip('-')}-{result_key(key)[:8]}"
            _add(tar, f"{name}.json", json.dumps({**row, **metadata}).encode())
            if values is not None:
                content = io.BytesIO()
                stored = np.asarray(values, dtype=number).reshape(row["height"], row["width"])
                np.save(content, stored, allow_pickle=False)
                _add(tar, f"{name}.npy", content.getvalue())


def _read_webdataset(path: Path, columns: tuple[str, ...] = ()) -> pa.Table:
    """The rows of a shard, or some columns of them."""
    rows: list[dict[str, Any]] = []
    metadata: dict[str, str] = {}
    with tarfile.open(path) as tar:
        for row, values in _samples(tar, with_maps=not columns):
            metadata = {name: str(row.pop(name, "")) for name in ("model", "digest", "sum")}
            rows.append({name: row.get(name) for name in columns} if columns else {**row, "map": values})
    table = arrow().Table.from_pylist(rows).replace_schema_metadata(metadata)
    if not columns and all(row["map"] is None for row in rows):  # kept without maps, as which nothing shows their type
        nothing = arrow().nulls(len(rows), arrow().list_(arrow().float16()))
        table = table.set_column(table.column_names.index("map"), "map", nothing)
    return table


def _samples(tar: tarfile.TarFile, *, with_maps: bool) -> Iterator[tuple[dict[str, Any], Any]]:
    members = {member.name: member for member in tar}
    for name, member in members.items():
        if name.endswith(".json"):
            stored = members.get(f"{name.removesuffix('.json')}.npy") if with_maps else None
            values = None if stored is None else read_arrays(_content(tar, stored))[""].ravel()
            yield json.loads(_content(tar, member)), values


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return b"" if file is None else file.read()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


_WRITERS: dict[str, Callable[[Any, Any], None]] = {".parquet": _write_parquet, ".tar": _write_webdataset}
_READERS: dict[str, Callable[..., Any]] = {".parquet": _read_parquet, ".tar": _read_webdataset}

"""State on disk: records as lines with checksums, and the files that belong to them.

    {"key":"WORK-STATE","sum":"CHECKSUM","turn":3, ...}

A store is a file of such lines that is only ever appended to, by one writer at a time; several processes have a file
each. A key names the piece of work and, behind a dash, the state of all that it depends on. Work that is done again,
because something it depends on has changed, is appended with another state and a later turn: of lines about the same
work the latest counts. What a record needs besides, files or stretches of a pack, is in place before its line: the
line is the transaction, and a process that is killed loses what it had in hand, and nothing else. A line or file whose
checksum is wrong does not count, so that its work is done again.

A file of one such line, written afresh each time, keeps what is known of a piece of work as a whole (`write_record`).

This form was measured against SQLite (`benchmarks/store.py`; figures in docs/architecture.md).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from filelock import FileLock, Timeout

from aha.core.disk import check_writable, remove_partials, write_atomically, writing
from aha.errors import DamageWarning, OutputError

_HEAD = re.compile(rb'\{"key":"([^"\\]*)"(,"sum":"([0-9a-f]{16})"),"turn":([1-9][0-9]{0,8})')
_MOST_NAMED = 5


def checksum(content: bytes) -> str:
    """16 digits by which damage shows."""
    return hashlib.blake2b(content, digest_size=8).hexdigest()


class Line(NamedTuple):
    """A line that can be trusted: its key, its turn and all of it."""

    key: str
    turn: int
    content: bytes

    @property
    def work(self) -> str:
        """What the line is about, whatever the state of things it depends on."""
        return self.key.partition("-")[0]

    def record(self) -> dict[str, Any]:
        """The record without what the store added to it."""
        found: dict[str, Any] = json.loads(self.content)
        return {name: value for name, value in found.items() if name not in ("sum", "turn")}


IsSound = Callable[[Line], bool]
"""Does what a line speaks of exist as it says?"""


def encode(record: Mapping[str, Any], turn: int = 1) -> bytes:
    """A record, which has a `key`, as a line with its checksum."""
    rest = {name: value for name, value in record.items() if name != "key"}
    plain = json.dumps({"key": record["key"], "turn": turn, **rest}, separators=(",", ":")).encode() + b"\n"
    place = plain.index(b',"turn"')
    return plain[:place] + f',"sum":"{checksum(plain)}"'.encode() + plain[place:]


def _decoded(content: bytes) -> Line | None:
    """The line, if it was written to its end and nothing has changed it since."""
    if not content.endswith(b"}\n"):
        return None
    head = _HEAD.match(content)
    if head is None:
        return None
    key, _, found, turn = head.groups()
    start, end = head.span(2)
    sound = checksum(content[:start] + content[end:]) == found.decode()
    return Line(key.decode(), int(turn), content) if sound else None


def read_lines(path: Path) -> Iterator[tuple[int, Line | None]]:
    """Number and content of each line; None where it is damaged. Half a line at the end, as kills leave it, is none."""
    with path.open("rb") as file:
        for number, content in enumerate(file, start=1):
            line = _decoded(content)
            if line is not None or content.endswith(b"\n"):
                yield number, line


def write_record(path: Path, record: Mapping[str, Any], files: Mapping[str, bytes] | None = None) -> None:
    """Writes a file that is one line with its checksum, and before it the files beside it that belong to the record."""
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        content = encode({"key": path.name, **record, **write_files(path.parent, files or {})})
        write_atomically(path, lambda file: file.write(content))


def read_record(path: Path) -> dict[str, Any] | None:
    """What `write_record` wrote under this name; None where it is damaged."""
    line = _decoded(path.read_bytes())
    if line is None or line.key != path.name:
        return None
    return {name: value for name, value in line.record().items() if name != "key"}


def write_files(folder: Path, files: Mapping[str, bytes]) -> dict[str, dict[str, str]]:
    """Writes files below a folder, each whole or not at all; what the record says of them: names and checksums."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, lambda file, content=content: file.write(content))  # type: ignore[misc]
    return {"files": {name: checksum(content) for name, content in files.items()}} if files else {}


def read_file(folder: Path, record: Mapping[str, Any], name: str) -> bytes | None:
    """A file of a record, as it was written; None where there is none, or it is damaged."""
    try:
        content = (folder / name).read_bytes()
    except OSError:
        return None
    return content if record.get("files", {}).get(name) == checksum(content) else None


class Stretch(NamedTuple):
    """Where in a file of packs something is: file, offset, bytes and checksum."""

    file: str
    offset: int
    length: int
    check: str

    def read(self, folder: Path) -> bytes:
        """What is there.

        Raises:
            ValueError: It is damaged.
        """
        path = folder / Path(self.file).name
        with path.open("rb") as file:
            file.seek(self.offset)
            content = file.read(self.length)
        if checksum(content) != self.check:
            raise ValueError(f"{path} is damaged")
        return content


def sound_lines(paths: Iterable[Path], is_sound: IsSound | None = None) -> Iterator[Line]:
    """All lines that can be trusted; others are named in a warning and left out."""
    for path in paths:
        damaged = list[int]()
        yield from _sound(path, is_sound, damaged)
        if damaged:
            _warn_of_damage(path, damaged, "left out")


def _sound(path: Path, is_sound: IsSound | None, damaged: list[int]) -> Iterator[Line]:
    """Lines of a file that can be trusted; the numbers of others are noted."""
    for number, line in read_lines(path):
        if line is None or (is_sound is not None and not is_sound(line)):
            damaged.append(number)
        else:
            yield line


def latest_keys(lines: Iterable[Line]) -> dict[str, str]:
    """Work -> the key that counts."""
    turns: dict[str, tuple[int, str]] = {}
    for line in lines:
        if line.turn >= turns.get(line.work, (0, ""))[0]:
            turns[line.work] = line.turn, line.key
    return {work: key for work, (_, key) in turns.items()}


def is_done(key: str, done: Mapping[str, str]) -> bool:
    """Is the work done, in this state of things? `done` as `latest_keys` gives it."""
    return done.get(key.partition("-")[0]) == key


def _warn_of_damage(path: Path, numbers: Sequence[int], what: str) -> None:
    """Says which lines of a file are damaged and what becomes of them."""
    named = ", ".join(map(str, numbers[:_MOST_NAMED])) + (", ..." if len(numbers) > _MOST_NAMED else "")
    lines = f"line {named} is" if len(numbers) == 1 else f"{len(numbers)} lines ({named}) are"
    warnings.warn(f"{path}: {lines} damaged and {what}", DamageWarning, stacklevel=3)


class Appender:
    """A file to which whole pieces are appended, or nothing."""

    def __init__(self, path: Path) -> None:
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] = path.open("ab", buffering=0)
        self.path = path

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return os.fstat(self._file.fileno()).st_size

    def append(self, content: bytes) -> int:
        """Adds the bytes and returns where they start; on a full disk, the file stays as it was."""
        facts = os.fstat(self._file.fileno())
        if facts.st_nlink == 0:  # what is written now could never be read
            raise OutputError(f"{self.path} was deleted while it was being written to; the work in hand is lost")
        start = facts.st_size
        view = memoryview(content)
        try:
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self._file.truncate(start)
            raise OutputError(f"cannot write to {self.path}: {error.strerror or error}") from error
        return start

    def sync(self) -> None:
        """Until the disk has it: a power cut loses nothing then."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Gives the file back."""
        self._file.close()


class Packs:
    """Files in which many small things are packed one behind the other, by one writer."""

    def __init__(self, folder: Path, name: str, most: int = 1 << 30) -> None:
        self._folder, self._name, self._most = folder, name, most
        self._file: Appender | None = None

    def add(self, content: bytes) -> Stretch:
        """Appends something; another file is begun where this one would grow beyond its size."""
        if self._file is None or self._file.size + len(content) > self._most:
            self.close()
            self._file = self._next(len(content))
        return Stretch(self._file.path.name, self._file.append(content), len(content), checksum(content))

    def _next(self, needed: int) -> Appender:
        for number in count():
            path = self._folder / f"{self._name}-{number:03d}.bin"
            if not path.is_file() or path.stat().st_size + needed <= self._most:
                return Appender(path)
        raise AssertionError

    def sync(self) -> None:
        """Brings what was added to the disk."""
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        """Brings everything to the disk and gives the file back."""
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file = None


class Store:
    """A store as its writer has it, in a `with`: locked, repaired, and open at its end.

    Args:
        path: the file.
        folder: the run that it belongs to.
        siblings: gives the files of all writers of the run, this one included.
        packs: where the small things are packed that records speak of, if there are any.
        is_sound: lines of which this is not true are dropped, as damaged ones are.
        wait: seconds to wait for another writer; -1 for as long as it takes.

    Attributes:
        latest: work -> the key that counts, of all writers.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        *,
        siblings: Callable[[], Iterable[Path]] | None = None,
        packs: Packs | None = None,
        is_sound: IsSound | None = None,
        wait: float = 0,
    ) -> None:
        check_writable(folder)
        self.path, self.folder, self._packs = path, folder, packs
        self._lock = locked(path, folder, wait)
        try:
            remove_partials(folder)
            _repair(path, is_sound)
            self._turn = 1

            def noticed(line: Line) -> Line:
                self._turn = max(self._turn, line.turn + 1)
                return line

            own = [path] if path.is_file() else []  # sound, now that it is repaired
            others = [other for other in siblings() if other != path and other.is_file()] if siblings else []
            lines = chain(sound_lines(own), sound_lines(others, is_sound))
            self.latest = latest_keys(map(noticed, lines))
            self._file = Appender(path)
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def done(self, key: str) -> bool:
        """Is the work done, in this state of things?"""
        return is_done(key, self.latest)

    def put(self, key: str, record: Mapping[str, Any], files: Mapping[str, bytes] | None = None) -> dict[str, Any]:
        """Writes files, by their names below the folder, and then the record; returns it as it is read back."""
        with writing(self.folder):
            whole = {"key": key, **record, **write_files(self.folder, files or {})}
        self._append([whole])
        return whole

    def pack(self, content: bytes) -> Stretch:
        """Keeps something small of which a record is going to speak."""
        assert self._packs is not None
        return self._packs.add(content)

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Appends records in one piece; each has a `key`. What is done already, or comes twice, is left out."""
        self._append(list({record["key"]: record for record in records if not self.done(record["key"])}.values()))

    def _append(self, records: Sequence[Mapping[str, Any]]) -> None:
        if records:
            self._file.append(b"".join(encode(record, self._turn) for record in records))
            self.latest.update((record["key"].partition("-")[0], record["key"]) for record in records)

    def sync(self) -> None:
        """Brings what was added to the disk, packs before the lines that speak of them."""
        if self._packs is not None:
            self._packs.sync()
        self._file.sync()

    def close(self) -> None:
        """Brings everything to the disk and lets others write."""
        try:
            if self._packs is not None:
                self._packs.close()
            self._file.sync()
            self._file.close()
        finally:
            self._lock.release()


def locked(path: Path, folder: Path, wait: float) -> FileLock:
    """The right to write to a file of a run, until it is given back or the process ends."""
    # A file of its own, since a repaired store is another file under the same name.
    place = folder / f".{path.stem}.lock"
    with writing(folder):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place)
        try:
            lock.acquire(timeout=wait)
        except Timeout:
            raise OutputError(
                f"another process is writing to {folder}; wait for it, or choose another folder"
            ) from None
    return lock


def _repair(path: Path, is_sound: IsSound | None) -> None:
    """Drops what cannot be trusted: the work is done again, and its line does not come up any more."""
    if not path.is_file():
        return
    damaged = list[int]()
    kept = sum(len(line.content) for line in _sound(path, is_sound, damaged))
    if kept == path.stat().st_size:
        return
    if damaged:
        _warn_of_damage(path, damaged, "dropped; what it says is computed again")
    dropped = set(damaged)

    def write(file: IO[bytes]) -> None:
        for number, line in read_lines(path):
            if line is not None and number not in dropped:
                file.write(line.content)

    with writing(path.parent):
        write_atomically(path, write)

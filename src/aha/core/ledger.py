"""Ledgers: files of lines that are only ever appended, one per finished piece of work, by one writer at a time.

    {"key":"WHAT-STATE","sum":"CHECKSUM","turn":3, ...}

A key names the piece of work and, behind a dash, the state of all that it depends on. Work that is done again, because
something it depends on has changed, is appended with another state and a later turn: of lines about the same work the
latest counts. A line whose checksum is wrong does not count, so that its work is done again. What is written before it
is in place before it: a process that is killed loses what it had in hand, and nothing else.

Lines of earlier versions have no checksum. They are taken as they are where they stand before the first that has one.

A file of one such line, written afresh each time, keeps what is known of a piece of work as a whole (`write_record`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
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
    """A line that can be trusted: its key, its turn (0 in ledgers of earlier versions) and all of it."""

    key: str
    turn: int
    content: bytes

    @property
    def work(self) -> str:
        """What the line is about, whatever the state of things it depends on."""
        return self.key.partition("-")[0]

    def record(self) -> dict[str, Any]:
        """The record without what the ledger added to it."""
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


def _decoded(content: bytes, *, may_be_old: bool) -> Line | None:
    """The line, if it was written to its end and nothing has changed it since."""
    if not content.endswith(b"}\n"):
        return None
    head = _HEAD.match(content)
    if head is None:
        return _old(content) if may_be_old else None
    key, _, found, turn = head.groups()
    start, end = head.span(2)
    sound = checksum(content[:start] + content[end:]) == found.decode()
    return Line(key.decode(), int(turn), content) if sound else None


def _old(content: bytes) -> Line | None:
    """A line of an earlier version, which says less about itself."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    key = str(record.get("key") or "")
    return Line(key, 0, content) if "-" not in key else None  # such keys came with checksums


def read_lines(path: Path) -> Iterator[tuple[int, Line | None]]:
    """Number and content of each line; None where it is damaged. Half a line at the end, as kills leave it, is none."""
    may_be_old = True
    with path.open("rb") as file:
        for number, content in enumerate(file, start=1):
            line = _decoded(content, may_be_old=may_be_old)
            may_be_old = may_be_old and (line is None or line.turn == 0)
            if line is not None or content.endswith(b"\n"):
                yield number, line


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a file that is one line with its checksum."""
    content = encode({"key": path.name, **record})
    with writing(path.parent):
        write_atomically(path, lambda file: file.write(content))


def read_record(path: Path) -> dict[str, Any] | None:
    """What `write_record` wrote; None where it is damaged."""
    line = _decoded(path.read_bytes(), may_be_old=False)
    return None if line is None else {name: value for name, value in line.record().items() if name != "key"}


def sound_lines(paths: Iterable[Path], is_sound: IsSound | None = None) -> Iterator[Line]:
    """All lines that can be trusted; others are named in a warning and left out."""
    for path in paths:
        damaged = []
        for number, line in read_lines(path):
            if line is None or (is_sound is not None and not is_sound(line)):
                damaged.append(number)
            else:
                yield line
        if damaged:
            warn_of_damage(path, damaged, "left out")


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


def warn_of_damage(path: Path, numbers: Sequence[int], what: str) -> None:
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


class Ledger:
    """A ledger as its writer has it, in a `with`: locked, repaired, and open at its end.

    Args:
        path: the file.
        folder: the run that it belongs to.
        siblings: gives the ledgers of all writers of the run, this one included.
        is_sound: lines of which this is not true are dropped, as damaged ones are.
        wait: seconds to wait for another writer; -1 for as long as it takes.

    Attributes:
        done: work -> the key that counts, of all writers.
    """

    def __init__(
        self,
        path: Path,
        folder: Path,
        *,
        siblings: Callable[[], Iterable[Path]] | None = None,
        is_sound: IsSound | None = None,
        wait: float = 0,
    ) -> None:
        check_writable(folder)
        self.path = path
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
            self.done = latest_keys(map(noticed, lines))
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

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Appends records; what is done already, and what comes twice, is left out."""
        self.append({record["key"]: record for record in records if not is_done(record["key"], self.done)}.values())

    def append(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Appends records in one piece; each has a `key`."""
        fresh = list(records)
        if fresh:
            self._file.append(b"".join(encode(record, self._turn) for record in fresh))
            self.done.update((record["key"].partition("-")[0], record["key"]) for record in fresh)

    def sync(self) -> None:
        """Brings what was added to the disk."""
        self._file.sync()

    def close(self) -> None:
        """Brings everything to the disk and lets others write."""
        try:
            self._file.sync()
            self._file.close()
        finally:
            self._lock.release()


def locked(path: Path, folder: Path, wait: float) -> FileLock:
    """The right to write to a file of a run, until it is given back or the process ends."""
    # A file of its own, since a repaired ledger is another file under the same name.
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
    damaged, kept = [], 0
    for number, line in read_lines(path):
        if line is None or (is_sound is not None and not is_sound(line)):
            damaged.append(number)
        else:
            kept += len(line.content)
    if kept == path.stat().st_size:
        return
    if damaged:
        warn_of_damage(path, damaged, "dropped; what it says is computed again")
    dropped = set(damaged)

    def write(file: IO[bytes]) -> None:
        for number, line in read_lines(path):
            if line is not None and number not in dropped:
                file.write(line.content)

    with writing(path.parent):
        write_atomically(path, write)

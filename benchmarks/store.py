"""Which form for state on disk: lines with checksums (`aha.core.store`), or an SQLite database in WAL mode.

    python benchmarks/store.py                      # all of it, in a folder of its own
    python benchmarks/store.py --rows 100000 --kills 20

Both get the same records, each with a checksum and in a transaction of its own. Printed are losses after kills, time of
two writers, records that survive damage, and what a million rows cost.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sqlite3
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

from aha.core.disk import result_key
from aha.core.store import Store, checksum, sound_lines

BLOCK = 4096
FORKS = multiprocessing.get_context("fork")


class Database:
    """Records in an SQLite database, as a store would have them."""

    def __init__(self, path: Path) -> None:
        self._sql = sqlite3.connect(path, timeout=60, isolation_level=None)
        self._sql.execute("PRAGMA journal_mode=WAL")
        self._sql.execute("PRAGMA synchronous=NORMAL")
        self._sql.execute("CREATE TABLE IF NOT EXISTS records (work TEXT PRIMARY KEY, state, record, sum)")

    def add(self, records: list[dict[str, Any]]) -> None:
        rows = []
        for record in records:
            work, _, state = record["key"].partition("-")
            text = json.dumps(record, separators=(",", ":"))
            rows.append((work, state, text, checksum(text.encode())))
        self._sql.execute("BEGIN IMMEDIATE")
        self._sql.executemany("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)", rows)
        self._sql.execute("COMMIT")

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *error: object) -> None:
        self._sql.close()


def lines_of(path: Path) -> Store:
    return Store(path, path.parent)


def read_lines_of(path: Path) -> Iterator[dict[str, Any]]:
    for line in sound_lines([path]):
        yield line.record()


def read_database(path: Path) -> Iterator[dict[str, Any]]:
    """All that can still be read: rows from the front up to the damage, then from the back."""
    seen: set[int] = set()
    for order in ("", "DESC"):
        with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(path)) as sql:
            sql.text_factory = bytes
            for number, text, check in sql.execute(f"SELECT rowid, record, sum FROM records ORDER BY rowid {order}"):
                if number in seen:
                    return
                seen.add(number)
                if isinstance(text, bytes) and check == checksum(text).encode():
                    yield json.loads(text)


class Form(NamedTuple):
    name: str
    file: str
    open: Callable[[Path], Any]
    read: Callable[[Path], Iterator[dict[str, Any]]]


FORMS = {
    "lines": Form("lines", "x.jsonl", lines_of, read_lines_of),
    "SQLite": Form("SQLite", "x.sqlite", Database, read_database),
}


def record(number: int) -> dict[str, Any]:
    """As large as a cell of a benchmark usually is."""
    rows = [["ins_del", "black", number / 7], ["insertion", "black", 0.5], ["deletion", "black", 0.25]]
    found = [{"target": number % 1000, "score": number / 3, "rows": rows, "curves": []}]
    facts = {"model": "timm:resnet18", "method": "grad_cam", "image": f"val/{number:08d}.jpg", "found": found}
    return {"key": f"{result_key(number)[:16]}-{result_key('state')}", "number": number, **facts}


def write_for_ever(form: Form, path: Path) -> None:
    """Says after each record that it is written."""
    with form.open(path) as store:
        for number in range(sum(1 for _ in form.read(path)), 10**9):
            store.add([record(number)])
            os.write(1, b"%d\n" % number)


class Child:
    """A process that does the work and writes down a pipe; one of ours, since importing takes seconds."""

    def __init__(self, work: Callable[..., None], *args: Any) -> None:
        self.out, end = os.pipe()
        self._process = FORKS.Process(target=self._run, args=(end, work, *args))
        self._process.start()
        os.close(end)

    def _run(self, end: int, work: Callable[..., None], *args: Any) -> None:
        os.dup2(end, 1)
        work(*args)

    def kill(self) -> None:
        self._process.kill()

    def told(self) -> bytes:
        with os.fdopen(self.out, "rb") as out:
            content = out.read()
        self._process.join()
        return content


def kills(form: Form, folder: Path, times: int) -> str:
    """Records that a killed process had announced, and that are not there or not as they were written."""
    path, chance, opened = folder / form.file, random.Random(0), list[float]()
    lost, announced = 0, -1
    for _ in range(times):
        process = Child(write_for_ever, form, path)
        os.read(process.out, 1)  # it has begun
        time.sleep(chance.uniform(0, 0.1))
        process.kill()
        told = process.told().splitlines(keepends=True)[1:]
        announced = max(announced, *(int(line) for line in told if line.endswith(b"\n")), -1)
        start = time.perf_counter()
        with form.open(path):
            pass
        opened.append(time.perf_counter() - start)
        found = list(form.read(path))
        lost += announced + 1 - len([1 for one in found if one["number"] <= announced and one == record(one["number"])])
    return (
        f"{times} kills, {announced + 1} records announced, {lost} lost; opened in {max(opened) * 1e3:.0f} ms at most"
    )


def two_writers(form: Form, folder: Path, count: int) -> str:
    """Each to a file of its own, and both to one, in turns or together."""
    texts = []
    for what, names in (("a file each", ("a", "b")), ("one file", ("a", "a"))):
        paths = [folder / f"{name}{form.file}" for name in names]
        start = time.perf_counter()
        writers = [Child(write_half, form, path, own, count) for own, path in enumerate(paths)]
        for writer in writers:
            writer.told()
        seconds = time.perf_counter() - start
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            there = {one["number"] for path in set(paths) for one in form.read(path)}
        texts.append(f"{what} {seconds:.1f} s, {2 * count - len(there)} missing")
        for path in set(paths):
            path.unlink()
    return f"2 x {count}: " + "; ".join(texts)


def write_half(form: Form, path: Path, own: int, count: int) -> None:
    """Holds the store for as long as a batch takes, as processes that share a folder do."""
    for start in range(0, count, 50):
        with Store(path, path.parent, wait=-1) if form.name == "lines" else form.open(path) as store:
            for number in range(start, min(count, start + 50)):
                store.add([record(2 * number + own)])


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "a flipped bit": lambda b, c: _changed(b, c.randrange(len(b)), c),
    "a digit changed": lambda b, c: _digit(b, c),
    "cut off at the end": lambda b, c: b[: c.randrange(len(b) // 2, len(b))],
    "a block of zeros": lambda b, c: _zeros(b, c.randrange(len(b) // BLOCK) * BLOCK),
    "its first block zeros": lambda b, c: _zeros(b, 0),
    "60 bytes missing": lambda b, c: (lambda at: b[:at] + b[at + 60 :])(c.randrange(len(b))),
}


def _changed(content: bytes, at: int, chance: random.Random) -> bytes:
    return content[:at] + bytes([content[at] ^ (1 << chance.randrange(8))]) + content[at + 1 :]


def _digit(content: bytes, chance: random.Random) -> bytes:
    at = chance.choice([place for place, byte in enumerate(content) if byte in b"0123456789"])
    return content[:at] + (b"1" if content[at : at + 1] != b"1" else b"2") + content[at + 1 :]


def _zeros(content: bytes, start: int) -> bytes:
    return content[:start] + bytes(BLOCK) + content[start + BLOCK :]


def damage(form: Form, folder: Path, times: int, count: int = 2000) -> Iterator[str]:
    """Records that can still be read after damage, of so many; and those that read otherwise than they were written."""
    path = folder / form.file
    with form.open(path) as store:
        for number in range(count):
            store.add([record(number)])
    whole = path.read_bytes()
    for kind, change in DAMAGES.items():
        left, wrong = [], 0
        for seed in range(times):
            path.write_bytes(change(whole, random.Random(seed)))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = list(form.read(path))
            left.append(len(found))
            wrong += sum(one != record(one["number"]) for one in found)
        empty = sum(number == 0 for number in left)
        text = f"{statistics.mean(left):.0f} left, {min(left)} at worst"
        yield f"{kind}: of {count}, {text}, none {empty}x of {times}; {wrong} wrong"


def many_rows(form: Form, folder: Path, count: int) -> str:
    """Seconds of processor time, which a busy machine changes little."""
    path = folder / form.file
    start = time.process_time()
    with form.open(path) as store:
        for number in range(0, count, 8):
            store.add([record(n) for n in range(number, min(count, number + 8))])
    written = time.process_time() - start
    size = path.stat().st_size
    start = time.process_time()
    assert sum(1 for _ in form.read(path)) == count
    read = time.process_time() - start
    start = time.process_time()
    if form.name == "lines":
        with form.open(path) as store:
            done = store.latest
    else:
        with closing(sqlite3.connect(path)) as sql:
            done = dict(sql.execute("SELECT work, state FROM records"))
    assert len(done) == count
    known = time.process_time() - start
    return (
        f"{count} rows: written {written:.0f} s, {size / 1e6:.0f} MB; all read {read:.1f} s; what is done {known:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--damages", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    for form in FORMS.values():
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            for name in ("kills", "two", "damage", "rows"):
                (folder / name).mkdir()
            print(f"{form.name}: {kills(form, folder / 'kills', options.kills)}", flush=True)
            print(f"{form.name}: {two_writers(form, folder / 'two', 2000)}", flush=True)
            for line in damage(form, folder / "damage", options.damages):
                print(f"{form.name}: {line}", flush=True)
            print(f"{form.name}: {many_rows(form, folder / 'rows', options.rows)}", flush=True)


if __name__ == "__main__":
    main()

"""Stores: damage shows and is repaired, the latest line counts, one writer at a time, nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aha.core import disk
from aha.core.disk import remove_partials
from aha.core.store import (
    Appender,
    Packs,
    Store,
    encode,
    latest_keys,
    read_file,
    read_record,
    sound_lines,
    write_record,
)
from aha.errors import DamageWarning, OutputError


def filled(path: Path, count: int = 5) -> list[bytes]:
    with Store(path, path.parent) as store:
        store.add({"key": f"work{n}-state", "value": n / 7} for n in range(count))
    return path.read_bytes().splitlines(keepends=True)


def records(path: Path) -> list[dict]:
    return [line.record() for line in sound_lines([path])]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    filled(tmp_path / "x.jsonl")
    assert records(tmp_path / "x.jsonl") == [{"key": f"work{n}-state", "value": n / 7} for n in range(5)]


@pytest.mark.parametrize("place", range(0, 100, 7))
def test_any_changed_byte_of_a_line_shows(place: int, tmp_path: Path) -> None:
    """Not even a digit of a number can change."""
    path = tmp_path / "x.jsonl"
    lines = filled(path)
    place %= len(lines[2]) - 1
    changed = bytearray(lines[2])
    changed[place] ^= 1
    path.write_bytes(b"".join([*lines[:2], bytes(changed), *lines[3:]]))
    with pytest.warns(DamageWarning, match=r"x.jsonl: (line 3 is|2 lines \(3, 4\) are) damaged and left out"):
        assert "work2-state" not in {record["key"] for record in records(path)}
    with pytest.warns(DamageWarning, match="computed again"), Store(path, tmp_path) as store:
        assert not store.done("work2-state") and store.done("work4-state")
        store.add([{"key": "work2-state", "value": 2 / 7}])
    assert sorted(record["value"] for record in records(path)) == [n / 7 for n in range(5)]


@pytest.mark.parametrize(
    "damage", [b"{}\n", b"null\n", b"[]\n", b"\n", b"\xff\xfe{\0", b"\0" * 40 + b"\n", b"[" * 100_000 + b"}\n"]
)
def test_foreign_lines_are_named_and_dropped(damage: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = filled(path)
    path.write_bytes(b"".join([lines[0], damage, *lines[1:]]))
    expected = [record["key"] for record in map(json.loads, lines)]
    with pytest.warns(DamageWarning, match="line"):
        found = [record["key"] for record in records(path)]
    assert set(found) <= set(expected) and len(found) >= 4  # what has no end of its own takes the next line with it
    with pytest.warns(DamageWarning), Store(path, tmp_path):
        pass
    assert path.read_bytes() == b"".join(line for line in lines if json.loads(line)["key"] in found)


def test_half_a_line_at_the_end_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    lines = filled(path)
    path.write_bytes(b"".join(lines) + lines[0][:30])
    assert len(records(path)) == 5
    with Store(path, tmp_path):
        pass
    assert path.read_bytes() == b"".join(lines)


def test_the_latest_state_of_a_work_counts(tmp_path: Path) -> None:
    """Changed and changed back: what was done in between does not count, whichever came first."""
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path, state in ((first, "old"), (second, "new"), (first, "old")):
        with Store(path, tmp_path, siblings=lambda: [first, second]) as store:
            assert not store.done(f"work-{state}")
            store.add([{"key": f"work-{state}"}])
    assert latest_keys(sound_lines([first, second])) == {"work": "work-old"}


def test_a_record_has_its_files_before_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens in between, a line speaks of nothing that is not there."""
    with Store(tmp_path / "x.jsonl", tmp_path) as store:
        store.put("a-1", {"value": 1}, {"sub/a.npz": b"numbers", "sub/a.png": b"colours"})
        with monkeypatch.context() as patch:
            patch.setattr(Appender, "append", lambda *_: (_ for _ in ()).throw(OutputError("full")))
            with pytest.raises(OutputError):
                store.put("b-1", {"value": 2}, {"sub/b.npz": b"others"})
        assert store.done("a-1") and not store.done("b-1") and not store.done("a-2")
    (record,) = records(tmp_path / "x.jsonl")
    assert record["value"] == 1 and list(record["files"]) == ["sub/a.npz", "sub/a.png"]
    assert read_file(tmp_path, record, "sub/a.npz") == b"numbers"
    assert read_file(tmp_path, record, "sub/b.npz") is None, "it is there, and belongs to no record"
    (tmp_path / "sub" / "a.npz").write_bytes(b"nvmbers")
    (tmp_path / "sub" / "a.png").unlink()
    assert read_file(tmp_path, record, "sub/a.npz") is None and read_file(tmp_path, record, "sub/a.png") is None


def test_packs_go_on_in_another_file_and_know_what_was_changed(tmp_path: Path) -> None:
    for part in (b"first", b"second"):  # two runs
        with Store(tmp_path / "x.jsonl", tmp_path, packs=Packs(tmp_path / "maps", "0000", most=24)) as store:
            found = [store.pack(part + bytes([number])) for number in range(3)]
            assert [stretch.read(tmp_path / "maps") for stretch in found] == [part + bytes([n]) for n in range(3)]
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "maps").iterdir()}
    assert sum(sizes.values()) == 39 and len(sizes) == 2 and max(sizes.values()) <= 24
    path = tmp_path / "maps" / found[-1].file
    for damaged in (path.read_bytes()[:-1], path.read_bytes()[:-1] + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged"):
            found[-1].read(tmp_path / "maps")


@pytest.mark.parametrize("damaged", [b"", b"{}\n", b"null", b"\0" * 80, b"[" * 100_000])
def test_a_damaged_record_is_none(damaged: bytes, tmp_path: Path) -> None:
    path = tmp_path / "sub" / "x.json"
    write_record(path, {"value": 1}, {"x.npz": b"numbers"})
    record = read_record(path)
    assert record is not None and record["value"] == 1 and read_file(path.parent, record, "x.npz") == b"numbers"
    other = path.with_name("y.json")
    other.write_bytes(path.read_bytes())
    assert read_record(other) is None, "it is what another name stands for"
    changed = path.read_bytes().replace(b'"value":1', b'"value":2')
    for content in (changed, changed[:-1], damaged):
        path.write_bytes(content)
        assert read_record(path) is None


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    with Store(path, tmp_path), pytest.raises(OutputError, match="another process is writing to"):
        Store(path, tmp_path)
    with Store(path, tmp_path):
        pass  # it was given back


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    dead = tmp_path / "sub" / f".x.npz.{disk._HOST}-{int(done.stdout)}.partial"
    former = tmp_path / "sub" / f".x.npz.{int(done.stdout)}.partial"  # as an earlier version called it
    ours, named = tmp_path / f".x.{disk._HOST}-{os.getpid()}.partial", tmp_path / "a.partial"
    elsewhere = tmp_path / f".x.another-machine-{int(done.stdout)}.partial"
    for path in (dead, former, ours, named, elsewhere):
        path.touch()
    remove_partials(tmp_path)
    assert not dead.exists() and not former.exists()
    assert ours.exists() and named.exists() and elsewhere.exists()


def test_a_line_is_one_line(tmp_path: Path) -> None:
    assert encode({"key": "a-b", "text": "two\nlines"}).count(b"\n") == 1


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="only Linux says which processes have ended")
def test_partials_of_a_killed_process_that_is_still_listed_are_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    while Path(f"/proc/{ended.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)  # nobody has asked for it yet
    left = tmp_path / f".map.npz.{disk._HOST}-{ended.pid}.partial"
    left.touch()
    remove_partials(tmp_path)
    ended.wait()
    assert not left.exists()

"""Whatever ends a run, it goes on as if nothing had happened: kills, half lines, full disks, two writers."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worlds import cells_of, count_lines, tiny_model

from aha.bench.plan import Plan
from aha.bench.runner import BenchRun
from aha.bench.store import RunStore, read_cells, read_map
from aha.core import store
from aha.errors import DamageWarning, OutputError
from aha.evaluation import loop
from aha.results.score_table import Scores

HERE = Path(__file__).parent
_PATIENCE = 300  # seconds; a busy machine is slow, not wrong


class Killed(BaseException):
    """Ends the process as far as the run can tell: nothing of ours catches it."""


def finished(plan: Plan, out: Path) -> dict[str, dict]:
    BenchRun(plan, out, model=tiny_model()).run()
    return cells_of(out)


def test_a_run_killed_twenty_times_has_the_rows_of_one_that_was_not(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at random points: between cells, after half a line, and while maps are being judged."""
    plan = replace(plan, targets=("top1", "label"), maps="float16")
    expected = finished(plan, tmp_path / "whole")
    out, chance, kills = tmp_path / "killed", random.Random(0), 0
    write, judged = store.Appender.append, loop.score_case
    budget = 0

    def torn(self: store.Appender, content: bytes) -> int:
        nonlocal budget
        budget -= 1
        if budget < 0:
            os.write(self._file.fileno(), content[: chance.randrange(len(content))])
            raise Killed
        return write(self, content)

    def interrupted(*args: Any) -> Scores:
        nonlocal budget
        budget -= 1
        if budget < 0:
            raise Killed
        return judged(*args)

    monkeypatch.setattr(store.Appender, "append", torn)
    monkeypatch.setattr(loop, "score_case", interrupted)
    model = tiny_model()
    for _ in range(500):
        budget = chance.randrange(1, 7) if kills < 20 else 10**9
        try:
            BenchRun(plan, out, model=model).run()
            break
        except Killed:
            kills += 1
    assert kills >= 20
    assert cells_of(out) == expected
    assert count_lines(out) == len(expected)  # never doubled


SCRIPT = """
    import sys, time
    sys.path[:0] = {paths!r}
    import torch
    torch.set_num_threads(1)
    from worlds import tiny_model
    from aha.bench.plan import Plan
    from aha.bench.runner import BenchRun
    def run():
        made = BenchRun(Plan(**{plan!r}), {out!r}, model=tiny_model())
        made.run(lambda step: (print(step.cells, flush=True), time.sleep({pause})))
"""
# Loads everything once and then makes a process for each line it is told: a single one, or the rank of one of two, and
# the file over which both meet in a group, if they do.
FORKS = """
    import os
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            rank, *meeting = line.split()
            if rank != "alone":
                os.environ.update(RANK=rank, WORLD_SIZE="2")
            for file in meeting:
                torch.distributed.init_process_group("gloo", init_method="file://" + file, rank=int(rank), world_size=2)
            sys.stdout = sys.stderr = open(os.devnull, "w")
            run()
            os._exit(0)
        print(child, flush=True)
"""
# Under a launcher: the second of two is killed by the system the first time, in the middle of its work.
LAUNCHED = """
    import os, signal
    torch.distributed.init_process_group("gloo")
    if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
        time.sleep = lambda seconds: os.kill(os.getpid(), signal.SIGKILL)
    run()
    torch.distributed.barrier()
"""


def script(plan: Plan, out: Path, folder: Path, pause: float, rest: str) -> Path:
    path = folder / "run.py"
    settings = {**plan.as_dict(), "methods": plan.methods, "metrics": plan.metrics, "targets": plan.targets}
    filled = {"paths": [str(HERE), str(HERE.parent)], "plan": settings, "out": str(out), "pause": pause}
    path.write_text(textwrap.dedent(SCRIPT).format(**filled) + textwrap.dedent(rest))
    return path


class ForkServer:
    """Starts runs as processes of their own, without the seconds that each import of PyTorch takes."""

    def __init__(self, path: Path) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, line: str = "alone") -> int:
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.write(f"{line}\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *error: object) -> None:
        self._parent.kill()
        self._parent.communicate()


def is_alive(process: int) -> bool:
    """Running: one that has ended stays listed until its parent asks for it, which ours never does."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="needs Linux")
def test_kill_nine_twenty_times(plan: Plan, tmp_path: Path) -> None:
    """The real thing, at random moments; a second process that comes meanwhile is refused."""
    plan = replace(plan, targets=("top1", "label"))
    expected = finished(plan, tmp_path / "whole")
    out, chance, kills, counts = tmp_path / "killed", random.Random(0), 0, [0]
    with ForkServer(script(plan, out, tmp_path, 0.05, FORKS)) as server:
        while kills < 20:
            process = server.start()
            if kills == 0:
                wait_for(lambda: (out / "rows").is_dir() and len(cells_of(out)) > 0)
                with pytest.raises(OutputError, match="another process"):
                    BenchRun(plan, out, model=tiny_model()).run()
            time.sleep(chance.uniform(0, 0.1))
            assert is_alive(process), "the run was over before it had been killed often enough"
            os.kill(process, signal.SIGKILL)
            wait_for(lambda process=process: not is_alive(process))
            kills += 1
            counts.append(len(cells_of(out)))
    assert counts == sorted(counts) and 0 < counts[-1] < len(expected)  # what is there stays there
    assert finished(plan, out) == expected and count_lines(out) == len(expected)


@pytest.mark.parametrize("damage", [b'{"key":"abc","mod', b'{"key":"abc", nonsense}\n', b"\0\0\0\0"])
def test_a_corrupt_last_line_is_repaired(damage: bytes, plan: Plan, tmp_path: Path) -> None:
    expected = finished(plan, tmp_path / "run")
    rows = tmp_path / "run" / "rows" / "0000.jsonl"
    whole = rows.read_bytes()
    lines = whole.splitlines(keepends=True)
    rows.write_bytes(b"".join(lines[:-1]) + damage)
    # Half a line is what kills leave; a whole one that makes no sense is worth a word.
    with pytest.warns(DamageWarning, match="damaged") if damage.endswith(b"\n") else nullcontext():
        assert finished(plan, tmp_path / "run") == expected
    assert rows.read_bytes().count(b"\n") == len(lines) and damage not in rows.read_bytes()


def test_a_hole_in_the_middle_is_filled(plan: Plan, tmp_path: Path) -> None:
    """As a power cut may leave it: zeros inside a line that has its beginning and its end."""
    expected = finished(plan, tmp_path / "run")
    rows = tmp_path / "run" / "rows" / "0000.jsonl"
    lines = rows.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:60] + b"\0" * (len(lines[3]) - 120) + lines[3][-60:]
    rows.write_bytes(b"".join(lines))
    with pytest.warns(DamageWarning, match=r"0000.jsonl: line 4 is damaged"):
        assert finished(plan, tmp_path / "run") == expected


def test_a_number_that_changed_in_the_middle_is_measured_again(plan: Plan, tmp_path: Path) -> None:
    """It can be read as before, and its key is there: only its checksum knows."""
    expected = finished(plan, tmp_path / "run")
    rows = tmp_path / "run" / "rows" / "0000.jsonl"
    content = rows.read_bytes()
    place = content.index(b'"score":0.', len(content) // 2) + 10
    rows.write_bytes(content[:place] + (b"1" if content[place : place + 1] != b"1" else b"2") + content[place + 1 :])
    with pytest.warns(DamageWarning, match="damaged"):
        assert finished(plan, tmp_path / "run") == expected
    assert count_lines(tmp_path / "run") == len(expected)


def test_a_map_that_was_damaged_is_made_again(plan: Plan, tmp_path: Path) -> None:
    plan = replace(plan, maps="float16", limit=2)
    expected = finished(plan, tmp_path / "run")
    (shard,) = (tmp_path / "run" / "maps").iterdir()
    whole = shard.read_bytes()
    for damage in (b"", whole[:-1], bytes([whole[0] ^ 1]) + whole[1:]):
        shard.write_bytes(damage)
        with pytest.warns(DamageWarning, match="damaged"):
            assert finished(plan, tmp_path / "run") == expected
        for cell in read_cells(tmp_path / "run"):
            read_map(tmp_path / "run", cell["found"][0]["map"])


def test_a_full_disk_leaves_whole_lines(plan: Plan, tmp_path: Path) -> None:
    expected = finished(plan, tmp_path / "whole")
    limit = (tmp_path / "whole" / "rows" / "0000.jsonl").stat().st_size // 2 + 11
    former, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, former[1]))
        with pytest.raises(OutputError, match="cannot write"):
            BenchRun(plan, tmp_path / "run", model=tiny_model()).run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)
        signal.signal(signal.SIGXFSZ, handler)
    content = (tmp_path / "run" / "rows" / "0000.jsonl").read_bytes()
    assert content.endswith(b"}\n") and all(json.loads(line) for line in content.splitlines())
    assert 0 < len(cells_of(tmp_path / "run")) < len(expected)
    assert finished(plan, tmp_path / "run") == expected


def test_two_writers_are_refused(plan: Plan, tmp_path: Path) -> None:
    with RunStore(tmp_path / "run"), pytest.raises(OutputError, match="another process"):
        BenchRun(plan, tmp_path / "run", model=tiny_model()).run()
    finished(plan, tmp_path / "run")


def values_of(cell: dict) -> list[float]:
    return [row[2] for found in cell["found"] for row in found["rows"]]


def assert_same(out: Path, expected: dict[str, dict]) -> None:
    """The same cells, once each; values may differ as far as sums in another order do."""
    found = cells_of(out)
    assert {path.name for path in (out / "rows").iterdir()} == {"0000.jsonl", "0001.jsonl"}
    assert found.keys() == expected.keys() and count_lines(out) == len(expected)
    for key, cell in expected.items():
        assert values_of(found[key]) == pytest.approx(values_of(cell), abs=1e-5)


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="needs Linux")
def test_of_two_processes_one_is_killed_and_started_again(plan: Plan, tmp_path: Path) -> None:
    """In one gloo group; the other goes on to its end, and together they are the run of a single process."""
    expected = finished(plan, tmp_path / "one")
    out = tmp_path / "two"
    with ForkServer(script(plan, out, tmp_path, 0.05, FORKS)) as server:
        first, second = (server.start(f"{rank} {tmp_path / 'meeting'}") for rank in (0, 1))
        rows = out / "rows" / "0001.jsonl"
        wait_for(lambda: rows.is_file() and rows.read_bytes().count(b"\n") > 1)
        os.kill(second, signal.SIGKILL)
        wait_for(lambda: not is_alive(first))
        assert len(cells_of(out)) < len(expected)
        again = server.start("1")
        wait_for(lambda: not is_alive(again))
    assert_same(out, expected)


@pytest.mark.slow
def test_a_launcher_that_restarts_its_processes(plan: Plan, tmp_path: Path) -> None:
    """As `torchrun` starts them; when one is killed, it ends the other and starts both again."""
    expected = finished(plan, tmp_path / "one")
    out = tmp_path / "two"
    path = script(plan, out, tmp_path, 0.02, LAUNCHED)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1"]
    launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", str(path)]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert_same(out, expected)


def test_a_deleted_folder_is_noticed_at_once(plan: Plan, tmp_path: Path) -> None:
    """The file is open and takes everything, but nobody could read it any more."""
    made, steps = BenchRun(plan, tmp_path / "run", model=tiny_model()), list[Any]()

    def on_step(step: Any) -> None:
        steps.append(step)
        shutil.rmtree(tmp_path / "run")

    with pytest.raises(OutputError, match="was deleted"):
        made.run(on_step)
    assert len(steps) == 1

"""Whatever ends a run, it goes on as if nothing had happened: kills, half lines, full disks, two writers."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest
from worlds import cells_of, count_lines, tiny_model

from aha.bench import runner, store
from aha.bench.plan import Plan
from aha.bench.runner import BenchRun
from aha.bench.store import Store
from aha.errors import OutputError

HERE = Path(__file__).parent


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
    write, judged = store.Appender.append, runner.judge
    budget = 0

    def torn(self: store.Appender, content: bytes) -> int:
        nonlocal budget
        budget -= 1
        if budget < 0:
            os.write(self._file.fileno(), content[: chance.randrange(len(content))])
            raise Killed
        return write(self, content)

    def interrupted(*args: object) -> None:
        nonlocal budget
        budget -= 1
        if budget < 0:
            raise Killed
        judged(*args)

    monkeypatch.setattr(store.Appender, "append", torn)
    monkeypatch.setattr(runner, "judge", interrupted)
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
    plan = Plan(**{plan!r})
    run = BenchRun(plan, {out!r}, model=tiny_model())
    run.run(lambda step: (print(step.cells, flush=True), time.sleep({pause})))
"""


def script(plan: Plan, out: Path, folder: Path, pause: float) -> Path:
    path = folder / "run.py"
    settings = {**plan.as_dict(), "methods": plan.methods, "metrics": plan.metrics}
    paths = [str(HERE), str(HERE.parent)]
    path.write_text(textwrap.dedent(SCRIPT.format(paths=paths, plan=settings, out=str(out), pause=pause)))
    return path


def test_kill_nine(plan: Plan, tmp_path: Path) -> None:
    """The real thing, twice: what the process said it had done is there, and the rest follows."""
    expected = finished(plan, tmp_path / "whole")
    out = tmp_path / "killed"
    path, said = script(plan, out, tmp_path, 0.05), 0
    for lines in (3, 5):
        with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(lines):
                said += int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
        assert len(cells_of(out)) >= said
    assert 0 < len(cells_of(out)) < len(expected)
    assert finished(plan, out) == expected and count_lines(out) == len(expected)


@pytest.mark.parametrize("damage", [b'{"key":"abc","mod', b'{"key":"abc", nonsense}\n', b"\0\0\0\0"])
def test_a_corrupt_last_line_is_repaired(damage: bytes, plan: Plan, tmp_path: Path) -> None:
    expected = finished(plan, tmp_path / "run")
    rows = tmp_path / "run" / "rows" / "0000.jsonl"
    whole = rows.read_bytes()
    lines = whole.splitlines(keepends=True)
    rows.write_bytes(b"".join(lines[:-1]) + damage)
    assert finished(plan, tmp_path / "run") == expected
    assert rows.read_bytes().count(b"\n") == len(lines) and damage not in rows.read_bytes()


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
    with Store(tmp_path / "run"), pytest.raises(OutputError, match="another process"):
        BenchRun(plan, tmp_path / "run", model=tiny_model()).run()
    finished(plan, tmp_path / "run")


def test_two_launched_processes_are_one(plan: Plan, tmp_path: Path) -> None:
    """As `torchrun` starts them; one is killed and the pair is started again."""
    expected = finished(plan, tmp_path / "one")
    out = tmp_path / "two"
    path = script(plan, out, tmp_path, 0.02)
    alone = {**os.environ, "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True, env=alone) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.kill()
    started = time.monotonic()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0"]
    launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", str(path)]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{done.stderr} after {time.monotonic() - started:.0f} s"
    assert {path.name for path in (out / "rows").iterdir()} == {"0000.jsonl", "0001.jsonl"}
    found = cells_of(out)
    assert found.keys() == expected.keys() and count_lines(out) == len(expected)
    for key, cell in expected.items():
        rows = [row[2] for entry in cell["found"] for row in entry["rows"]]
        assert [row[2] for entry in found[key]["found"] for row in entry["rows"]] == pytest.approx(rows, abs=1e-5)

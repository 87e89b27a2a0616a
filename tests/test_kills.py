"""Commands killed by the system at random moments, again and again: in the end as if nothing had happened.

One process imports everything and then makes a child for each command, so that a kill costs a fraction of a second.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aha.auditing.thresholds import shipped_text
from aha.bench.recommendation.record import Race
from aha.bench.store import read_cells
from aha.learned.explainer import Explainer
from command_line import MODEL, items, pictures, run

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="needs Linux")

_PATIENCE = 300  # seconds; a busy machine is slow, not wrong
SMALL = (*MODEL, "--input-size", "32", "--device", "cpu")
METRIC = "ins_del(steps=3, references=(black,))"
FORKS = """
import json, os, sys
import torch
torch.set_num_threads(1)
from aha.cli import app
import aha.auditing.run
import aha.bench.runner
import aha.bench.reporting.exports
import aha.bench.recommendation.recommend
import aha.explain_folder
import aha.learned.training.loop
import aha.models.loading.sources
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        sys.stdout = sys.stderr = open(os.devnull, "w")
        try:
            app(json.loads(line), standalone_mode=False)
        finally:
            os._exit(0)
    print(child, flush=True)
"""


class Forks:
    """Starts commands as processes of their own, without the seconds that each import of PyTorch takes."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._parent = subprocess.Popen(
            [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def start(self, args: list[str]) -> int:
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.write(json.dumps(args) + "\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())

    def __enter__(self) -> Forks:
        return self

    def __exit__(self, *error: object) -> None:
        self._parent.kill()
        self._parent.communicate()


@pytest.fixture(scope="module")
def forks() -> Any:
    with Forks() as started:
        yield started


def is_alive(process: int) -> bool:
    """Running: one that has ended stays listed until its parent asks for it, which ours never does."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


@dataclass(frozen=True)
class Command:
    """A command that can be killed.

    Attributes:
        args: the command line, for an output folder.
        grown: how far it is, in bytes or lines.
        found: all that it says in the end.
    """

    args: Callable[[Path], list[str]]
    grown: Callable[[Path], int]
    found: Callable[[Path], Any]


def size_of(*patterns: str) -> Callable[[Path], int]:
    return lambda out: sum(path.stat().st_size for pattern in patterns for path in out.glob(pattern))


def maps_of(out: Path) -> dict[Any, Any]:
    found = {}
    for item in items(out):
        with np.load(out / item["map"]) as arrays:
            place = Path(item["image"]).name, item["method"], item["target"]
            assert place not in found
            found[place] = item["score"], item["key"].partition("-")[2], arrays["model_map"].tolist()
    return found


def cells_of(out: Path) -> dict[str, Any]:
    cells = read_cells(out)
    assert len({cell["key"] for cell in cells}) == len(cells)
    return {cell["key"]: [(f["target"], f["rows"]) for f in cell["found"]] for cell in cells}


def audited(out: Path) -> Any:
    found = json.loads((out / "audit.json").read_text())
    assert (out / "audit.html").is_file()
    return cells_of(out), cells_of(out / "against"), found["parts"], found["leads"]


def raced(out: Path) -> Any:
    race = Race.read(out)
    assert race is not None and race.finished is not None
    return cells_of(out), race.rounds, race.out


def commands(data: Path, times: int) -> dict[str, Command]:
    explain = ["explain", str(data), *SMALL, "--method", "gradient", "--method", "center_map", "--batch-size", "1"]
    judged = ["--method", "gradient", "--method", "random_map", "--metrics", METRIC, "--batch-size", "1"]
    racers = [*judged[:4], "--passes", "1000000"]  # enough for all images, so that time has no say
    lenient = data.parent / "lenient.toml"  # a network with random weights fails by others
    lenient.write_text(re.sub("= [0-9.]+", "= false", shipped_text().partition("[failures]")[0]))
    audit = ["audit", "--data", str(data), *SMALL, "--method", "gradient", "--against", "center_map", "--steps", "2"]
    settings = [
        f"steps={6 * times}",
        "width=16",
        "perturbations=2",
        "batch_size=2",
        "save_every=1",
        "validate_every=0",
        "evidence=forward",
    ]

    def train(out: Path) -> list[str]:
        started = (out / "state.pt").exists()
        if not started:
            shutil.rmtree(out, ignore_errors=True)  # killed before its first save, as the command says
        common = ["train", "--data", str(data), "--out", str(out), *MODEL, "--input-size", "64", "--preset", "smoke"]
        return [*common, *(["--resume"] if started else []), *settings]

    return {
        "explain": Command(lambda out: [*explain, "--out", str(out)], size_of("journal.jsonl"), maps_of),
        "evaluate": Command(
            lambda out: ["evaluate", str(data), *SMALL, *judged, "--out", str(out)], size_of("rows/*"), cells_of
        ),
        "bench": Command(
            lambda out: [
                "bench",
                "--data",
                str(data),
                *SMALL,
                *judged,
                "--no-report",
                "--keep-maps",
                "float16",
                "--out",
                str(out),
            ],
            size_of("rows/*"),
            cells_of,
        ),
        "recommend": Command(
            lambda out: ["recommend", "--data", str(data), *SMALL, *racers, "--batch-size", "1", "--out", str(out)],
            size_of("rows/*"),
            raced,
        ),
        "audit": Command(
            lambda out: [*audit, "--thresholds", str(lenient), "--batch-size", "1", "--out", str(out)],
            size_of("rows/*", "against/rows/*"),
            audited,
        ),
        "train": Command(
            train, size_of("metrics.jsonl"), lambda out: Explainer.from_pretrained(out / "explainer").digest
        ),
    }


def killed(forks: Forks, command: Command, out: Path, times: int, chance: random.Random) -> None:
    """Kills the command that often, each time after it has got further, at a random moment."""
    for number in range(times):
        before, process = command.grown(out), forks.start(command.args(out))
        end = time.monotonic() + _PATIENCE
        while command.grown(out) <= before:
            assert is_alive(process), f"over before kill {number + 1}"
            assert time.monotonic() < end
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.02))
        os.kill(process, signal.SIGKILL)
        while is_alive(process):
            time.sleep(0.002)


def as_if_nothing_had_happened(name: str, times: int, count: int, forks: Forks, tmp_path: Path) -> None:
    command = commands(pictures(tmp_path / "in", count), times)[name]
    result = run(*command.args(tmp_path / "whole"))
    assert result.exit_code == 0, result.output
    killed(forks, command, tmp_path / "killed", times, random.Random(0))
    result = run(*command.args(tmp_path / "killed"))
    assert result.exit_code == 0, result.output
    assert command.found(tmp_path / "killed") == command.found(tmp_path / "whole")
    assert not list((tmp_path / "killed").rglob("*.partial"))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AHA_DATA", str(tmp_path / "cache"))


NAMES = ("explain", "evaluate", "bench", "recommend", "audit", "train")


@pytest.mark.parametrize("name", NAMES)
def test_twenty_kills(name: str, forks: Forks, tmp_path: Path) -> None:
    as_if_nothing_had_happened(name, 4, {"recommend": 12, "audit": 6}.get(name, 24), forks, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_hundred_kills(name: str, forks: Forks, tmp_path: Path) -> None:
    count = {"train": 24, "recommend": 60, "audit": 40}.get(name, 120)
    as_if_nothing_had_happened(name, 20, count, forks, tmp_path)

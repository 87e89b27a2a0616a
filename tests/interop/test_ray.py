"""A real local Ray of two workers, one of them killed while it works: the results are those of a single process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aha
from aha.bench.runner import BenchRun
from aha.bench.store import read_cells
from aha.errors import SpecError
from command_line import pictures

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")]

COUNT = 6


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[list[int]]]:
    """The pictures, what became of them, and how many pictures each of two runs of `explain` found to do."""
    folder = tmp_path_factory.mktemp("ray")
    given, out = pictures(folder / "in", COUNT), folder / "out"
    out.mkdir()
    script = Path(__file__).with_name("dying_workers.py")
    ended = subprocess.run(
        [sys.executable, str(script), str(given), str(out)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "RAY_worker_niceness": "0"},  # Ray's workers let everything else go first, for minutes
    )
    assert ended.returncode == 0, ended.stderr
    return given, out, json.loads(ended.stdout.splitlines()[-1])


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    import pyarrow.parquet as pq

    rows = [row for shard in out.glob("*.parquet") for row in pq.read_table(shard).to_pylist()]
    assert len({row["key"] for row in rows}) == len(rows)
    return {Path(row["key"]).name: row for row in rows}


def test_pictures_are_explained_although_a_worker_dies(done: tuple[Path, Path, list[list[int]]]) -> None:
    folder, out, told = done
    assert (out / "maps.died").exists()
    assert told == [[COUNT, 0, 0], [0, COUNT, 0]]
    found = rows_of(out / "maps")
    expected = aha.explain(aha.load_model("timm:test_resnet", pretrained=False, device="cpu"), folder, "grad_cam")
    assert sorted(found) == [Path(subject.name).name for subject in expected.subjects]
    for index, subject in enumerate(expected.subjects):
        row = found[Path(subject.name).name]
        assert row["target"] == int(expected.targets[index])
        assert abs(row["score"] - float(expected.scores[index])) < 1e-5
        assert np.allclose(row["map"], expected.maps[index].flatten(), atol=1e-5)


def test_a_benchmark_is_finished_although_a_worker_dies(
    done: tuple[Path, Path, list[list[int]]], tmp_path: Path
) -> None:
    from dying_workers import plan_of

    folder, out, _ = done
    assert (out / "bench.died").exists()
    BenchRun(plan_of(folder), tmp_path, device="cpu").run()
    expected, found = values_of(tmp_path), values_of(out / "bench")
    assert len(found) == 2 * COUNT and found.keys() == expected.keys()
    for key, values in found.items():
        assert np.allclose(values, expected[key], atol=1e-5)


def values_of(run: Path) -> dict[str, list[float]]:
    """The numbers of each cell."""
    cells = list(read_cells(run))
    found = {cell["key"]: [value for one in cell["found"] for *_, value in one["rows"]] for cell in cells}
    assert len(found) == len(cells) and all(found.values())
    return found


@pytest.mark.parametrize("workers", [99_999, 0, -1, True, 1.5])
def test_workers_that_this_machine_cannot_have(workers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aha.interop import ray

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "_started", lambda *args: pytest.fail("Ray was started"))
    with pytest.raises(SpecError, match="the number of workers must be"):
        ray.share_out(print, workers=workers)


def test_ray_listens_on_this_machine_alone() -> None:
    """Anybody who reaches its ports can have code run."""
    code = "from aha.interop.ray import _started; print(_started().nodes()[0]['NodeManagerAddress'])"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=kept)
    assert ended.stdout.split() == ["127.0.0.1"], ended.stderr

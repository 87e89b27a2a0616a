"""A real local Ray of two workers, one of them killed while it works: the results are those of a single process."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aha
from command_line import pictures

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")]


def work(folder: Path, out: Path) -> list[Any]:
    script = Path(__file__).with_name("dying_workers.py")
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(out)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert out.with_suffix(".died").exists()
    return list(json.loads(done.stdout.splitlines()[-1]))


def rows_of(out: Path) -> dict[str, dict[str, Any]]:
    import pyarrow.parquet as pq

    rows = [row for shard in out.glob("*.parquet") for row in pq.read_table(shard).to_pylist()]
    assert len({row["key"] for row in rows}) == len(rows)
    return {Path(row["key"]).name: row for row in rows}


def test_pictures_are_explained_although_a_worker_dies(tmp_path: Path) -> None:
    folder, out = pictures(tmp_path / "in", 6), tmp_path / "out"
    assert work(folder, out) == [[6, 0, 0], [0, 6, 0]]
    found = rows_of(out)
    expected = aha.explain(aha.load_model("timm:test_resnet", pretrained=False, device="cpu"), folder, "grad_cam")
    assert sorted(found) == [Path(subject.name).name for subject in expected.subjects]
    for index, subject in enumerate(expected.subjects):
        row = found[Path(subject.name).name]
        assert row["target"] == int(expected.targets[index])
        assert abs(row["score"] - float(expected.scores[index])) < 1e-5
        assert np.allclose(row["map"], expected.maps[index].flatten(), atol=1e-5)

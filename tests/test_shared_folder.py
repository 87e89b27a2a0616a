"""Several processes explain into one folder of drawings: what is there is what one process would have made."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aha
import command_line
from aha.data.images import LabelledImage
from aha.explain_folder import FileRun, find_pictures
from aha.methods import load_method
from aha.models import TargetModel
from fakes import SIZE, TinyCNN, randomised


def tiny_model() -> TargetModel:
    return aha.load_model(randomised(TinyCNN()), input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3)


def explained(model: TargetModel, images: Sequence[LabelledImage], out: Path, *, shared: bool) -> FileRun:
    run = FileRun(model, images, [load_method("grad_cam"), load_method("gradient")], "top1", out, shared=shared)
    run.run(batch_size=2)
    return run


def maps_of(out: Path) -> dict[tuple[str, str], Any]:
    """The maps that the manifest lists, by picture and method; each in a file of its own."""
    items = json.loads((out / "manifest.json").read_text())["items"]
    assert len({item["map"].lower() for item in items}) == len(items)
    return {(item["image"], item["method"]): np.load(out / item["map"])["model_map"] for item in items}


def assert_same(found: dict[tuple[str, str], Any], expected: dict[tuple[str, str], Any]) -> None:
    assert found.keys() == expected.keys()
    for key, values in found.items():
        assert np.allclose(values, expected[key], atol=1e-5)


def test_writers_take_turns(tmp_path: Path) -> None:
    """Each draws its pictures; names that are alike in different shares stay apart, and nothing is lost."""
    folders = [command_line.pictures(tmp_path / name, 5) for name in ("a", "b")]  # of the same file names
    model, out = tiny_model(), tmp_path / "out"
    shares = [find_pictures([str(folder)], out, model) for folder in folders]
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(explained, tiny_model(), share, out, shared=True) for share in shares]
        assert [run.result().done for run in runs] == [5, 5]
    every = [image for share in shares for image in share]
    again = explained(model, every, out, shared=False)
    assert (again.done, again.skipped) == (0, 10)
    explained(model, every, tmp_path / "alone", shared=False)
    assert_same(maps_of(out), maps_of(tmp_path / "alone"))


@pytest.mark.slow
def test_processes_of_a_launcher_share_a_folder(tmp_path: Path) -> None:
    folder = command_line.pictures(tmp_path / "in", 5)
    args = ["explain", str(folder), *command_line.MODEL, "--method", "grad_cam", "--batch-size", "1", "--out"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]  # as `accelerate launch` on GPUs
    launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    done = subprocess.run(
        [*launcher, "-m", "aha", *args, str(tmp_path / "two")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "2 explained" in done.stdout and "3 explained" in done.stdout
    command_line.run(*args, tmp_path / "one")
    assert_same(maps_of(tmp_path / "two"), maps_of(tmp_path / "one"))

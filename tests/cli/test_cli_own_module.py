"""A module of one's own on the command line: what it does not state is said the same way to every command."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from command_line import pictures, run

CODE = """
import torch
from torch import nn


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))
"""
MODEL = ("--model", "python:own_nets:network", "--input-size", "32", "--mean", "0.5,0.5,0.5", "--std", "0.5,0.5,0.5")
FAST = ("--metrics", "ins_del(steps=2, references=(black,))", "--method", "gradient")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "own_nets.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield pictures(tmp_path / "in", 2)
    sys.modules.pop("own_nets", None)


def test_it_is_measured(folder: Path) -> None:
    done = run("evaluate", folder, *MODEL, *FAST, "--out", "measured")
    assert done.exit_code == 0, done.output
    done = run("bench", "--data", folder, *MODEL, *FAST, "--out", "run", "--no-report")
    assert done.exit_code == 0, done.output


def test_what_is_missing_is_said_in_options(folder: Path) -> None:
    for command in ("explain", "evaluate"):
        done = run(command, folder, *MODEL[:2], "--method", "gradient", "--out", "explained")
        assert done.exit_code == 1
        assert "add --input-size, --mean and --std" in done.stderr


def test_an_explainer_says_how_it_is_used(folder: Path) -> None:
    done = run("train", *MODEL, "--data", folder, "--out", "trained", "--preset", "smoke", "steps=1", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert f"aha explain IMAGE {' '.join(MODEL)} --method" in done.stdout
    used = run("explain", folder / "00.png", *MODEL, "--method", "aha('trained/explainer')", "--out", "explained")
    assert used.exit_code == 0, used.output

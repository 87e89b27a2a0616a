"""The scripts in `examples/` run as they are, offline, and show what they say they show."""

from __future__ import annotations

import runpy
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aha.methods import METHODS

EXAMPLES = Path(__file__).parents[1] / "examples"
if not EXAMPLES.is_dir():
    pytest.skip("the examples are part of the source tree, not of the package", allow_module_level=True)


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No network, no explainer of the user's, and no method left behind for other tests."""

    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("an example reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("AHA_DATA", str(tmp_path / "cache"))
    before = dict(METHODS._things)
    yield
    METHODS._things.clear()
    METHODS._things.update(before)


def run(name: str, out: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [name, str(out), *arguments])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


def pictures(out: Path) -> set[str]:
    return {path.name for path in out.glob("*.png")}


def test_every_example_is_run_here() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    assert [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in source] == []


def test_quickstart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("quickstart.py", tmp_path, monkeypatch)
    assert pictures(tmp_path) == {"cat_0.png", "cat_1.png", "coffee.png"}
    printed = capsys.readouterr().out
    assert "tiger cat" in printed
    assert "| center_map |" in printed


def test_own_model_is_explained_where_its_shapes_are(tmp_path: Path) -> None:
    hits = load("own_model.py")["main"](tmp_path)
    assert pictures(tmp_path) == {"red_square.png", "green_disc.png", "area.png"}
    assert min(hits.values()) > 0.8  # a shape covers less than a tenth of a picture


def test_own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("own_method.py", tmp_path, monkeypatch)
    assert pictures(tmp_path) == {"cells.png", "smooth.png"}
    assert "| gradient_energy |" in capsys.readouterr().out


def test_shortcut_is_found_only_where_there_is_one(tmp_path: Path) -> None:
    example = load("shortcut.py")
    found = example["main"](tmp_path)
    covered = example["STICKER"] ** 2 / example["SIZE"] ** 2
    assert found["shortcut"]["accuracy"] > 0.9  # nothing to see by accuracy
    assert found["honest"]["accuracy"] > 0.9
    assert found["shortcut"]["swapped"] < 0.5 < found["honest"]["swapped"]
    for method in example["METHODS"]:
        assert found["shortcut"][method] > 10 * covered
        assert found["honest"][method] < 5 * covered


def test_benchmark_is_resumed(tmp_path: Path) -> None:
    main = load("benchmark.py")["main"]
    assert main(tmp_path) == 4
    assert (tmp_path / "study" / "report.html").is_file()
    assert main(tmp_path) == 0


@pytest.mark.slow
def test_train_and_refine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("train_and_refine.py", tmp_path, monkeypatch)
    assert capsys.readouterr().out.count("loss") == 4
    assert pictures(tmp_path) == {"refined_0.png", "refined_2.png"}
    assert (tmp_path / "run" / "explainer" / "model.safetensors").is_file()


@pytest.mark.filterwarnings("ignore::aha.errors.MapWarning")  # with random weights a map may be flat
def test_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("skimage")
    run("volume.py", tmp_path, monkeypatch)
    assert (tmp_path / "volume.png").is_file()
    assert "1 map of 8x224x224" in capsys.readouterr().out

"""The demo runs offline and gives a gallery, results and a contact sheet."""

from __future__ import annotations

import json
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from aha import demo
from aha.demo import DemoFiles, photographs, run_demo
from aha.errors import OutputError
from aha.models import TargetModel, load_model
from command_line import assert_refused, items, run

METHODS = {"grad_cam": "Where.", "edge_map": "A control."}
NAMES = ("chelsea.png", "rocket.jpg")


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("the demo reached for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def check_files(made: DemoFiles, photos: int, methods: int) -> None:
    text = made.gallery.read_text(encoding="utf-8")
    assert text.count("<article") == photos
    assert text.count("<figure") == photos * methods * 2
    assert made.gallery.stat().st_size < 15_000_000
    assert made.sheet.stat().st_size < 400_000
    with Image.open(made.sheet) as sheet:
        assert sheet.width > sheet.height / 2
    found = items(made.manifest.parent)
    assert len(found) == photos * methods * 2
    assert all((made.manifest.parent / item["map"]).is_file() for item in found)


def test_small_demo(tmp_path: Path) -> None:
    out, steps = tmp_path / "gallery", []
    made = run_demo(out, names=NAMES, methods=METHODS, on_progress=steps.append)
    check_files(made, photos=2, methods=2)
    assert steps == [1] * 4
    text = made.gallery.read_text(encoding="utf-8")
    assert text.index("<figure") < text.index("How to read the maps</h2>") < text.index("Reproduce this page")
    assert len(text[text.index("<body>") : text.index("<article")]) < 800, "maps are the first thing to see"
    by_image = {(Path(item["image"]).name, item["label"]) for item in items(out)}
    assert by_image == {
        *(("chelsea.png", label) for label in ("tiger cat", "Egyptian cat")),
        *(("rocket.jpg", label) for label in ("missile", "projectile")),
    }
    again = run_demo(out, names=NAMES, methods=METHODS)
    check_files(again, photos=2, methods=2)


def test_the_demo_asks_the_model_no_more_than_it_has_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Curves of three maps that know nothing, and of Grad-CAM: those of `edge_map` are among them already."""
    seen: list[Counter[str]] = []

    def keep(*args: Any, **options: Any) -> TargetModel:
        seen.append((model := load_model(*args, **options)).passes)
        return model

    monkeypatch.setattr(demo, "load_model", keep)
    run_demo(tmp_path, names=NAMES[:1], methods=METHODS)
    curves = 4 * 2 * demo.PROTOCOL.steps * len(demo.PROTOCOL.references)
    assert seen[0]["forward"] <= curves + 8
    assert len(demo.EXPLAINED) * (3 + len(demo.METHODS) - 1) * curves / 4 <= 1100, "that is most of its time"


def test_photographs_are_carried_by_the_package() -> None:
    assert len(photographs()) >= 4
    assert all(path.is_file() for path in photographs())


def test_foreign_page_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("my page")
    with pytest.raises(OutputError, match="not a gallery of aha demo"):
        run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]


def test_command_says_where_the_gallery_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = DemoFiles(tmp_path / "index.html", tmp_path / "manifest.json", tmp_path / "sheet.jpg", 12.3)
    asked: dict[str, Any] = {}

    def pretend(out: Path, **options: Any) -> DemoFiles:
        asked.update(options, out=out)
        return made

    monkeypatch.setattr(demo, "run_demo", pretend)
    result = run("demo", "--out", tmp_path, "--seed", "5", "--device", "cpu", "--batch-size", "2")
    assert result.exit_code == 0
    assert str(made.gallery) in result.stdout
    assert (asked["out"], asked["seed"], asked["device"], asked["batch_size"]) == (tmp_path, 5, "cpu", 2)
    assert json.loads(run("demo", "--json").stdout)["gallery"] == str(made.gallery)
    assert asked["out"] == Path("demo-gallery")
    assert run("demo", "--quiet").output == ""


def test_missing_photographs_name_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert_refused(run("demo", "--out", tmp_path / "out"), "pip install 'aha-attribution[demo]'")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_full_demo_and_its_snippet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = run_demo("demo-gallery")
    check_files(made, photos=len(demo.EXPLAINED), methods=len(demo.METHODS))
    snippet = demo._snippet(demo.METHODS, Path("again"), seed=0, batch_size=4)
    exec(compile(snippet, "snippet", "exec"), {})
    first, second = items(tmp_path / "demo-gallery"), items(tmp_path / "again")
    key = lambda item: (item["image"], item["method"], item["target"])  # noqa: E731
    assert sorted(map(key, first)) == sorted(map(key, second))
    for one, other in zip(sorted(first, key=key), sorted(second, key=key), strict=True):
        with np.load(f"demo-gallery/{one['map']}") as a, np.load(f"again/{other['map']}") as b:
            np.testing.assert_allclose(a["model_map"], b["model_map"], atol=2e-3 * np.abs(a["model_map"]).max())

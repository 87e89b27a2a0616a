"""Interrupted runs: what is finished is never done again, whatever ended the run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aha import explain_folder as files
from command_line import MODEL, assert_refused, items, picture, pictures, run, watch_explained


@pytest.fixture
def explained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return watch_explained(monkeypatch)


def test_finished_images_cost_neither_reading_nor_a_model_run(
    tmp_path: Path, explained: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = pictures(tmp_path / "in", 3), tmp_path / "out"
    args = ("explain", folder, *MODEL, "--method", "gradient", "--target", "top2", "--out", out, "--json")
    assert json.loads(run(*args).stdout)["done"] == 3
    times = {path: path.stat().st_mtime_ns for path in out.rglob("*.npz")}
    explained.clear()

    picture(folder / "03.png", 3)  # a new one
    picture(folder / "00.png", 99)  # a changed one
    told = json.loads(run(*args).stdout)
    assert (told["done"], told["skipped"]) == (2, 2)
    assert explained == [str(folder / "00.png"), str(folder / "03.png")]
    unchanged = [path for path in times if path.parent.name in ("01", "02")]
    assert unchanged
    assert all(path.stat().st_mtime_ns == times[path] for path in unchanged)

    def refuse(*args: Any, **options: Any) -> Any:
        raise AssertionError("a finished folder was read")

    monkeypatch.setattr(files, "as_input", refuse)
    assert json.loads(run(*args).stdout)["skipped"] == 4


@pytest.mark.parametrize(
    "change",
    [
        ("--seed", "1"),
        ("--target", "top2"),
        ("--score", "logit"),
        ("--fit", "pad"),
        ("--input-size", "96"),
        ("--precision", "bfloat16"),
    ],
    ids=lambda change: change[0],
)
def test_other_settings_are_other_results(tmp_path: Path, explained: list[str], change: tuple[str, str]) -> None:
    args = ("explain", picture(tmp_path / "a.png"), *MODEL, "--method", "gradient", "--out", tmp_path / "out")
    assert run(*args).exit_code == 0
    assert run(*args, *change).exit_code == 0
    assert len(explained) == 2


def test_only_missing_methods_and_files_are_made_again(tmp_path: Path, explained: list[str]) -> None:
    folder, out = pictures(tmp_path / "in", 2), tmp_path / "out"
    args = ("explain", folder, *MODEL, "--out", out, "--method", "gradient")
    assert run(*args).exit_code == 0
    next(out.rglob("01/*_overlay.png")).unlink()
    explained.clear()
    assert run(*args, "--method", "edge_map").exit_code == 0
    assert sorted(explained) == [str(folder / "00.png"), *[str(folder / "01.png")] * 2]
    assert len(items(out)) == 4


def test_results_are_not_taken_for_pictures(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "in", 1)
    args = ("explain", folder, *MODEL, "--out", folder / "out", "--json")
    assert json.loads(run(*args).stdout)["done"] == 1
    told = json.loads(run(*args).stdout)
    assert (told["done"], told["skipped"]) == (0, 1)
    assert_refused(run("explain", folder, *MODEL, "--out", folder), "contains the images themselves")


def test_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    args = ("explain", picture(tmp_path / "a.png"), "--no-pretrained", "--method", "gradient", "--out", tmp_path / "o")
    assert run(*args, "--model", "timm:test_resnet").exit_code == 0
    before = (tmp_path / "o" / "manifest.json").read_bytes()
    assert_refused(run(*args, "--model", "timm:test_vit"), "holds results of timm:test_resnet")
    assert (tmp_path / "o" / "manifest.json").read_bytes() == before


def test_interrupt_leaves_a_manifest_of_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = pictures(tmp_path / "in", 4), tmp_path / "out"
    original, calls = files.explain, 0

    def interrupted(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return original(*args, **options)

    monkeypatch.setattr(files, "explain", interrupted)
    args = ("explain", folder, *MODEL, "--out", out, "--batch-size", "1", "--json")
    result = run(*args)
    assert result.exit_code == 130
    assert result.stderr == "error: interrupted; 2 explained; run the same command to resume\n"
    assert len(items(out)) == 2
    told = json.loads(run(*args).stdout)
    assert (told["done"], told["skipped"]) == (2, 2)
    assert len(items(out)) == 4


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_resumes_after_a_signal_midway(tmp_path: Path, explained: list[str], number: signal.Signals) -> None:
    count = 60
    folder, out = pictures(tmp_path / "in", count), tmp_path / "out"
    args = ["explain", folder, *MODEL, "--out", out, "--batch-size", "1", "--target", "top2", "--json"]
    command = [sys.executable, "-m", "aha", *map(str, args)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # ignored in jobs of a script
    ) as child:
        wait_for(lambda: len(journal(out)) >= 5, child)
        child.send_signal(number)
        _, errors = child.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert child.returncode == 128 + number
        *told, line = errors.splitlines()
        assert line.startswith("error: interrupted; ")
        assert told == (["error: terminated (SIGTERM)"] if number == signal.SIGTERM else [])
        written = len(items(out))
        assert written == len(journal(out))
    else:
        assert child.returncode == -number
        with (out / "journal.jsonl").open("a") as torn:
            torn.write('{"image": "half a li')  # what a kill in the middle of a write leaves
        written = len(journal(out))
    assert 5 <= written < 2 * count

    told = json.loads(run(*args).stdout)
    assert told["skipped"] == written // 2  # an image with one of its two maps is not finished
    assert told["done"] == len(explained) == count - written // 2
    assert len({(item["image"], item["target"]) for item in items(out)}) == 2 * count
    assert json.loads(run(*args).stdout)["skipped"] == count


def journal(out: Path) -> list[str]:
    path = out / "journal.jsonl"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def wait_for(condition: Callable[[], bool], child: subprocess.Popen[str], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)

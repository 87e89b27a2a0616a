"""Nothing stale: what a result depends on is what it is known by, in every command that keeps results."""

from __future__ import annotations

import csv
import json
import os
import warnings
from pathlib import Path

import pytest

from aha.core.store import Store
from aha.errors import AhaWarning
from aha.learned.explainer import Explainer
from aha.learned.library import remember
from aha.learned.settings import Design
from aha.models import TargetModel, load_model
from command_line import MODEL, assert_refused, items, picture, pictures, run

SMALL = (*MODEL, "--input-size", "64")
FAST = ("--metrics", "ins_del(steps=3, references=(black,))")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AHA_DATA", str(tmp_path / "cache"))


@pytest.fixture
def model() -> TargetModel:
    return load_model("timm:test_resnet", pretrained=False, input_size=64, device="cpu")


def train(model: TargetModel, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AhaWarning)  # it replaces the one before
        remember(Explainer.for_target(model, Design(width=16, stride=8), seed=seed))


def values(out: Path) -> dict[tuple[str, str], float]:
    lines = csv.DictReader((out / "scores.csv").read_text().splitlines())
    return {(Path(line["image"]).name, line["target"]): float(line["value"]) for line in lines}


def test_another_explainer_is_another_result(tmp_path: Path, model: TargetModel) -> None:
    """`aha` is the same text before and after a training; its maps and scores are not the same."""
    image = picture(tmp_path / "a.png")
    explain = ("explain", image, *SMALL, "--method", "aha", "--out", tmp_path / "maps", "--json")
    evaluate = ("evaluate", image, *SMALL, *FAST, "--method", "aha", "--out", tmp_path / "scores")
    train(model, 1)
    assert json.loads(run(*explain).stdout)["done"] == 1 and run(*evaluate).exit_code == 0
    before, (item,) = values(tmp_path / "scores"), items(tmp_path / "maps")
    old = (tmp_path / "maps" / item["map"]).read_bytes()
    train(model, 2)
    told = json.loads(run(*explain).stdout)
    assert (told["done"], told["skipped"]) == (1, 0) and len(items(tmp_path / "maps")) == 1
    assert (tmp_path / "maps" / item["map"]).read_bytes() != old
    assert run(*evaluate).exit_code == 0
    after = values(tmp_path / "scores")
    assert after.keys() == before.keys() and after != before
    train(model, 1)  # and back again
    assert run(*evaluate).exit_code == 0 and values(tmp_path / "scores") == before


def test_a_changed_picture_or_label_is_measured_again(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "in", 2)
    listing = folder / "list.csv"
    listing.write_text("file,label\n00.png,1\n01.png,2\n")
    args = ("evaluate", listing, *SMALL, *FAST, "--method", "gradient", "--target", "label", "--out", tmp_path / "out")
    assert run(*args).exit_code == 0
    first = values(tmp_path / "out")
    listing.write_text("file,label\n00.png,1\n01.png,3\n")
    assert run(*args).exit_code == 0
    second = values(tmp_path / "out")
    assert second.keys() == {("00.png", "1"), ("01.png", "3")} and second["00.png", "1"] == first["00.png", "1"]
    stat = (folder / "00.png").stat()
    same_size = (folder / "00.png").read_bytes()
    picture(folder / "00.png", 77)
    os.utime(folder / "00.png", ns=(stat.st_atime_ns, stat.st_mtime_ns))  # neither time nor name gives it away
    assert run(*args).exit_code == 0
    assert values(tmp_path / "out")["00.png", "1"] != first["00.png", "1"]
    (folder / "00.png").write_bytes(same_size)
    assert run(*args).exit_code == 0 and values(tmp_path / "out") == second


def test_a_copied_picture_is_not_explained_again(tmp_path: Path) -> None:
    """A new time of change alone is no change; a new picture drops the maps of the former one."""
    image = picture(tmp_path / "a.png")
    args = ("explain", image, *SMALL, "--method", "gradient", "--target", "top3", "--out", tmp_path / "out", "--json")
    assert json.loads(run(*args).stdout)["done"] == 1
    os.utime(image)
    assert json.loads(run(*args).stdout)["skipped"] == 1
    picture(image, 5)
    assert json.loads(run(*args).stdout)["done"] == 1
    listed = items(tmp_path / "out")
    assert len(listed) == 3
    assert {path.name for path in (tmp_path / "out" / "a").glob("*.npz")} == {Path(i["map"]).name for i in listed}


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "gone"])
def test_a_damaged_map_is_made_again(damage: str, tmp_path: Path) -> None:
    image, out = picture(tmp_path / "a.png"), tmp_path / "out"
    args = ("explain", image, *SMALL, "--method", "gradient", "--out", out, "--json")
    run(*args)
    path = out / items(out)[0]["map"]
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    damaged = {"empty": b"", "cut": whole[:100], "flipped": bytes(changed)}
    path.unlink() if damage == "gone" else path.write_bytes(damaged[damage])
    assert json.loads(run(*args).stdout)["done"] == 1
    assert path.read_bytes() == whole
    assert json.loads(run(*args).stdout)["skipped"] == 1


def test_a_folder_that_another_process_writes_to_is_refused(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "in", 2)
    for command, name in (("explain", "journal.jsonl"), ("evaluate", "rows/0000.jsonl")):
        out = tmp_path / command
        args = (command, folder, *SMALL, "--method", "gradient", *(FAST if command == "evaluate" else ()))
        with Store(out / name, out):
            assert_refused(run(*args, "--out", out), "another process is writing to")
        assert run(*args, "--out", out).exit_code == 0


def test_the_folder_of_results_may_go_unnamed(tmp_path: Path) -> None:
    image = picture(tmp_path / "cat.png")
    assert run("explain", image, *SMALL, "--method", "gradient").exit_code == 0
    assert [Path(item["image"]).name for item in items(tmp_path / "cat-aha")] == ["cat.png"]
    told = json.loads(
        run("explain", tmp_path, *SMALL, "--method", "gradient", "--out", tmp_path / "x", "--json").stdout
    )
    assert told["done"] == 1, "pictures of results are not taken for pictures"


def test_a_limit_is_the_same_choice_in_every_command(tmp_path: Path) -> None:
    """By the seed, and not the first ones: of class folders those would be all of one class."""
    (tmp_path / "in").mkdir()
    for name in "abc":
        pictures(tmp_path / "in" / name, 4)
    explain = ("explain", tmp_path / "in", *SMALL, "--method", "center_map", "--limit", "5", "--seed", "3")
    evaluate = ("evaluate", tmp_path / "in", *SMALL, "--metrics", "sparseness", "--method", "center_map")
    assert run(*explain, "--out", tmp_path / "maps").exit_code == 0
    assert run(*evaluate, "--limit", "5", "--seed", "3", "--out", tmp_path / "scores").exit_code == 0
    lines = csv.DictReader((tmp_path / "scores" / "scores.csv").read_text().splitlines())
    chosen = {line["image"] for line in lines}
    assert chosen == {item["image"] for item in items(tmp_path / "maps")} and len(chosen) == 5
    assert len({Path(name).parent.name for name in chosen}) > 1


def test_other_settings_of_numbers_are_refused(tmp_path: Path) -> None:
    """A mean over two seeds or scores would mean nothing."""
    image = picture(tmp_path / "a.png")
    args = ("evaluate", image, *SMALL, *FAST, "--method", "gradient", "--out", tmp_path / "out")
    assert run(*args).exit_code == 0
    assert_refused(run(*args, "--seed", "1"), "holds results with seed=0, not 1")
    assert_refused(run(*args, "--score", "logit"), "score=")

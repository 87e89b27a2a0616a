"""`aha bench`, `report`, `compare`, `merge`: plans, options; one line for what is wrong, before any work."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from worlds import cells_of, count_lines, make_data

from command_line import assert_refused, run

MODEL = ("--model", "timm:test_resnet", "--no-pretrained", "--input-size", "64")
FAST = ("--metrics", "ins_del(steps=3, references=(black,))")


def test_from_a_plan_to_a_page(tmp_path: Path) -> None:
    data, out = make_data(tmp_path / "data", 3), tmp_path / "run"
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f'model = "timm:test_resnet"\npretrained = false\ninput_size = 64\ndata = "{data / "list.csv"}"\n'
        'methods = ["gradient", "center_map"]\nmetrics = ["ins_del(steps=3, references=(black,))"]\nlimit = 2\n'
    )
    dry = run("bench", plan, "--dry-run", "--json", "--out", out)
    assert dry.exit_code == 0, dry.output
    (cost,) = json.loads(dry.stdout)
    assert cost["cells"] == 4 and cost["forward"] > 0 and cost["bytes"] > 0 and not out.exists()
    done = run("bench", plan, "--out", out)
    assert done.exit_code == 0, done.output
    assert "ins_del" in done.stdout and (out / "report.html").is_file() and count_lines(out) == 4
    more = run("bench", plan, "--out", out, "--limit", "3", "--json", "--quiet")
    found = json.loads(more.stdout)
    assert found["groups"][0]["missing"] == 0 and found["groups"][0]["summary"][0]["n"] == 3 and count_lines(out) == 6
    (out / "scores.csv").unlink()
    again = run("report", out)
    assert again.exit_code == 0 and str(out / "report.html") in again.stdout
    assert len(list(csv.DictReader((out / "scores.csv").read_text().splitlines()))) == 6
    evaluated = run("evaluate", data / "list.csv", *MODEL, *FAST, "--method", "gradient", "--out", tmp_path / "scores")
    assert evaluated.exit_code == 0, evaluated.output
    theirs = list(csv.DictReader((tmp_path / "scores" / "scores.csv").read_text().splitlines()))
    ours = list(csv.DictReader((out / "scores.csv").read_text().splitlines()))
    assert [float(row["value"]) for row in ours if row["method"] == "gradient"] == pytest.approx(
        [float(row["value"]) for row in theirs], abs=1e-6
    )
    same = run("compare", out, out)
    assert same.exit_code == 0 and "same" in same.stdout
    merged = run("merge", out, "--out", tmp_path / "merged", "--json")
    assert json.loads(merged.stdout)["cells"] == 6


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--method", "gradeint"), "did you mean gradient"),
        (("--method", "gradient", "--metrics", "deletoin"), "did you mean deletion"),
        (("--method", "rollout"), "needs attention"),
        (("--method", "gradient", "--metrics", "seg", "--data", "{folder}"), "needs masks"),
        (("--method", "gradient", "--target", "label", "--data", "{folder}"), "needs labels"),
        (("--method", "gradient", "--target", "5000"), "does not exist"),
        (("--method", "gradient", "--data", "nowhere"), "does not exist"),
        (("--method", "gradient", "--data", "imagnet:x"), "did you mean imagenet"),
        (("--method", "gradient", "--keep-maps", "float8"), "float16"),
        (("--method", "gradient", "--precision", "float8"), "bfloat16"),
        ((), "lacks methods"),
    ],
)
def test_bad_plans_are_refused_before_any_work(words: tuple[str, ...], text: str, tmp_path: Path) -> None:
    data, out = make_data(tmp_path / "data", 2), tmp_path / "run"
    folder = tmp_path / "pictures"
    folder.mkdir()
    (data / "00.png").rename(folder / "00.png")
    make_data(tmp_path / "more", 2)
    chosen = [word.replace("{folder}", str(folder)) for word in words]
    given = ["--data", str(tmp_path / "more" / "list.csv")] if "--data" not in words else []
    assert_refused(run("bench", *MODEL, *FAST, *given, *chosen, "--out", out), text)
    assert not out.exists()


def test_another_precision_is_another_result(tmp_path: Path) -> None:
    """In a folder of its own: a mean over numbers of two settings would mean nothing."""
    data = make_data(tmp_path / "data", 1) / "list.csv"
    common = (*MODEL, *FAST, "--method", "center_map", "--quiet")
    bench = ("bench", *common, "--data", data, "--no-report", "--out")
    assert run(*bench, tmp_path / "full").exit_code == 0
    half = run(*bench, tmp_path / "half", "--precision", "bfloat16")
    assert half.exit_code == 0, half.output
    runs = (cells_of(tmp_path / name) for name in ("full", "half"))
    full, rounded = (cell["found"][0]["rows"][0][2] for cells in runs for cell in cells.values())
    assert full != rounded and full == pytest.approx(rounded, abs=0.05)
    scores = ("evaluate", data, *common, "--out", tmp_path / "scores")
    assert run(*scores).exit_code == 0 and run(*scores).exit_code == 0
    for args in (scores, (*bench, tmp_path / "full")):
        for change in (("--precision", "bfloat16"), ("--fit", "pad")):
            assert_refused(run(*args, *change), "choose another folder")


def test_published_tables_on_a_tiny_model(tmp_path: Path) -> None:
    """With the paper's own protocols; what does not fit the model is left out and named, not refused."""
    data = make_data(tmp_path / "data", 2)
    synset = tmp_path / "imagenet" / "val" / "n01440764"
    synset.mkdir(parents=True)
    for index in range(2):
        (synset / f"{index}.png").write_bytes((data / f"{index:02d}.png").read_bytes())
    chosen = (*MODEL, "--method", "grad_cam", "--method", "legrad", "--limit", "1")
    for table, place in (
        ("mda-table3", ("--imagenet", tmp_path / "imagenet")),  # perturbed at nine levels
        ("mda-table2", ("--data", data / "list.csv")),  # segmentation
    ):
        out = tmp_path / table
        done = run("bench", f"paper:{table}", *chosen, *place, "--out", out, "--quiet")
        assert done.exit_code == 0, done.output
        assert count_lines(out) == 1
        text = (out / "report.html").read_text()
        for words in ("Compared with the paper", "stands in for the paper", "Skipped", "legrad", "grad_cam"):
            assert words in text, (table, words)


def test_bad_plan_files(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("model = 3 4")
    assert_refused(run("bench", plan, "--out", tmp_path / "run"), "is not TOML")
    plan.write_text('model = "timm:test_resnet"\ndata = "x"\nmethods = ["gradient"]\nmetric = ["quick"]\n')
    assert_refused(run("bench", plan, "--out", tmp_path / "run"), "did you mean metrics")
    assert_refused(run("bench", "paper:aha-tabel1", "--out", tmp_path / "run"), "did you mean")
    assert_refused(run("report", tmp_path / "none"), "not the folder of a run")
    assert not (tmp_path / "run").exists()


def test_a_bench_that_measured_nothing_fails(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", 2)
    for picture in data.glob("*.png"):
        picture.write_bytes(b"nothing")
    done = run("bench", *MODEL, *FAST, "--method", "gradient", "--data", data / "list.csv", "--out", tmp_path / "run")
    assert done.exit_code == 1 and "nothing could be measured" in done.stderr


def test_a_list_from_a_spreadsheet(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", 2)
    (data / "list.csv").write_text((data / "list.csv").read_text(), encoding="utf-8-sig")  # with a mark in front
    done = run("bench", *MODEL, *FAST, "--method", "center_map", "--data", data / "list.csv", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output


def test_the_former_word_for_what_to_keep_still_works(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", 1)
    words = ("bench", *MODEL, *FAST, "--method", "gradient", "--data", data / "list.csv", "--dry-run")
    assert "use --keep-maps" in run(*words, "--maps", "none", "--out", tmp_path / "run").stderr

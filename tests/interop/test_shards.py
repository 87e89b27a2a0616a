"""Batches of pictures to Arrow tables and shards: equal to `aha.explain`, told apart by key, continued at any time."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import aha
import command_line
from aha.data.datasets import BenchImage
from aha.errors import ImageError, OutputError
from aha.interop.arrow import Explain, in_half_range, keys_of
from aha.interop.shards import ShardRun, WriteShards, begin, digests_of, finished_keys
from fakes import SIZE, TinyCNN, randomised

pyarrow = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

MODEL: dict[str, Any] = {"input_size": SIZE, "mean": (0.5,) * 3, "std": (0.5,) * 3}


def module(seed: int = 0) -> torch.nn.Module:
    return randomised(TinyCNN(), seed)


def pixels(index: int) -> Any:
    return np.random.default_rng(index).integers(0, 255, (40, 48, 3), dtype=np.uint8)


def content(index: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(index)).save(file, "PNG")
    return file.getvalue()


def test_a_batch_gives_the_maps_classes_and_scores_of_explain() -> None:
    model = aha.load_model(module(), **MODEL)
    table = Explain(model, ["gradient", "grad_cam"], "top2", maps="float32")(
        {"key": ["a", "b"], "bytes": [content(0), content(1)]}
    )
    for method in ("gradient", "grad_cam"):
        found = aha.explain(model, [pixels(0), pixels(1)], method, "top2")
        rows = [row for row in table.to_pylist() if row["method"] == method]
        assert [row["key"] for row in rows] == ["a", "a", "b", "b"]
        assert [row["target"] for row in rows] == found.targets.tolist()
        assert [row["label"] for row in rows] == found.labels
        maps = np.asarray([row["map"] for row in rows], dtype=np.float32).reshape(-1, SIZE, SIZE)
        assert np.allclose(maps, found.maps, atol=1e-6)
        assert np.allclose([row["score"] for row in rows], found.scores, atol=1e-6)
    assert table.schema.metadata[b"digest"].decode() == model.digest


@pytest.mark.parametrize("column", ["path", "bytes", "image"])
def test_pictures_come_as_paths_contents_or_arrays(column: str, tmp_path: Path) -> None:
    given: dict[str, Callable[[int], Any]] = {"path": str, "bytes": content, "image": pixels}
    values = [given[column](index) for index in range(2)]
    if column == "path":
        values = [tmp_path / f"{index}.png" for index in range(2)]
        for index, path in enumerate(values):
            path.write_bytes(content(index))
    table = Explain(module(), "gradient", **MODEL)({column: values})
    assert np.allclose(
        table["score"].to_numpy(),
        aha.explain(aha.load_model(module(), **MODEL), [pixels(0), pixels(1)], "gradient").scores,
        atol=1e-6,
    )
    assert len(set(table["key"].to_pylist())) == 2


def test_a_picture_that_cannot_be_read_is_a_row_with_the_reason() -> None:
    table = Explain(module(), "gradient", **MODEL)({"key": ["good", "bad"], "bytes": [content(0), b"no picture"]})
    rows = {row["key"]: row for row in table.to_pylist()}
    assert rows["good"]["error"] is None
    assert rows["bad"]["map"] is None
    assert "image-1" in rows["bad"]["error"]


def test_a_batch_without_pictures_says_what_it_needs() -> None:
    with pytest.raises(ImageError, match="one of the columns bytes, path"):
        Explain(module(), "gradient", **MODEL)({"text": ["no"]})


def test_keys_are_given_or_made_of_the_content() -> None:
    assert keys_of({"__key__": ["n1"], "jpg": [b""]}) == ["n1"]
    assert keys_of({"bytes": [b"1", b"2", b"1"]})[0] == keys_of({"bytes": [b"1"]})[0]


@pytest.mark.parametrize("size", [1e9, 1.0, 1e-7])
def test_maps_of_any_unit_fit_into_halves(size: float) -> None:
    values = np.linspace(-size, size, 7, dtype=np.float32)
    halves = in_half_range(values).astype(np.float32)
    assert np.allclose(halves / halves.max(), values / values.max(), atol=1e-3)


@pytest.mark.parametrize("form", ["parquet", "webdataset"])
def test_shards_hold_everything_once(form: Any, tmp_path: Path) -> None:
    begin(tmp_path / "out", {"model": "a"})
    batch = {"key": ["a/1.png", "b.2", "bad"], "bytes": [content(0), content(1), b"no picture"]}
    options = {"form": form, "maps": "float32", **MODEL}
    write = WriteShards(module(), ["gradient"], "top1", tmp_path / "out", **options)
    told = write(batch)
    assert (told["done"], told["skipped"]) == ([2], [0])
    assert [key for key, _ in json.loads(told["failures"][0])] == ["bad"]
    assert finished_keys(tmp_path / "out") == {"a/1.png", "b.2"}
    assert digests_of(tmp_path / "out") == {write.model.digest}
    expected = aha.explain(write.model, [pixels(0), pixels(1)], "gradient").maps.numpy()
    assert np.allclose(stored_maps(tmp_path / "out", ["a/1.png", "b.2"]), expected, atol=1e-6)

    again = WriteShards(module(), ["gradient"], "top1", tmp_path / "out", **options)
    more = {"key": [*batch["key"], "new"], "bytes": [*batch["bytes"], content(2)]}
    assert again(more)["done"] == [1]
    assert again(more)["skipped"] == [2]
    assert finished_keys(tmp_path / "out") == {"a/1.png", "b.2", "new"}


def stored_maps(out: Path, keys: list[str]) -> Any:
    found: dict[str, Any] = {}
    for shard in out.glob("*.parquet"):
        for row in pq.read_table(shard).to_pylist():
            found[row["key"]] = np.asarray(row["map"], dtype=np.float32).reshape(row["height"], row["width"])
    for shard in out.glob("*.tar"):
        with tarfile.open(shard) as tar:
            files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        for name, text in files.items():
            if name.endswith(".json"):
                found[json.loads(text)["key"]] = np.load(io.BytesIO(files[name.replace(".json", ".npy")]))
    return np.stack([found[key] for key in keys])


def test_several_processes_share_the_pictures(tmp_path: Path) -> None:
    files = [tmp_path / f"{index}.png" for index in range(5)]
    for index, file in enumerate(files):
        file.write_bytes(content(index))
    images = [BenchImage(str(file), partial(Path, file), file) for file in files]
    options: dict[str, Any] = {"pretrained": False, "device": "cpu", "maps": "float32"}
    for process in range(2):
        run = ShardRun(tmp_path / "out", "timm:test_resnet", "gradient", **options)
        run.run(images, (process, 2), size=2)
        assert (run.done, run.skipped) == (3 - process, 0)
    alone = ShardRun(tmp_path / "out", "timm:test_resnet", "gradient", **options)
    alone.run([*images, BenchImage("gone.png", lambda: tmp_path / "gone.png")])
    assert (alone.done, alone.skipped) == (0, 5)
    assert [failure.image for failure in alone.failures] == ["gone.png"]
    expected = aha.explain(aha.load_model("timm:test_resnet", pretrained=False, device="cpu"), files, "gradient")
    assert np.allclose(stored_maps(tmp_path / "out", [str(file) for file in files]), expected.maps, atol=1e-6)


def test_a_folder_of_other_work_is_refused(tmp_path: Path) -> None:
    begin(tmp_path / "out", {"model": "a", "seed": 0})
    begin(tmp_path / "out", {"model": "a", "seed": 0})
    with pytest.raises(OutputError, match="another seed"):
        begin(tmp_path / "out", {"model": "a", "seed": 1})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(OutputError, match="something else"):
        begin(tmp_path / "mine", {})


def test_shards_of_other_weights_are_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"form": "parquet", **MODEL}
    begin(tmp_path, {})
    WriteShards(module(), ["gradient"], "top1", tmp_path, **options)({"key": ["a"], "bytes": [content(0)]})
    with pytest.raises(OutputError, match="other weights"):
        WriteShards(module(seed=1), ["gradient"], "top1", tmp_path, **options)


def test_processes_of_a_launcher_share_a_folder_of_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = command_line.pictures(tmp_path / "in", 3), tmp_path / "out"
    args = ("explain", folder, *command_line.MODEL, "--method", "gradient", "--out", out, "--json")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, count in (("0", 2), ("1", 1)):
        monkeypatch.setenv("RANK", rank)
        told = json.loads(command_line.run(*args, "--shards", "parquet").stdout)
        assert (told["done"], told["skipped"], told["failed"]) == (count, 0, 0)
    monkeypatch.delenv("WORLD_SIZE")
    told = json.loads(command_line.run(*args, "--shards", "parquet").stdout)
    assert (told["done"], told["skipped"]) == (0, 3)
    command_line.assert_refused(command_line.run(*args, "--shards", "zip"), "parquet or webdataset")

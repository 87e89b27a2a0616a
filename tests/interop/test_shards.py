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
from aha.data.images import LabelledImage
from aha.errors import DamageWarning, ImageError, OutputError, TargetError
from aha.interop.arrow import Explain, in_half_range, keys_of
from aha.interop.shards import ShardRun, WriteShards, begin
from aha.learned.explainer import Explainer
from aha.learned.settings import Design
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
    assert sorted(stored(tmp_path / "out")) == ["a/1.png", "b.2"]
    assert not write.shelf.has_others(write.model.digest) and write.shelf.has_others("another")
    if form == "webdataset":
        assert {values.dtype for values in stored(tmp_path / "out").values()} == {np.dtype(np.float32)}
    expected = aha.explain(write.model, [pixels(0), pixels(1)], "gradient").maps.numpy()
    assert np.allclose(list(stored(tmp_path / "out").values()), expected, atol=1e-6)

    again = WriteShards(module(), ["gradient"], "top1", tmp_path / "out", **options)
    more = {"key": [*batch["key"], "new"], "bytes": [*batch["bytes"], content(2)]}
    assert again(more)["done"] == [1]
    assert again(more)["skipped"] == [3]
    assert sorted(stored(tmp_path / "out")) == ["a/1.png", "b.2", "new"]


def stored(out: Path) -> dict[str, Any]:
    """Picture -> its map, as anybody would read it who knows nothing of us; each is there once."""
    found: list[tuple[str, Any]] = []
    for shard in out.glob("*.parquet"):
        for row in pq.read_table(shard).to_pylist():
            values = np.asarray(row["map"], dtype=np.float32).reshape(row["height"], row["width"])
            found.append((row["key"], values))
    for shard in out.glob("*.tar"):
        with tarfile.open(shard) as tar:
            files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        for name, text in files.items():
            if name.endswith(".json"):
                found.append((json.loads(text)["key"], np.load(io.BytesIO(files[name.replace(".json", ".npy")]))))
    assert len(dict(found)) == len(found)
    return dict(sorted(found, key=lambda pair: pair[0]))


@pytest.mark.parametrize("form", ["parquet", "webdataset"])
def test_a_changed_picture_replaces_its_former_rows(form: Any, tmp_path: Path) -> None:
    """Known by its name alone, it would pass for finished."""
    begin(tmp_path, {})
    model = aha.load_model(module(), **MODEL)
    write = partial(WriteShards, model, ["gradient"], "top1", tmp_path, form=form, maps="float32")
    names = ["a", "b", "c"]
    write()({"key": names, "bytes": [content(0), content(1), content(2)]})
    told = write()({"key": names[:2], "bytes": [content(0), content(7)]})
    assert (told["done"], told["skipped"]) == ([1], [1])
    expected = aha.explain(model, [pixels(0), pixels(7), pixels(2)], "gradient").maps.numpy()
    assert np.allclose(list(stored(tmp_path).values()), expected, atol=1e-6)
    assert write()({"key": names, "bytes": [content(0), content(7), content(2)]})["skipped"] == [3]
    write()({"key": names, "bytes": [content(0)] * 3})  # nothing is left of the others
    assert np.allclose(list(stored(tmp_path).values()), expected[[0, 0, 0]], atol=1e-6)


@pytest.mark.parametrize("form", ["parquet", "webdataset"])
def test_scores_without_maps_are_continued(form: Any, tmp_path: Path) -> None:
    begin(tmp_path, {})
    write = partial(WriteShards, module(), ["gradient"], "top1", tmp_path, form=form, maps="none", **MODEL)
    write()({"key": ["a", "b"], "bytes": [content(0), content(1)]})
    told = write()({"key": ["a", "b"], "bytes": [content(0), content(3)]})
    assert (told["done"], told["skipped"]) == ([1], [1])
    assert write()({"key": ["a", "b"], "bytes": [content(0), content(3)]})["skipped"] == [2]


def test_rows_of_a_killed_replacement_are_taken_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path, {})
    write = partial(WriteShards, module(), ["gradient"], "top1", tmp_path, **MODEL)
    write()({"key": ["a", "b"], "bytes": [content(0), content(1)]})
    with monkeypatch.context() as patch:
        patch.setattr("aha.interop.shelf.Shelf.drop_former", lambda *_: None)  # killed before it
        write()({"key": ["a"], "bytes": [content(2)]})
    assert write()({"key": ["a"], "bytes": [content(2)]})["skipped"] == [1]
    assert list(stored(tmp_path)) == ["a", "b"]


def test_labels_are_read_where_they_are_explained() -> None:
    batch = {"bytes": [content(0), content(1)], "label": ["cat", "dog"]}
    explained = Explain(module(), "gradient", [2, 3], **MODEL)(batch)
    assert explained["target"].to_pylist() == [2, 3] and explained["error"].null_count == 2
    with pytest.raises(TargetError, match="the column label holds something else"):
        Explain(module(), "gradient", "label", **MODEL)(batch)


def test_another_label_is_another_result(tmp_path: Path) -> None:
    begin(tmp_path, {})
    write = partial(WriteShards, module(), ["gradient"], "label", tmp_path, **MODEL)
    write()({"key": ["a"], "bytes": [content(0)], "label": [1]})
    assert write()({"key": ["a"], "bytes": [content(0)], "label": [1]})["skipped"] == [1]
    assert write()({"key": ["a"], "bytes": [content(0)], "label": [2]})["done"] == [1]


def test_another_explainer_is_another_method(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "explainer"
    model = aha.load_model(module(), **MODEL)
    begin(out, {})
    for seed in (0, 1):
        Explainer.for_target(model, Design(stride=8, width=16), seed=seed).save_pretrained(folder)
        write = WriteShards(model, [f"aha({str(folder)!r})"], "top1", out)
        assert write({"key": ["a"], "bytes": [content(0)]})["done"] == [1]
    assert list(stored(out)) == ["a"]


@pytest.mark.parametrize("form", ["parquet", "webdataset"])
def test_a_damaged_shard_is_made_again(form: Any, tmp_path: Path) -> None:
    """One bit of a map: everything can still be read."""
    begin(tmp_path, {})
    write = partial(WriteShards, module(), ["gradient"], "top1", tmp_path, form=form, maps="float32", **MODEL)
    batch = {"key": ["a", "b"], "bytes": [content(0), content(1)]}
    write()(batch)
    (shard,) = (path for path in tmp_path.iterdir() if path.suffix in (".parquet", ".tar"))
    whole, expected = shard.read_bytes(), stored(tmp_path)
    if form == "parquet":  # compressed: a bit of the stored values, not of the file
        table = pq.read_table(shard)
        maps = [[*values.as_py()[:-1], 0.5] for values in table["map"]]
        pq.write_table(table.set_column(7, "map", pyarrow.array(maps, table["map"].type)), shard)
    else:
        place = whole.rindex(b"NUMPY") + 200
        shard.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.warns(DamageWarning, match="damaged and dropped"):
        assert write()(batch)["done"] == [2]
    found = stored(tmp_path)
    assert all(np.array_equal(found[key], expected[key]) for key in expected)


def test_several_processes_share_the_pictures(tmp_path: Path) -> None:
    files = [tmp_path / f"{index}.png" for index in range(5)]
    for index, file in enumerate(files):
        file.write_bytes(content(index))
    images = [LabelledImage(str(file), str(file)) for file in files]
    options: dict[str, Any] = {"pretrained": False, "device": "cpu", "maps": "float32"}
    for process in range(2):
        run = ShardRun(tmp_path / "out", "timm:test_resnet", "gradient", **options)
        run.run(images, (process, 2), size=2)
        assert (run.done, run.skipped) == (3 - process, 0)
    alone = ShardRun(tmp_path / "out", "timm:test_resnet", "gradient", **options)
    alone.run([*images, LabelledImage("gone.png", given=lambda: tmp_path / "gone.png")])
    assert (alone.done, alone.skipped) == (0, 5)
    assert [failure.image for failure in alone.failures] == ["gone.png"]
    expected = aha.explain(aha.load_model("timm:test_resnet", pretrained=False, device="cpu"), files, "gradient")
    assert np.allclose(list(stored(tmp_path / "out").values()), expected.maps, atol=1e-6)


def test_a_folder_of_other_work_is_refused(tmp_path: Path) -> None:
    begin(tmp_path / "out", {"model": "a", "seed": 0})
    begin(tmp_path / "out", {"model": "a", "seed": 0})
    with pytest.raises(OutputError, match="another seed"):
        begin(tmp_path / "out", {"model": "a", "seed": 1})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(OutputError, match="something other than shards"):
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

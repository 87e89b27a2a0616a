"""What explaining returns: maps with everything needed to read, draw, store and repeat them."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import aha
from aha.core.disk import write_atomically
from aha.core.store import encode
from aha.errors import AhaWarning, MapWarning, ModelError, OutputError
from aha.methods import Method, load_method
from aha.models import TargetModel, load_model
from aha.results.explanation import Explanation
from aha.results.folder import JOURNAL, MANIFEST, ResultFolder
from fakes import CLASSES, SIZE, LinearModel, TinyCNN, plain_module, randomised

NORMAL = {"input_size": SIZE, "mean": (0.5,) * 3, "std": (0.5,) * 3}


@pytest.fixture
def model() -> TargetModel:
    return load_model(randomised(TinyCNN()), **NORMAL, class_names=["ant", "bee", "cow", "dog", "eel & co"])


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


# Coordinates


def test_maps_in_the_pixels_of_the_original(model: TargetModel) -> None:
    """A picture twice as wide as high: the model saw the middle half of it."""
    found = aha.explain(model, photo(96, 48), "gradient")
    values = found.original_map()
    assert values.shape == (48, 96)
    assert values[:, :24].isnan().all() and values[:, 72:].isnan().all()
    seen = values[:, 24:72]
    expected = F.interpolate(found.maps[:, None], size=(48, 48), mode="bilinear", align_corners=False)[0, 0]
    assert torch.allclose(seen, expected, atol=1e-6)


def test_whole_pictures_are_seen_whole() -> None:
    for fit in ("squash", "pad"):
        model = load_model(randomised(TinyCNN()), **NORMAL, fit=fit)
        assert aha.explain(model, photo(96, 48), "gradient").original_map().isfinite().all()


def test_tensors_have_no_other_coordinates(images: Tensor) -> None:
    found = aha.explain(randomised(TinyCNN()), images, "gradient")
    assert torch.equal(found.original_map(2), found.maps[2])


def test_maps_are_enlarged_in_one_documented_way(model: TargetModel, images: Tensor) -> None:
    method = load_method("grad_cam")
    native = method(model, images, torch.tensor([1] * 4))
    assert native.shape == (4, 8, 8)
    found = aha.explain(model, images, method, target=1)
    expected = F.interpolate(native[:, None], size=(SIZE, SIZE), mode="bilinear", align_corners=False)[:, 0]
    assert torch.equal(found.maps, expected)
    assert found.settings["upsampling"] == "bilinear"


# Reading and drawing


def test_everything_is_there(model: TargetModel) -> None:
    picture = photo(96, 48)
    found = aha.explain(model, [picture, photo(40, 60)], "smooth(gradient, n=2)", target="top2", seed=5)
    assert len(found) == 4
    assert repr(found).startswith("Explanation(smooth(gradient, n=2) of module:TinyCNN: 4 maps of 32x32, ")
    assert found.numpy().shape == (4, SIZE, SIZE) and found.numpy().dtype == np.float32
    assert found.method == "smooth(gradient, n=2)"
    assert load_method(found.method) == load_method("smooth(gradient, n=2)")
    assert (found.model, found.digest) == ("module:TinyCNN", model.digest)
    assert found.settings == {
        "seed": 5,
        "score": "softmax",
        "upsampling": "bilinear",
        "precision": "float32",
        "input_size": [SIZE, SIZE],
    }
    assert [s.name for s in found.subjects] == ["image-0", "image-0", "image-1", "image-1"]
    assert found.labels[0] == ["ant", "bee", "cow", "dog", "eel & co"][int(found.targets[0])]
    assert found.caption() == f"{found.labels[0]} {float(found.scores[0]):.3g}"
    assert found.seconds > 0
    assert found.heatmap().size == picture.size
    assert found.overlay(caption=False).size == picture.size
    assert found.overlay().size[1] > picture.size[1], "the caption stands below"
    assert found.top_mask(2, percent=10).size == (40, 60)


def test_scores_are_the_models_own(model: TargetModel, images: Tensor) -> None:
    found = aha.explain(model, images, "edge_map", target="top5")
    with torch.no_grad():
        expected = model.module(images).softmax(dim=1).sort(descending=True)
    assert torch.allclose(found.scores.view(4, 5), expected.values, atol=1e-6)
    assert torch.equal(found.targets.view(4, 5), expected.indices)


def test_batches_are_joined_in_order(model: TargetModel, images: Tensor) -> None:
    whole = aha.explain(model, images, "gradient", target=[[0, 1], [2], [3], [4, 0]])
    parts = list(aha.explain_batches(model, images, "gradient", target=[[0, 1], [2], [3], [4, 0]], batch_size=3))
    assert [len(part) for part in parts] == [4, 2]
    joined = Explanation.join(parts)
    assert joined.targets.tolist() == whole.targets.tolist() == [0, 1, 2, 3, 4, 0]
    assert torch.allclose(joined.maps, whole.maps, atol=1e-6)
    assert [s.name for s in joined.subjects] == [s.name for s in whole.subjects]
    assert joined.seconds == pytest.approx(sum(part.seconds for part in parts))


def test_notebooks_show_pictures(model: TargetModel, images: Tensor) -> None:
    page = aha.explain(model, images, "gradient(channels='sum')", target="top4")._repr_html_()
    assert page.count("<img") == 2 * 12 and "and 4 more" in page
    assert "gradient(channels=&#x27;sum&#x27;)" in page
    data = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", page)
    assert Image.open(io.BytesIO(base64.b64decode(data[0]))).format == "PNG"
    assert "more" not in aha.explain(model, images, "gradient")._repr_html_()


# On disk


def test_a_saved_explanation_is_complete(model: TargetModel, tmp_path: Path) -> None:
    found = aha.explain(model, [photo(96, 48), photo(40, 60)], "gradient", target="top2", seed=3)
    path = found.save(tmp_path / "new" / "out")
    manifest = json.loads(path.read_text())
    assert path == tmp_path / "new" / "out" / MANIFEST
    assert manifest["model"] == "module:TinyCNN"
    assert manifest["model_digest"] == model.digest
    assert manifest["seed"] == 3
    assert manifest["settings"]["upsampling"] == "bilinear"
    assert {"aha-attribution", "torch", "timm", "python"} <= set(manifest["versions"])
    assert len(manifest["items"]) == 4
    for index, item in enumerate(manifest["items"]):
        assert item["image"] == found.subjects[index].name
        assert item["method"] == "gradient"
        assert item["target"] == int(found.targets[index])
        assert item["label"] == found.labels[index]
        assert item["score"] == pytest.approx(float(found.scores[index]))
        with np.load(path.parent / item["map"]) as arrays:
            assert set(arrays) == {"map", "model_map", "seen"}
            np.testing.assert_array_equal(arrays["model_map"], found.maps[index])
            np.testing.assert_array_equal(arrays["map"], found.original_map(index))
            np.testing.assert_array_equal(arrays["seen"], found.subjects[index].geometry.seen())
        with Image.open(path.parent / item["heatmap"]) as picture:
            assert picture.size == found.subjects[index].image.size
        with Image.open(path.parent / item["overlay"]) as picture:
            assert picture.size == found.overlay(index).size
    assert not list(path.parent.rglob("*.partial"))


def test_several_methods_share_a_folder(model: TargetModel, images: Tensor, tmp_path: Path) -> None:
    aha.explain(model, images, "gradient").save(tmp_path)
    aha.explain(model, images, "edge_map").save(tmp_path)
    before = json.loads((tmp_path / MANIFEST).read_text())
    assert [item["method"] for item in before["items"]] == ["gradient"] * 4 + ["edge_map"] * 4
    aha.explain(model, images, "gradient").save(tmp_path)  # again: replaced, not repeated
    after = json.loads((tmp_path / MANIFEST).read_text())
    assert len(after["items"]) == 8
    assert len({item["map"] for item in after["items"]}) == 8


def test_texts_that_look_alike_as_file_names_stay_apart(model: TargetModel, images: Tensor, tmp_path: Path) -> None:
    methods = ["smooth(smooth(gradient, n=2))", "smooth(smooth(gradient), n=2)"]
    found = [aha.explain(model, images[:1], method) for method in methods]
    assert not torch.equal(found[0].maps, found[1].maps)
    for explanation in (*found, *found):
        explanation.save(tmp_path)
    items = json.loads((tmp_path / MANIFEST).read_text())["items"]
    assert [item["method"] for item in items] == methods
    for item, explanation in zip(items, found, strict=True):
        with np.load(tmp_path / item["map"]) as arrays:
            np.testing.assert_array_equal(arrays["model_map"], explanation.maps[0])


def test_pictures_of_the_same_name_stay_apart(model: TargetModel, tmp_path: Path) -> None:
    files = []
    names = ["one/cat.png", "two/cat.png", "cat.bmp", f"{MANIFEST}.png", "Cat.png"]
    for index, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        photo(40, 40, seed=index).save(tmp_path / name)
        files.append(tmp_path / name)
    out = tmp_path / "out"
    for chosen in (files, reversed(files)):  # a second run finds the same folders
        aha.explain(model, list(chosen), "gradient").save(out)
    items = json.loads((out / MANIFEST).read_text())["items"]
    assert len({item["map"].lower() for item in items}) == len(items) == len(names)
    for item in items:
        expected = aha.explain(model, item["image"], "gradient").maps[0]
        with np.load(out / item["map"]) as arrays:
            np.testing.assert_allclose(arrays["model_map"], expected, atol=1e-6)


def test_a_write_that_fails_leaves_no_part_behind(
    model: TargetModel, images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aha.explain(model, images, "gradient").save(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    plain = Path.replace

    def full_disk(self: Path, target: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OutputError, match="No space left on device"):
        replace(aha.explain(model, images, "gradient"), settings={"seed": 9}).save(tmp_path)
    monkeypatch.setattr(Path, "replace", plain)
    assert not list(tmp_path.rglob("*.partial"))
    pictures = {path: data for path, data in before.items() if path.suffix == ".png"}
    assert all(path.read_bytes() == data for path, data in pictures.items())
    with ResultFolder(tmp_path, model.spec, model.digest):
        pass
    assert len(json.loads((tmp_path / MANIFEST).read_text())["items"]) == 4


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, lambda file: file.write(b"old"))

    def interrupted(file: Any) -> None:
        file.write(b"new, but")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, interrupted)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_folders_of_others_are_refused(model: TargetModel, images: Tensor, tmp_path: Path) -> None:
    aha.explain(model, images, "gradient").save(tmp_path / "a")
    other = aha.explain(randomised(TinyCNN(), seed=8), images, "gradient")
    with pytest.raises(OutputError, match=r"holds results of module:TinyCNN \(other weights or model\)"):
        other.save(tmp_path / "a")
    (tmp_path / "b").mkdir()
    for text in ("{}", "[]", "no json", '{"items": 3}'):
        (tmp_path / "b" / MANIFEST).write_text(text)
        with pytest.raises(OutputError, match="is not a manifest of aha explain"):
            other.save(tmp_path / "b")
        assert (tmp_path / "b" / MANIFEST).read_text() == text
    former = {
        "key": "70641163834ee0ce-saved",
        "image": "a",
        "method": "gradient",
        "target": 1,
        "map": "a/gradient_1.npz",
    }
    (tmp_path / "b" / JOURNAL).write_bytes(encode({**former, "picture": "", "sums": {"map": "0" * 16}}))
    with pytest.raises(OutputError, match=r"holds maps of aha 0.1, which are no longer read"):
        other.save(tmp_path / "b")
    (tmp_path / "c").write_text("a file")
    for place in (tmp_path / "c", tmp_path / "c" / "d"):
        with pytest.raises(OutputError, match="cannot write to"):
            other.save(place)


def test_a_killed_run_is_taken_up_again(model: TargetModel, images: Tensor, tmp_path: Path) -> None:
    found = aha.explain(model, images, "gradient")

    def there() -> list[int]:
        results = ResultFolder(tmp_path, found.model, found.digest, found.settings)
        return [index for index in range(3) if results.has(f"work{index}-state")]

    with ResultFolder(tmp_path, found.model, found.digest, found.settings) as results:
        for index in (0, 1):
            results.add(found.item(index, key=f"work{index}-state"))
    (tmp_path / MANIFEST).unlink()
    with (tmp_path / JOURNAL).open("a") as journal:
        journal.write('{"key":"image-2", "meth')  # killed here
    assert there() == [0, 1]
    with ResultFolder(tmp_path, found.model, found.digest, found.settings) as again:
        again.add(found.item(2, key="work2-state"))
    assert there() == [0, 1, 2]
    listed = json.loads((tmp_path / MANIFEST).read_text())["items"]
    assert len(listed) == 3
    (tmp_path / listed[0]["overlay"]).unlink()
    assert there() == [1, 2], "its picture is gone"
    with pytest.raises(OutputError, match="holds results of"):
        ResultFolder(tmp_path, found.model, "another digest")


def test_who_saves_to_the_same_folder_at_the_same_time_loses_nothing(
    model: TargetModel, images: Tensor, tmp_path: Path
) -> None:
    found = [aha.explain(model, images, method) for method in ("gradient", "center_map", "edge_map")]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda one: one.save(tmp_path), found))
    items = json.loads((tmp_path / MANIFEST).read_text())["items"]
    assert len({(item["image"], item["method"]) for item in items}) == len(items) == 3 * len(images)


# Maps that say nothing


class Zero(LinearModel):
    """Depends on its input by nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 0)


class Overflowing(LinearModel):
    """Its outputs are not finite."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * math.inf


class SteepAtZero(LinearModel):
    """Finite outputs, infinite slopes."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x * 0).sqrt())


class SumOfPixels(nn.Module):
    """Every pixel counts the same."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sum(dim=(1, 2, 3))[:, None].expand(-1, CLASSES)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (Zero(), "is flat at 0: no positive evidence, or a gradient that is zero everywhere"),
        (SumOfPixels(), "is flat at 1: every place got the same value"),
        (Overflowing(), "has values that are not finite: the model's outputs are not finite"),
        (SteepAtZero(), "has values that are not finite: the method divided by zero or overflowed"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_unusable_maps_are_returned_with_a_warning_that_names_the_cause(
    module: nn.Module, says: str, images: Tensor, tmp_path: Path
) -> None:
    with pytest.warns(MapWarning) as caught:
        found = aha.explain(module, images[:2], "gradient", target=3)
    assert len(caught) == 2
    for index, warning in enumerate(caught):
        assert str(warning.message).startswith(f"gradient of image-{index} for class 3 {says}")
    found.save(tmp_path)  # and can be drawn and stored all the same
    text = (tmp_path / MANIFEST).read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found._repr_html_()
    with np.load(tmp_path / json.loads(text)["items"][0]["map"]) as arrays:
        assert arrays["seen"].all(), "NaN in a map is not the same as never seen"


def test_warnings_can_be_silenced_by_their_kind(images: Tensor) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AhaWarning)
        aha.explain(Zero(), images, "gradient")


def test_a_method_that_returns_something_else(images: Tensor) -> None:
    @dataclass(frozen=True)
    class Wrong(Method):
        name = "wrong"

        def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
            return images

    with pytest.raises(
        ModelError, match=r"wrong returned maps of shape \(4, 3, 32, 32\), not \(batch, height, width\)"
    ):
        aha.explain(plain_module(), images, Wrong())

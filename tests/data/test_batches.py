"""Inputs of every kind: pictures go through preprocessing, tensors pass as they are, nothing is guessed."""

from __future__ import annotations

from collections import UserDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import aha
from aha.data.batches import Batch, count_images, iter_batches
from aha.errors import CapabilityError, ImageError, SpecError, TargetError
from aha.models import TargetModel, load_model
from fakes import SIZE, TinyCNN, randomised

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)


@pytest.fixture
def model() -> TargetModel:
    return load_model(randomised(TinyCNN()), input_size=SIZE, mean=MEAN, std=STD)


@pytest.fixture
def bare() -> TargetModel:
    return load_model(randomised(TinyCNN()))


def picture(seed: int, size: tuple[int, int] = (SIZE, SIZE)) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index, name in enumerate(["b.png", "a.png", "deep/c.png"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        picture(index).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("no picture")
    return tmp_path


def collect(model: TargetModel, images: Any, batch_size: int = 2, **options: Any) -> list[Batch]:
    return list(iter_batches(model, images, batch_size, **options))


def inputs_of(batches: list[Batch]) -> Tensor:
    return torch.cat([batch.inputs for batch in batches])


def normalised(image: Image.Image) -> Tensor:
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255
    return (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


# Pictures


def test_one_picture_in_all_its_forms(model: TargetModel, folder: Path) -> None:
    image = picture(0)
    array = np.array(image)
    forms: list[Any] = [
        folder / "b.png",
        str(folder / "b.png"),
        image,
        array,
        array.astype(np.float32) / 255,
        torch.from_numpy(array).permute(2, 0, 1),
        torch.from_numpy(array).permute(2, 0, 1)[None],
        [image],
        (array,),
    ]
    for form in forms:
        (batch,) = collect(model, form)
        assert torch.allclose(batch.inputs, normalised(image)[None], atol=1e-5)
        assert np.array_equal(np.array(batch.subjects[0].image), array)
        assert count_images(form) == 1
    grey = np.array(image.convert("L"))
    (batch,) = collect(model, grey)
    assert batch.inputs.shape == (1, 3, SIZE, SIZE)


def test_folders_and_mixed_lists(model: TargetModel, folder: Path) -> None:
    batches = collect(model, folder)
    assert [len(batch.inputs) for batch in batches] == [2, 1]
    names = [subject.name for batch in batches for subject in batch.subjects]
    assert names == [str(folder / name) for name in ("a.png", "b.png", "deep/c.png")]
    assert batches[0].subjects[0].path == folder / "a.png"
    assert count_images(folder) == count_images([folder]) == 3
    mixed: list[Any] = [folder / "deep", picture(7), str(folder / "a.png"), np.zeros((8, 9), dtype=np.uint8)]
    batches = collect(model, mixed, batch_size=10)
    names = [subject.name for subject in batches[0].subjects]
    assert names == [str(folder / "deep/c.png"), "image-1", str(folder / "a.png"), "image-3"]
    assert torch.allclose(batches[0].inputs[1], normalised(picture(7)), atol=1e-5)
    assert count_images(mixed) == 4
    assert count_images([picture(1), folder / "a.png"]) == 2


def test_a_batch_of_bytes_is_a_batch_of_pictures(model: TargetModel) -> None:
    stacked = torch.stack([torch.from_numpy(np.array(picture(i))).permute(2, 0, 1) for i in range(3)])
    batches = collect(model, stacked)
    assert [len(batch.inputs) for batch in batches] == [2, 1]
    assert torch.allclose(inputs_of(batches), torch.stack([normalised(picture(i)) for i in range(3)]), atol=1e-5)
    assert count_images(stacked) == 3


def test_pictures_keep_their_geometry(model: TargetModel) -> None:
    (batch,) = collect(model, picture(0, (64, 48)))
    geometry = batch.subjects[0].geometry
    assert (geometry.original, geometry.model) == ((48, 64), (SIZE, SIZE))


def test_pictures_are_read_one_batch_at_a_time(
    model: TargetModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    plain = Image.open
    monkeypatch.setattr(Image, "open", lambda path, **kw: (opened.append(str(path)), plain(path, **kw))[1])
    batches = iter_batches(model, folder, 1)
    next(batches)
    assert len(opened) == 1


def test_unreadable_pictures_stop_or_are_reported(model: TargetModel, folder: Path) -> None:
    (folder / "aa.png").write_bytes(b"not a picture")
    with pytest.raises(ImageError, match=r"aa\.png"):
        collect(model, folder)
    reported: list[str] = []
    batches = collect(model, folder, on_error=lambda name, _: reported.append(name))
    assert reported == [str(folder / "aa.png")]
    assert sum(len(batch.inputs) for batch in batches) == 3


def test_labels_and_targets_stay_with_their_pictures(model: TargetModel, folder: Path) -> None:
    """A picture that is left out takes its label and its class with it."""
    (folder / "aa.png").write_bytes(b"not a picture")
    files = sorted(folder.glob("*.png"))  # a, aa (unreadable), b
    labels = {"a.png": 3, "aa.png": 0, "b.png": 1}
    wanted = [labels[file.name] for file in files]
    for options in ({"target": "label", "labels": wanted}, {"target": wanted}):
        parts = aha.explain_batches(model, files, "edge_map", batch_size=1, on_error=lambda *_: None, **options)
        found = {Path(part.subjects[0].name).name: int(part.targets[0]) for part in parts}
        assert found == {"a.png": 3, "b.png": 1}


# Tensors


def test_float_tensors_pass_as_they_are(model: TargetModel, bare: TargetModel, images: Tensor) -> None:
    for given in (images, list(images), tuple(images)):
        for some in (model, bare):
            batches = collect(some, given, batch_size=3)
            assert [len(batch.inputs) for batch in batches] == [3, 1]
            assert torch.equal(inputs_of(batches), images)
            assert [s.name for b in batches for s in b.subjects] == [f"image-{i}" for i in range(4)]
        assert count_images(given) == 4
    assert torch.equal(inputs_of(collect(bare, images[0])), images[:1])
    assert count_images(images[0]) == 1
    assert collect(bare, images.double())[0].inputs.dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_tensors_are_measured_as_they_are_explained(bare: TargetModel, images: Tensor, dtype: torch.dtype) -> None:
    half = images.to(dtype)
    assert torch.equal(inputs_of(collect(bare, half)), half.float())
    metrics = ["class_sensitivity", "stability"]
    found, expected = (aha.evaluate(bare, given, "gradient", metrics).rows for given in (half, half.float()))
    assert found == expected


def test_pixels_that_are_not_finite_are_refused_and_large_ones_are_not(bare: TargetModel, images: Tensor) -> None:
    for value in (torch.nan, torch.inf, -torch.inf):
        broken = images.clone()
        broken[2, 1, 3, 4] = value
        with pytest.raises(ImageError, match="image-2 has pixels that are not finite"):
            collect(bare, broken)
    large = torch.full_like(images, torch.finfo(torch.float32).max)  # their sum is not finite
    assert torch.equal(inputs_of(collect(bare, large)), large)


def test_tensors_are_shown_as_the_pictures_they_were(model: TargetModel, bare: TargetModel) -> None:
    image = picture(3)
    (batch,) = collect(model, normalised(image)[None])
    assert np.abs(np.array(batch.subjects[0].image).astype(int) - np.array(image)).max() <= 1
    (stretched,) = collect(bare, normalised(image)[None])  # the normalisation is not known: stretched to full range
    values = np.array(stretched.subjects[0].image)
    assert (values.min(), values.max()) == (0, 255)
    assert stretched.subjects[0].geometry.original == (SIZE, SIZE)
    (grey,) = collect(bare, torch.rand(1, 5, 6, 7))
    assert grey.subjects[0].image.size == (7, 6)


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (torch.zeros(3, 3), r"shape \(3, 3\) is not \(C, H, W\)"),
        (torch.zeros(1, 1, 3, 4, 4, 4), r"shape \(1, 1, 3, 4, 4, 4\)"),
        (torch.zeros(0, 3, 4, 4), r"shape \(0, 3, 4, 4\)"),
        (torch.zeros(2, 1, 8, 8), "inputs have 1 channels; module:TinyCNN expects 3"),
        ([torch.zeros(3, 8, 8), torch.zeros(3, 9, 9)], "different shapes"),
        ([torch.zeros(3, 8, 8), Image.new("RGB", (8, 8))], "float32 tensor; give uint8"),
        (torch.zeros(3, 8, 8, dtype=torch.int64), "int64 tensor; give uint8"),
        ([], "no images were given"),
        (np.full((8, 8, 3), np.nan), "not finite"),
        (np.full((8, 8, 3), 200.0), r"scale them to \[0, 1\]"),
        (np.zeros((2, 8, 8, 3), dtype=np.uint8), "shape"),
        ("nowhere.png", "nowhere.png does not exist"),
        (42, "cannot read an image from int"),
        (None, "cannot read an image from NoneType"),
    ],
)
def test_what_is_no_image(images: Any, says: str, model: TargetModel) -> None:
    with pytest.raises(ImageError, match=says) as caught:
        aha.explain(model, images, "edge_map")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_located(value: float, bare: TargetModel, images: Tensor) -> None:
    images[2, 1, 5, 5] = value
    with pytest.raises(ImageError, match="image-2 has pixels that are not finite"):
        collect(bare, images, batch_size=1)
    loader = DataLoader(TensorDataset(images), batch_size=2)
    with pytest.raises(ImageError, match="image-2 has pixels that are not finite"):
        collect(bare, loader)


def test_different_sizes_are_for_the_streaming_form(bare: TargetModel) -> None:
    loader: Any = DataLoader([torch.rand(3, 16, 16), torch.rand(3, 24, 24)], batch_size=1)
    with pytest.raises(ImageError, match="differ in size"):
        aha.explain(bare, loader, "edge_map")
    assert [tuple(part.maps.shape) for part in aha.explain_batches(bare, loader, "edge_map")] == [
        (1, 16, 16),
        (1, 24, 24),
    ]


# DataLoaders


def rows(images: Tensor, kind: str) -> list[Any]:
    labels = [3, 1, 0, 2]
    if kind == "tensor":
        return list(images)
    if kind == "tuple":
        return list(zip(images, labels, strict=True))
    if kind == "triple":
        return [(image, label, f"name {label}") for image, label in zip(images, labels, strict=True)]
    keys = ("pixel_values", "labels") if kind == "transformers" else ("image", "label")
    return [dict(zip(keys, pair, strict=True)) for pair in zip(images, labels, strict=True)]


@pytest.mark.parametrize("kind", ["tensor", "tuple", "triple", "dict", "transformers"])
def test_loaders(kind: str, bare: TargetModel, images: Tensor) -> None:
    loader: Any = DataLoader(rows(images, kind), batch_size=3)
    batches = collect(bare, loader)
    assert [len(batch.inputs) for batch in batches] == [3, 1]
    assert torch.equal(inputs_of(batches), images)
    assert [s.name for b in batches for s in b.subjects] == [f"image-{i}" for i in range(4)]
    if kind == "tensor":
        assert all(batch.labels is None for batch in batches)
    else:
        assert torch.cat([batch.labels for batch in batches]).tolist() == [3, 1, 0, 2]
        found = aha.explain(bare, loader, "edge_map", target="label")
        assert found.targets.tolist() == [3, 1, 0, 2]
    other = aha.explain(bare, loader, "edge_map", target="label", labels=[0, 0, 1, 1])
    assert other.targets.tolist() == [0, 0, 1, 1]
    assert count_images(loader) is None


def test_loaders_of_mappings_that_are_not_dicts(bare: TargetModel, images: Tensor) -> None:
    def collate(items: list[Any]) -> UserDict[str, Tensor]:
        return UserDict(pixel_values=torch.stack(items))

    (batch,) = collect(bare, DataLoader(list(images), batch_size=4, collate_fn=collate))
    assert torch.equal(batch.inputs, images)


@pytest.mark.parametrize(
    "items",
    [
        [torch.zeros(3, 8, 8, dtype=torch.uint8)],
        [torch.zeros(8, 8)],
        [{"something": torch.zeros(3, 8, 8)}],
        ["text"],
        [3],
    ],
)
def test_loaders_that_give_something_else(items: list[Any], bare: TargetModel) -> None:
    with pytest.raises(ImageError, match=r"the DataLoader must give float images \(B, C, H, W\)"):
        collect(bare, DataLoader(items, batch_size=1))


def test_labels_that_are_no_classes_are_not_taken_for_them(bare: TargetModel, images: Tensor) -> None:
    soft = DataLoader(TensorDataset(images, torch.rand(4, 5)), batch_size=4)
    assert collect(bare, soft)[0].labels is None
    empty = DataLoader([images[:0], images], batch_size=None)
    assert [len(batch.inputs) for batch in collect(bare, empty)] == [4]


# Labels


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([0, 1, 2], "3 labels for 4 images"),
        ([0, 1, 2, 3, 4], "5 labels for 4 images"),
        (torch.zeros(4, 2), "labels must be whole numbers, one per image"),
        ([0.5, 1, 2, 3], "labels must be whole numbers"),
        (["cat", "dog", "cow", "ant"], "labels must be whole numbers"),
        ([0, 1, 2, 9], "class 9 does not exist"),
    ],
)
def test_labels_must_fit(labels: Any, says: str, bare: TargetModel, images: Tensor) -> None:
    with pytest.raises(TargetError, match=says):
        aha.explain(bare, images, "edge_map", target="label", labels=labels)


def test_labels_run_out(model: TargetModel, folder: Path) -> None:
    with pytest.raises(TargetError, match="2 labels for 3 images"):
        collect(model, folder, labels=[0, 1])
    with pytest.raises(TargetError, match="2 labels are too few; image number 3 has none"):
        collect(model, Stream(), labels=[0, 1])


# Datasets


class Pictures(Dataset[Any]):
    """As torchvision's folders are: pictures with labels."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return picture(index, (50, 40)), index % 3


class Stream(IterableDataset[Any]):
    """No length, no labels, dicts."""

    def __iter__(self) -> Any:
        return iter([{"image": picture(seed)} for seed in range(3)])


def test_datasets_of_pictures(model: TargetModel) -> None:
    batches = list(iter_batches(model, Pictures(5), 2))
    assert [len(batch.inputs) for batch in batches] == [2, 2, 1]
    assert [subject.name for batch in batches for subject in batch.subjects] == [f"image-{i}" for i in range(5)]
    assert [label for batch in batches for label in batch.labels.tolist()] == [0, 1, 2, 0, 1]
    assert torch.equal(batches[1].inputs[1], model.stated_preprocessing()(picture(3, (50, 40)))[0])
    assert count_images(Pictures(5)) == 5
    found = aha.explain(model, Pictures(5), "gradient", target="label", batch_size=2)
    assert found.targets.tolist() == [0, 1, 2, 0, 1]
    assert aha.explain(model, Pictures(2), "gradient", target=[4, 3]).targets.tolist() == [4, 3]


def test_datasets_of_inputs(bare: TargetModel, images: Tensor) -> None:
    found = aha.explain(bare, TensorDataset(images, torch.tensor([3, 1, 0, 2])), "gradient", target="label")
    assert found.targets.tolist() == [3, 1, 0, 2]
    assert torch.equal(found.maps, aha.explain(bare, images, "gradient", target=[3, 1, 0, 2]).maps)


def test_datasets_without_length_or_labels(model: TargetModel) -> None:
    (batch,) = iter_batches(model, Stream(), 8)
    assert len(batch.inputs) == 3 and batch.labels is None
    assert count_images(Stream()) is None
    with pytest.raises(TargetError, match="needs labels"):
        aha.explain(model, Stream(), "gradient", target="label")


def test_a_list_of_methods(model: TargetModel, images: Tensor) -> None:
    found = aha.explain(model, images, ["gradient", "smooth(gradient, n=2)"], target=1)
    assert list(found) == ["gradient", "smooth(gradient, n=2)"]
    assert torch.equal(found["gradient"].maps, aha.explain(model, images, "gradient", target=1).maps)
    with pytest.raises(SpecError, match="empty list of methods"):
        aha.explain(model, images, [])
    with pytest.raises(CapabilityError, match="rollout needs attention"):  # before the first is computed
        aha.explain(model, images, ["gradient", "rollout"])

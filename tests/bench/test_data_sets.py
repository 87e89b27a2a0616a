"""The layouts of data sets, each in miniature."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import nn
from worlds import cells_of, tiny_model

from aha.bench.image_filter import mda_filter
from aha.bench.plan import Plan
from aha.bench.runner import BenchRun
from aha.data.datasets import choose, find_data
from aha.data.images import read_image
from aha.data.layouts import _uncompressed
from aha.errors import AhaError, ImageError, MetricError, MissingExtra, SpecError, UnknownName
from aha.models import TargetModel, load_model
from fakes import CLASSES, TinyCNN


@pytest.fixture(scope="module")
def thousand() -> TargetModel:
    return load_model(TinyCNN(classes=1000).eval(), input_size=32, mean=[0.5] * 3, std=[0.5] * 3)


def save(path: Path, value: int = 100, size: tuple[int, int] = (20, 16)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)
    return path


def test_folders(tmp_path: Path, thousand: TargetModel) -> None:
    for index, name in enumerate(("n01440764", "n01443537")):
        save(tmp_path / "val" / name / f"{index}.png")
    found = find_data(f"folder:{tmp_path / 'val'}", thousand)
    assert [(image.id, image.label) for image in found] == [("n01440764/0.png", 0), ("n01443537/1.png", 1)]
    for text in (f"imagenet:{tmp_path}", str(tmp_path / "val"), f"folder:{tmp_path}@val"):
        assert [(image.id, image.label) for image in find_data(text, thousand)] == [(i.id, i.label) for i in found]
    for name in "abcde":
        save(tmp_path / "five" / name / "x.png")
    assert [image.label for image in find_data(str(tmp_path / "five"), tiny_model())] == list(range(CLASSES))
    save(tmp_path / "five" / "f" / "x.png")
    assert [image.label for image in find_data(str(tmp_path / "five"), tiny_model())] == [None] * 6


def test_imagenet_with_lists(tmp_path: Path, thousand: TargetModel) -> None:
    for name in ("a", "b", "c"):
        save(tmp_path / "val" / f"{name}.png")
    (tmp_path / "LOC_val_solution.csv").write_text(
        "ImageId,PredictionString\na,n01443537 1 2 3 4 n01443537 5 6 7 8 \nb,n01440764 0 0 9 9\n"
    )
    first, second = find_data(f"imagenet:{tmp_path}", thousand)
    assert (first.label, first.boxes) == (1, ((1, 2, 3, 4), (5, 6, 7, 8))) and second.label == 0
    (tmp_path / "labels.csv").write_text(
        "file,split,class_index\nval/a.png,val,7\ntrain/b.png,train,8\nval/c.png,val,9\n"
    )
    (tmp_path / "boxes.csv").write_text("file,class_index,x0,y0,x1,y1\nval/a.png,7,1,1,5,5\n")
    first, second = find_data(f"imagenet:{tmp_path}", thousand)
    assert (first.label, first.boxes, second.label, second.boxes) == (7, ((1, 1, 5, 5),), 9, ())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImageError, match="no labels"):
        find_data(f"imagenet:{tmp_path / 'empty'}", thousand)


def test_imagenet_s(tmp_path: Path, thousand: TargetModel) -> None:
    for name in ("n01440764", "n01443537"):
        save(tmp_path / "validation" / name / "x.JPEG")
    classes = np.array([[0, 1, 2, 1000], [2, 2, 1, 0]])
    colours = np.stack([classes % 256, classes // 256, classes * 0], axis=-1).astype(np.uint8)
    for name in ("n01440764", "n01443537"):
        path = tmp_path / "validation-segmentation" / name / "x.png"
        path.parent.mkdir(parents=True)
        Image.fromarray(colours).save(path)
    first, second = find_data(f"imagenet-s:{tmp_path}", thousand)
    assert (first.label, second.label) == (0, 1)
    assert first.mask().tolist() == [[0, 1, 0, 255], [0, 0, 1, 0]]
    assert second.mask().tolist() == [[0, 0, 1, 255], [1, 1, 0, 0]]


def segmentation_file(path: Path, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """As MATLAB 7.3 writes it: cell arrays are columns of references; a mask is a cell array of its own, of one."""
    h5py = pytest.importorskip("h5py")
    random, made = np.random.default_rng(0), []
    with h5py.File(path, "w") as file:
        for name in ("img", "gt", "id"):
            file.create_dataset(f"value/{name}", (count, 1), dtype=h5py.ref_dtype)
        for index in range(count):
            shape = (20 + index, 30)
            picture = random.integers(0, 255, (*shape, 3), dtype=np.uint8)
            mask = np.zeros(shape, dtype=np.uint8)
            mask[5:15, 5 + index : 20] = 1
            inner = file.create_dataset(f"#refs#/c{index}", (1, 1), dtype=h5py.ref_dtype)
            inner[0, 0] = file.create_dataset(f"#refs#/m{index}", data=mask.transpose()).ref
            file["value/img"][index, 0] = file.create_dataset(f"#refs#/p{index}", data=picture.transpose()).ref
            file["value/gt"][index, 0] = inner.ref
            made.append((picture, mask))
    return made


def test_imagenet_segmentation(tmp_path: Path, thousand: TargetModel) -> None:
    path = tmp_path / "gtsegs_ijcv.mat"
    text = f"imagenet-segmentation:{path}"
    with pytest.raises((MissingExtra, ImageError)):
        find_data(text, thousand)
    made = segmentation_file(path, 3)
    images = find_data(text, thousand)
    assert [image.id for image in images] == ["00000", "00001", "00002"]
    for image, (picture, mask) in zip(images, made, strict=True):
        assert np.array_equal(image.read(), picture) and np.array_equal(image.mask(), mask) and image.label is None
        assert read_image(image.read()).size == picture.shape[1::-1]
    BenchRun(Plan("m", text, ("gradient",), ("segmentation",)), tmp_path / "run", model=tiny_model()).run()
    cells = cells_of(tmp_path / "run").values()
    assert len(cells) == 3 and not any(cell["failures"] for cell in cells)
    scores = [{metric: value for metric, _, value in cell["found"][0]["rows"]} for cell in cells]
    assert all(0 < found["segmentation_ap"] <= 1 for found in scores)
    path.write_bytes(b"no such format")
    with pytest.raises(ImageError, match="cannot read"):
        find_data(text, thousand)


def test_hugging_face_from_disk(tmp_path: Path, photo: Image.Image) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"img": datasets.Image(), "label": datasets.ClassLabel(num_classes=CLASSES)})
    rows = {"img": [photo, photo.resize((30, 20))], "label": [3, 1]}
    saved = datasets.DatasetDict({name: datasets.Dataset.from_dict(rows, features) for name in ("train", "test")})
    saved.save_to_disk(str(tmp_path / "saved"))
    first, second = find_data(f"hf:{tmp_path / 'saved'}", tiny_model())
    assert (first.id, first.label, second.label) == ("test/0", 3, 1)
    assert [read_image(image.read()).size for image in (first, second)] == [(40, 40), (30, 20)]
    assert np.array_equal(np.array(read_image(first.read())), np.array(photo))
    assert find_data(f"hf:{tmp_path / 'saved'}@train", tiny_model())[1].id == "train/1"
    with pytest.raises(ImageError, match="no split validation"):
        find_data(f"hf:{tmp_path / 'saved'}@validation", tiny_model())
    plan = Plan("m", f"hf:{tmp_path / 'saved'}", ("gradient",), ("sparseness",), ("label",))
    BenchRun(plan, tmp_path / "run", model=tiny_model()).run()
    assert [cell["found"][0]["target"] for cell in cells_of(tmp_path / "run").values()] == [3, 1]
    with pytest.raises(ImageError, match="cannot load"):
        find_data(f"hf:{tmp_path}", tiny_model())


def test_pets(tmp_path: Path, thousand: TargetModel) -> None:
    save(tmp_path / "images" / "Abyssinian_1.jpg")
    trimap = tmp_path / "annotations" / "trimaps" / "Abyssinian_1.png"
    trimap.parent.mkdir(parents=True)
    Image.fromarray(np.array([[1, 2, 3]], dtype=np.uint8)).save(trimap)
    (tmp_path / "annotations" / "test.txt").write_text("#comment\nAbyssinian_1 1 1 1\nMissing_2 2 1 1\n")
    (image,) = find_data(f"pets:{tmp_path}", thousand)
    assert image.label is None and image.mask().tolist() == [[1, 0, 255]]
    breeds = load_model(TinyCNN(classes=37).eval(), input_size=32, mean=[0.5] * 3, std=[0.5] * 3)
    assert find_data(f"pets:{tmp_path}", breeds)[0].label == 0


def test_coco(tmp_path: Path, thousand: TargetModel) -> None:
    save(tmp_path / "val2017" / "x.jpg", size=(6, 4))
    save(tmp_path / "val2017" / "empty.jpg", size=(6, 4))
    square = {
        "segmentation": [[1, 1, 3, 1, 3, 2, 1, 2]],
        "bbox": [1, 1, 2, 1],
        "area": 6,
        "category_id": 9,
        "iscrowd": 0,
    }
    other = {**square, "category_id": 3, "area": 1}
    crowd = {**square, "segmentation": {"counts": [0, 2, 22], "size": [4, 6]}, "iscrowd": 1}
    annotations = [{**annotation, "image_id": 1} for annotation in (square, other, crowd)]
    images = [
        {"id": i + 1, "file_name": name, "height": 4, "width": 6} for i, name in enumerate(("x.jpg", "empty.jpg"))
    ]
    (tmp_path / "annotations").mkdir()
    content = {"images": images, "annotations": annotations, "categories": [{"id": 3}, {"id": 9}]}
    (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(content))
    (image,) = find_data(f"coco:{tmp_path}", thousand)
    mask = image.mask()
    assert image.boxes == ((1, 1, 3, 2),) and mask[1:3, 1:4].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert mask[:2, 0].tolist() == [255, 255] and mask.sum() == 6 + 2 * 255


def coco(tmp_path: Path, **changed: Any) -> Path:
    """A data set of one picture; names with dots reach into it."""
    save(tmp_path / "val2017" / "x.jpg", size=(6, 4))
    annotation: dict[str, Any] = {
        "image_id": 1,
        "segmentation": [[1, 1, 3, 1, 3, 2, 1, 2]],
        "bbox": [1, 1, 2, 1],
        "area": 6,
        "category_id": 9,
    }
    image: dict[str, Any] = {"id": 1, "file_name": "x.jpg", "height": 4, "width": 6}
    content: dict[str, Any] = {"images": [image], "annotations": [annotation], "categories": [{"id": 9}]}
    for name, value in changed.items():
        place = next(part for part in (annotation, image, content) if name in part)
        place[name] = value
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(content))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bbox", [1, 2]),
        ("bbox", None),
        ("bbox", [1, 1, 2, float("nan")]),
        ("area", "x"),
        ("category_id", None),
        ("category_id", [9]),
        ("file_name", 3),
        ("file_name", "a\0b"),
        ("file_name", "x" * 5000),
        ("images", {"a": 1}),
        ("annotations", [None]),
        ("categories", [{"id": "a"}, {"id": 9}]),
        ("id", [1]),
    ],
)
def test_malformed_coco_is_one_line(name: str, value: object, tmp_path: Path, thousand: TargetModel) -> None:
    with pytest.raises(ImageError):
        find_data(f"coco:{coco(tmp_path, **{name: value})}", thousand)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segmentation", {"counts": [10**13], "size": [4, 6]}),
        ("segmentation", {"counts": [24, -24, 24], "size": [4, 6]}),
        ("segmentation", {"counts": "zz\x7f", "size": [4, 6]}),
        ("segmentation", {"counts": None}),
        ("segmentation", [[1, 1, 1e300, 1, 3, 2]]),
        ("segmentation", [[1, 1, "a", 1]]),
        ("segmentation", [[1, 1, 2]]),
        ("segmentation", 7),
        ("height", 60_000),
        ("height", -1),
        ("height", "4"),
        ("width", 1e9),
    ],
)
def test_malformed_masks_of_coco_are_one_line(
    name: str, value: object, tmp_path: Path, thousand: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    (image,) = find_data(
        f"coco:{coco(tmp_path, **{name: value, 'width': 60_000} if value == 60_000 else {name: value})}", thousand
    )
    monkeypatch.setattr(np, "zeros", no_gigabytes(np.zeros))
    monkeypatch.setattr(np, "repeat", no_gigabytes(np.repeat))
    with pytest.raises(MetricError):
        image.true_mask()


def no_gigabytes(make: Callable[..., Any]) -> Callable[..., Any]:
    def checked(what: Any, count: Any = 0, **options: Any) -> Any:
        asked = np.prod(what, dtype=float) if make.__name__ == "zeros" else np.sum(count, dtype=float)
        assert asked < 1e9
        return make(what, count, **options) if make.__name__ == "repeat" else make(what, **options)

    return checked


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("pets", {"annotations/test.txt": "Abyssinian_1\n", "trimaps/Abyssinian_1.png": ""}),
        ("pets", {"annotations/test.txt": "Abyssinian_1 x\n", "trimaps/Abyssinian_1.png": ""}),
        ("pets", {"annotations/test.txt": b"\xff\xfe", "trimaps/a.png": ""}),
        ("pets", {"labels.csv": "name,class_index\nAbyssinian_1\n", "trimaps/Abyssinian_1.png": ""}),
        ("imagenet", {"labels.csv": "file,class_index\nAbyssinian_1.jpg,x\n"}),
        ("imagenet", {"labels.csv": "file,class_index\n"}),
        ("imagenet", {"labels.csv": "file,class_index\nAbyssinian_1.jpg,1\n", "boxes.csv": "file,x0,y0,x1,y1\na,1\n"}),
        ("imagenet", {"LOC_val_solution.csv": "ImageId,PredictionString\nAbyssinian_1,\n"}),
        ("imagenet", {"LOC_val_solution.csv": "ImageId,PredictionString\nAbyssinian_1,n01440764 1 2\n"}),
        ("imagenet", {"LOC_val_solution.csv": "ImageId,PredictionString\nAbyssinian_1,n99999999 1 2 3 4\n"}),
        ("imagenet", {"ILSVRC2012_validation_ground_truth.txt": "1\n", "meta.mat": b"MATLAB 5.0 MAT-file" * 20}),
        ("imagenet", {"ILSVRC2012_validation_ground_truth.txt": "1\n", "meta.mat": b""}),
        ("imagenet-segmentation", {"x.mat": b"\x89HDF\r\n\x1a\n" + b"\0" * 100}),
        ("csv", {"list.csv": "file,label\nimages/Abyssinian_1.jpg,1\nimages/Abyssinian_1.jpg,2\n"}),
        ("csv", {"list.csv": "file,x0,y0,x1,y1\nimages/Abyssinian_1.jpg,1,2,inf,4\n"}),
        ("csv", {"list.csv": "file\n" + "x" * 5000 + "\n"}),
        ("shards", {"x.tar": b"\0" * 10_000}),
        ("shards", {"x.tar": b"a" * 10_000}),
    ],
)
def test_malformed_data_is_one_line(
    kind: str, files: dict[str, str | bytes], tmp_path: Path, thousand: TargetModel
) -> None:
    if kind == "imagenet-segmentation":
        pytest.importorskip("h5py")
    save(tmp_path / "images" / "Abyssinian_1.jpg")
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    place = tmp_path / next(iter(files)) if kind in ("csv", "shards", "imagenet-segmentation") else tmp_path
    with pytest.raises(ImageError) as caught:
        find_data(f"{kind}:{place}", thousand)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "content"), [("a.cls", b"[]"), ("a.json", b'{"label": [1]}'), ("a.cls", b"1e999")])
def test_labels_in_shards_that_are_no_numbers(name: str, content: bytes, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for own, bytes_ in ((name, content), ("a.jpg", b"x")):
            member = tarfile.TarInfo(own)
            member.size = len(bytes_)
            archive.addfile(member, io.BytesIO(bytes_))
    with pytest.raises(ImageError, match="cannot read the shard"):
        find_data(f"shards:{tmp_path / 'x.tar'}", tiny_model())


def test_a_range_of_shards_has_an_end(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="more than 100,000 files"):
        find_data(f"shards:{tmp_path}/x-{{0..99999999999}}.tar", tiny_model())


def test_no_picture_or_mask_starts_another_program(
    tmp_path: Path, photo: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EPS under any name is no picture: Pillow would give it to Ghostscript."""
    from PIL import EpsImagePlugin

    def ghostscript(*args: object, **options: object) -> None:
        raise AssertionError("Ghostscript was started")

    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", ghostscript)
    for name in ("validation/n01440764/a.JPEG", "images/a.jpg"):
        save(tmp_path / name)
    eps = io.BytesIO()
    photo.save(eps, "EPS")
    for name in ("validation-segmentation/n01440764/a.png", "trimaps/a.png", "a.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(eps.getvalue())
    (tmp_path / "labels.csv").write_text("name,class_index\na,1\n")
    (tmp_path / "list.csv").write_text("file,mask\nimages/a.jpg,a.png\n")
    for text in (f"csv:{tmp_path / 'list.csv'}", f"pets:{tmp_path}", f"imagenet-s:{tmp_path}"):
        (image,) = find_data(text, tiny_model())
        with pytest.raises(AhaError, match="known format"):
            image.true_mask()


def test_files_of_hugging_face_are_read_by_the_one_reader(
    tmp_path: Path, photo: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would decode any format; it is asked for the files as they are."""
    buffer = io.BytesIO()
    photo.save(buffer, "EPS")

    class AsImage:
        def __init__(self, decode: bool = True) -> None:
            self.decode = decode

    class Rows(list):
        column_names, features = ("image",), {"image": AsImage()}

        def cast_column(self, name: str, kind: AsImage) -> Rows:
            assert name == "image" and not kind.decode
            return Rows([{"image": {"bytes": buffer.getvalue(), "path": None}}])

    def load_dataset(name: str, trust_remote_code: bool) -> dict[str, Rows]:
        assert trust_remote_code is False
        return {"test": Rows([{"image": photo}])}

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset, Image=AsImage))
    (image,) = find_data("hf:someone/pictures", tiny_model())
    with pytest.raises(ImageError, match="known format"):
        read_image(image.content())


def test_compressed_run_lengths() -> None:
    """Against the encoder of the format's description."""

    def compressed(runs: list[int]) -> str:
        text = ""
        for place, run in enumerate(runs):
            value, more = run - (runs[place - 2] if place > 2 else 0), True
            while more:
                bits = value & 0x1F
                value >>= 5
                more = value != -1 if bits & 0x10 else value != 0
                text += chr(48 + (bits | (0x20 if more else 0)))
        return text

    for runs in ([0, 5, 100, 3, 2000, 1], [7], [40, 31, 32, 33, 1]):
        assert _uncompressed(compressed(runs)) == runs


def test_shards_and_hugging_face(tmp_path: Path, photo: Image.Image, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    photo.save(buffer, format="PNG")
    with tarfile.open(tmp_path / "val-00.tar", "w") as archive:
        for name, content in (("a.png", buffer.getvalue()), ("a.cls", b"3")):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    (image,) = find_data(str(tmp_path / "val-00.tar"), tiny_model())
    assert image.label == 3 and read_image(image.read()).size == photo.size
    plan = Plan("m", f"shards:{tmp_path / 'val-00.tar'}", ("gradient",), ("sparseness",), ("label",))
    made = BenchRun(plan, tmp_path / "run", model=tiny_model())
    made.run()
    assert made.pending == 0 or BenchRun(plan, tmp_path / "run", model=tiny_model()).pending == 0

    class Rows(list):
        column_names = ("image", "label")

        def __getitem__(self, key):
            return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)

    rows = Rows([{"image": photo, "label": 2}, {"image": photo, "label": -1}])
    library = types.SimpleNamespace(load_dataset=lambda name, trust_remote_code: {"train": [], "validation": rows})
    monkeypatch.setitem(sys.modules, "datasets", library)
    first, second = find_data("hf:someone/pictures", tiny_model())
    assert (first.id, first.label, second.label) == ("validation/0", 2, None) and first.read() is photo
    with pytest.raises(ImageError, match="no split test"):
        find_data("hf:someone/pictures@test", tiny_model())


def test_choices_grow_and_keep_their_order(data: Path) -> None:
    images = find_data(str(data / "list.csv"), tiny_model())
    two, four = choose(images, 2, seed=1), choose(images, 4, seed=1)
    assert {i.id for i in two} < {i.id for i in four} and [i.id for i in four] == sorted(i.id for i in four)
    assert choose(images, 4, seed=2) != four and choose(images, None, 0) == images


def test_the_filter_of_mda_knows_both_classes_of_a_single_output(tmp_path: Path) -> None:
    module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 1))
    nn.init.constant_(module[2].weight, 10.0), nn.init.zeros_(module[2].bias)
    model = load_model(module.eval(), input_size=8, mean=[0.5] * 3, std=[0.5] * 3, score="sigmoid")
    lines = ["file,label"]
    for index in range(4):
        Image.new("RGB", (8, 8), "white" if index % 2 else "black").save(tmp_path / f"{index}.png")
        lines.append(f"{index}.png,{index % 2}")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    assert len(mda_filter(model, find_data(str(tmp_path / "list.csv"), model), None, 4)) == 4


def test_the_filter_of_mda(data: Path) -> None:
    model = tiny_model()
    images = find_data(str(data / "list.csv"), model)
    scores = {}
    for image in images:
        outputs = model.outputs(model.stated_preprocessing()(read_image(image.read()))[0][None])
        best = int(outputs.argmax())
        scores[image.id] = best, float(outputs.softmax(dim=1)[0, best])
    right = [replace(image, label=scores[image.id][0]) for image in images]
    kept = mda_filter(model, right, None, 4)
    sure = [image.id for image in right if scores[image.id][1] >= 0.6]
    assert kept == [
        name for place, name in enumerate(sure) if [scores[n][0] for n in sure[:place]].count(scores[name][0]) < 5
    ]
    assert mda_filter(model, right, 1, 4) == kept[:1]
    wrong = [replace(image, label=(image.label + 1) % CLASSES) for image in right]
    assert mda_filter(model, wrong, None, 4) == []
    with pytest.raises(SpecError, match="no labels"):
        mda_filter(model, [replace(images[0], label=None)], None, 4)


def test_unknown_kinds() -> None:
    with pytest.raises(UnknownName, match="did you mean imagenet"):
        find_data("imagenett:somewhere", tiny_model())

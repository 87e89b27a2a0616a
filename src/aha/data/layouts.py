"""The layouts that `aha.data.datasets` reads, one function each."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from aha.core.csv_files import read_table
from aha.core.disk import readable
from aha.core.pictures import MAX_PIXELS
from aha.data.datasets import DATA
from aha.data.images import Box, LabelledImage, find_images, read_image
from aha.data.labelled import find_labelled, read_mask
from aha.data.measured import find_measured
from aha.data.samples import read_shards_at
from aha.errors import ImageError, MetricError, MissingExtra
from aha.models import TargetModel
from aha.models.loading.sources import imagenet_synsets

_IGNORED = 255
_IMAGENET_S_IGNORED = 1000
_MOST_IMAGES = 50_000_000  # of which a list still fits into memory
_FARTHEST = 1e6  # pixels: corners of outlines lie in their pictures, or near them
_TRIMAP_OBJECT, _TRIMAP_BORDER = 1, 3
# Colours of eyes, beak, feet, wings and tail in the part maps of FunnyBirds.
_BIRD_PARTS = (
    (255, 255, 253),
    (255, 255, 254),
    (255, 255, 0),
    (255, 0, 1),
    (255, 0, 2),
    (0, 255, 1),
    (0, 255, 2),
    (0, 0, 255),
)


def _file(path: Path, root: Path, **truth: Any) -> LabelledImage:
    """An image that is a file of its own, or a volume that is a folder of slices; it must be there."""
    if not (path.is_file() or path.is_dir()):
        raise ImageError(f"{path} does not exist; check the path")
    name = path.relative_to(root) if path.is_relative_to(root) else path
    return LabelledImage(readable(name.as_posix()), str(path), **truth)


def _folder(path: Path, what: str) -> Path:
    if not path.is_dir():
        raise ImageError(f"{path} is not a folder of {what}")
    return path


@DATA.register("folder")
def read_folder(place: Path, split: str, model: TargetModel) -> list[LabelledImage]:
    """Pictures below a folder; the folders directly below it are classes if they are known as such."""
    root = place / split if split else place
    stated = model.preprocessing
    files = find_measured(root) if stated is not None and stated.is_measured else find_images(root)
    if files == [root]:  # a file, or a folder of the slices of one volume
        return [_file(root, root.parent)]
    parents = [file.relative_to(root).parts[0] if file.parent != root else "" for file in files]
    index = _class_indices(sorted(set(parents) - {""}), model)
    return [_file(file, root, label=index.get(parent)) for file, parent in zip(files, parents, strict=True)]


def _class_indices(folders: Sequence[str], model: TargetModel) -> dict[str, int]:
    """Classes of folders named by ImageNet's synsets, by the model's class names, or as many as the model has."""
    synsets = imagenet_synsets()
    orders = [synsets] if model.num_classes == len(synsets) else []
    orders += [list(model.class_names)] if model.class_names else []
    orders += [list(folders)] if model.num_classes == len(folders) else []
    for order in orders:
        index = {_plain(name): label for label, name in enumerate(order)}
        if all(_plain(name) in index for name in folders):
            return {name: index[_plain(name)] for name in folders}
    return {}


def _plain(name: str) -> str:
    return name.lower().replace("_", " ").strip()


@DATA.register("csv")
def read_csv(place: Path, split: str, model: TargetModel) -> list[LabelledImage]:
    """Images listed in a CSV file."""
    return [
        _file(Path(image.source), place.parent, label=image.label, mask=image.mask, boxes=image.boxes)
        for image in find_labelled([place])
    ]


@DATA.register("imagenet")
def read_imagenet(place: Path, split: str, model: TargetModel) -> list[LabelledImage]:
    """ImageNet-1k's validation images with their official labels, and boxes where a file lists them."""
    split = split or "val"
    root = place / split if (place / split).is_dir() else _folder(place, "ImageNet")
    if (place / "labels.csv").is_file():
        labels, boxes = _listed_labels(place, split)
    elif (solution := place / f"LOC_{split}_solution.csv").is_file():
        labels, boxes = _solution(solution)
    elif any((root / synset).is_dir() for synset in imagenet_synsets()):
        return read_folder(root, "", model)
    else:
        labels, boxes = _devkit(place), {}
    found = [
        _file(file, place, label=labels[file.stem], boxes=boxes.get(file.stem, ()))
        for file in find_images(root)
        if file.stem in labels
    ]
    if not found:
        raise ImageError(f"no image in {root} is listed with a label")
    return found


def _lines(path: Path, *columns: str) -> list[dict[str, str]]:
    lines = read_table(path, ImageError)
    if lines and not set(columns) <= lines[0].keys():
        raise ImageError(f"{path} needs the columns {', '.join(columns)}")
    return lines


def _listed_labels(place: Path, split: str) -> tuple[dict[str, int], dict[str, tuple[Box, ...]]]:
    """Labels from labels.csv (file, class_index[, split]), boxes from boxes.csv (file, x0, y0, x1, y1)."""
    labels = {
        Path(line["file"]).stem: _number(line["class_index"], f"class_index of {line['file']}")
        for line in _lines(place / "labels.csv", "file", "class_index")
        if line.get("split", split) == split
    }
    boxes: dict[str, tuple[Box, ...]] = defaultdict(tuple)
    if (place / "boxes.csv").is_file():
        for line in _lines(place / "boxes.csv", "file", "x0", "y0", "x1", "y1"):
            boxes[Path(line["file"]).stem] += (_box(line[side] for side in ("x0", "y0", "x1", "y1")),)
    return labels, boxes


def _solution(path: Path) -> tuple[dict[str, int], dict[str, tuple[Box, ...]]]:
    """Kaggle's list: an image, and `SYNSET x0 y0 x1 y1` for each of its objects."""
    index = {synset: label for label, synset in enumerate(imagenet_synsets())}
    labels: dict[str, int] = {}
    boxes: dict[str, tuple[Box, ...]] = {}
    for line in _lines(path, "ImageId", "PredictionString"):
        words = line["PredictionString"].split()
        if not words or words[0] not in index or len(words) % 5:
            raise ImageError(f"{path}: {line['ImageId']} has no SYNSET x0 y0 x1 y1 of ImageNet")
        labels[line["ImageId"]] = index[words[0]]
        boxes[line["ImageId"]] = tuple(_box(words[i + 1 : i + 5]) for i in range(0, len(words), 5))
    return labels, boxes


def _number(text: object, what: str) -> int:
    try:
        return int(str(text))
    except ValueError:
        raise ImageError(f"{what} is {str(text)[:40]!r}, not a whole number") from None


def _box(sides: Iterable[Any]) -> Box:
    x0, y0, x1, y1 = map(float, sides)
    if not all(map(math.isfinite, (x0, y0, x1, y1))):
        raise ImageError("a box has a side that is not a finite number")
    return x0, y0, x1, y1


def _devkit(place: Path) -> dict[str, int]:
    """Labels of the official development kit, whose numbers are not those of the models."""
    truth = next(place.rglob("ILSVRC2012_validation_ground_truth.txt"), None)
    meta = next(place.rglob("meta.mat"), None)
    if truth is None or meta is None:
        raise ImageError(
            f"no labels in {place}: neither a folder per synset, nor labels.csv, LOC_val_solution.csv or the devkit"
        )
    from scipy.io import loadmat

    synsets = loadmat(meta, squeeze_me=True)["synsets"]
    official = {int(entry["ILSVRC2012_ID"]): str(entry["WNID"]) for entry in synsets}
    index = {synset: label for label, synset in enumerate(imagenet_synsets())}
    numbers = map(int, truth.read_text(encoding="utf-8").split())
    return {f"ILSVRC2012_val_{i:08d}": index[official[number]] for i, number in enumerate(numbers, start=1)}


@DATA.register("imagenet-s")
def read_imagenet_s(place: Path, split: str, model: TargetModel) -> list[LabelledImage]:
    """ImageNet-S: an image's object is the class of its folder; other classes in it are background."""
    split = split or "validation"
    pictures, masks = _folder(place / split, "ImageNet-S"), _folder(place / f"{split}-segmentation", "ImageNet-S masks")
    names = sorted(folder.name for folder in masks.iterdir() if folder.is_dir())
    index = _class_indices(names, model)
    found = []
    for number, name in enumerate(names, start=1):
        known = {file.stem: file for file in (pictures / name).glob("*") if file.is_file()}
        for mask in sorted((masks / name).glob("*.png")):
            if mask.stem in known:
                read = partial(_imagenet_s_mask, mask, number)
                found.append(_file(known[mask.stem], pictures, label=index.get(name), mask=read))
    return found


def _imagenet_s_mask(path: Path, number: int) -> NDArray[np.uint8]:
    """Red plus 256 times green is the class, counted from 1; 0 is anything else, 1000 does not count."""
    colours = np.asarray(read_image(path)).astype(np.int64)
    classes = colours[..., 0] + 256 * colours[..., 1]
    return np.where(classes == _IMAGENET_S_IGNORED, _IGNORED, classes == number).astype(np.uint8)


@DATA.register("imagenet-segmentation")
def read_imagenet_segmentation(place: Path, split: str, model: TargetModel) -> list[LabelledImage]:
    """ImageNet-Segmentation (Guillaumin et al. 2014): pictures and masks in one MATLAB file, without labels."""
    try:
        import h5py
    except ImportError:
        raise MissingExtra("reading ImageNet-Segmentation", "hdf5") from None
    try:
        with h5py.File(place) as archive:
            count = len(archive["/value/img"])
        if count > _MOST_IMAGES:
            raise ValueError(f"it claims {count:,} images")
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ImageError(f"cannot read {place}: {error}") from None
    read = partial(_from_matlab, place)
    return [LabelledImage(f"{i:05d}", mask=partial(read, i, "gt"), given=partial(read, i, "img")) for i in range(count)]


def _from_matlab(place: Path, index: int, what: str) -> NDArray[Any]:
    """MATLAB counts columns first, so that all axes are the other way round; masks lie one reference deeper."""
    import h5py

    with h5py.File(place) as archive:
        entry = archive[archive[f"/value/{what}"][index, 0]]
        stored = entry if what == "img" else archive[entry[0, 0]]
        if stored.size > 4 * MAX_PIXELS:
            raise ImageError(
                f"{place}: entry {index} claims {stored.size:,} values; at most {4 * MAX_PIXELS:,} are read"
            )
        values: NDArray[Any] = np.array(stored)
    return values.transpose().astype(np.uint8)


@DATA.register("pets")
def read_pets(place: Path, split: str, model: TargetModel) -> list[LabelledImage]:
    """Oxford-IIIT Pet with its trimaps; breeds are labels for models of the 37 breeds alone."""
    pictures = _folder(place / "images", "Oxford-IIIT Pet")
    trimaps = next((t for t in (place / "trimaps", place / "annotations" / "trimaps") if t.is_dir()), None)
    if trimaps is None:
        raise ImageError(f"{place} has no trimaps")
    breeds = _breeds(place, split)
    is_own = model.num_classes == 37
    return [
        _file(picture, place, label=label if is_own else None, mask=partial(_trimap, trimaps / f"{name}.png"))
        for name, label in breeds.items()
        if (picture := pictures / f"{name}.jpg").is_file() and (trimaps / f"{name}.png").is_file()
    ]


def _breeds(place: Path, split: str) -> dict[str, int]:
    if (place / "labels.csv").is_file():
        lines = _lines(place / "labels.csv", "name", "class_index")
        return {
            line["name"]: _number(line["class_index"], f"class_index of {line['name']}")
            for line in lines
            if line.get("split") in (None, split or "val")
        }
    listing = place / "annotations" / f"{split or 'test'}.txt"
    if not listing.is_file():
        raise ImageError(f"{place} has neither labels.csv nor {listing.relative_to(place)}")
    rows = [line.split() for line in listing.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {row[0]: _number("".join(row[1:2]), f"{listing}: the class of {row[0]}") - 1 for row in rows if row}


def _trimap(path: Path) -> NDArray[np.uint8]:
    values = read_mask(path)
    return np.where(values == _TRIMAP_BORDER, _IGNORED, values == _TRIMAP_OBJECT).astype(np.uint8)


@DATA.register("funnybirds")
def read_funnybirds(place: Path, split: str, model: TargetModel) -> list[LabelledImage]:
    """FunnyBirds (Hesse et al. 2023): what tells its classes apart are a bird's parts, so the object is all of them."""
    split = split or "test"
    listing = place / f"dataset_{split}.json"
    try:
        classes = [int(entry["class_idx"]) for entry in json.loads(listing.read_text(encoding="utf-8"))]
    except OSError:
        raise ImageError(f"{listing} does not exist; check the path") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ImageError(f"{listing} is not a list of FunnyBirds: {error}") from None
    is_own = model.num_classes > max(classes, default=0)
    names = [f"{label}/{number:06d}.png" for number, label in enumerate(classes)]
    return [
        _file(
            place / split / name,
            place,
            label=label if is_own else None,
            mask=partial(_bird_parts, place / f"{split}_part_map" / name),
        )
        for name, label in zip(names, classes, strict=True)
    ]


def _bird_parts(path: Path) -> NDArray[np.uint8]:
    """Pixels in one of the colours by which the data set's maps mark eyes, beak, feet, wings and tail."""
    colours = np.asarray(read_image(path).convert("RGB")).astype(np.int64)
    codes = colours[..., 0] * 65536 + colours[..., 1] * 256 + colours[..., 2]
    return np.isin(codes, [r * 65536 + g * 256 + b for r, g, b in _BIRD_PARTS]).astype(np.uint8)


@DATA.register("coco")
def read_coco(place: Path, split: str, model: TargetModel) -> list[LabelledImage]:
    """COCO: the object is all of the category that covers most; crowds do not count; images without objects are out."""
    split = split or "val2017"
    listing = place / "annotations" / f"instances_{split}.json"
    try:
        content = json.loads(listing.read_text(encoding="utf-8"))
        categories = sorted(category["id"] for category in content["categories"])
        by_image: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for annotation in content["annotations"]:
            by_image[annotation["image_id"]].append(annotation)
        pictures = sorted(content["images"], key=lambda picture: str(picture["file_name"]))
    except OSError:
        raise ImageError(f"{listing} does not exist; check the path") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ImageError(f"{listing} is not a list of COCO instances: {error}") from None
    root = next((r for r in (place / split, place / "images" / split) if r.is_dir()), place / split)
    found = []
    for picture in pictures:
        largest, objects, crowds = _largest_category(by_image[picture["id"]])
        if largest is None:
            continue
        read = partial(_coco_mask, picture["height"], picture["width"], objects, crowds)
        boxes = tuple(_box((x, y, x + w, y + h)) for x, y, w, h in (o["bbox"] for o in objects))
        label = categories.index(largest) if model.num_classes == len(categories) else None
        found.append(_file(root / picture["file_name"], root, label=label, mask=read, boxes=boxes))
    return found


def _largest_category(
    annotations: Sequence[Mapping[str, Any]],
) -> tuple[int | None, list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    areas: dict[int, float] = defaultdict(float)
    for annotation in annotations:
        if not annotation.get("iscrowd"):
            areas[annotation["category_id"]] += annotation["area"]
    if not areas:
        return None, [], []
    largest = max(areas, key=lambda category: (areas[category], -category))
    own = [a for a in annotations if a["category_id"] == largest]
    return largest, [a for a in own if not a.get("iscrowd")], [a for a in own if a.get("iscrowd")]


def _coco_mask(
    height: int, width: int, objects: Sequence[Mapping[str, Any]], crowds: Sequence[Mapping[str, Any]]
) -> NDArray[np.uint8]:
    if type(height) is not int or type(width) is not int or min(height, width) < 1 or height * width > MAX_PIXELS:
        raise MetricError(f"an image of {height!r} x {width!r} pixels has no mask; at most {MAX_PIXELS:,} are drawn")
    mask = np.zeros((height, width), dtype=np.uint8)
    for value, parts in ((_IGNORED, crowds), (1, objects)):
        for annotation in parts:
            mask[_outlined(annotation["segmentation"], height, width)] = value
    return mask


def _outlined(segmentation: Any, height: int, width: int) -> NDArray[np.bool_]:
    """Pixels inside polygons, or of run lengths that go down the columns."""
    if isinstance(segmentation, list):
        canvas = Image.new("1", (width, height))
        for polygon in segmentation:
            if not all(abs(float(side)) <= _FARTHEST for side in polygon):
                raise MetricError("the outline of an object has a corner that is not a number, or is far away")
            ImageDraw.Draw(canvas).polygon([(x, y) for x, y in zip(polygon[::2], polygon[1::2], strict=True)], fill=1)
        return np.array(canvas)
    counts = segmentation["counts"]
    runs = _uncompressed(counts) if isinstance(counts, str) else counts
    if any(type(run) is not int or run < 0 for run in runs) or sum(runs) != height * width:
        raise MetricError(f"the run lengths of an object do not fill its image of {width} x {height} pixels")
    flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
    return flat.reshape(width, height).T


def _uncompressed(text: str) -> list[int]:
    """COCO's compressed run lengths: five bits per character, each run from the third on less the one two before."""
    runs: list[int] = []
    position = 0
    while position < len(text):
        value = shift = 0
        more = True
        while more:
            if position >= len(text) or shift > 60:
                raise MetricError("the compressed run lengths of an object are cut short or too long")
            bits = ord(text[position]) - 48
            value |= (bits & 0x1F) << shift
            more = bool(bits & 0x20)
            position, shift = position + 1, shift + 5
            if not more and bits & 0x10:
                value |= -1 << shift
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
    return runs


@DATA.register("shards")
def read_shards(place: Path, split: str, model: TargetModel) -> list[LabelledImage]:
    """Images inside tar files, read from their place there."""
    return read_shards_at(place)


@DATA.register("hf")
def read_hugging_face(place: Path, split: str, model: TargetModel) -> list[LabelledImage]:
    """A data set of the hub, or a saved one, with a column of images and, if it has one, of class numbers."""
    try:
        import datasets
    except ImportError:
        raise MissingExtra("Hugging Face data sets", "datasets") from None
    try:
        loaded = datasets.load_from_disk(str(place)) if place.is_dir() else _from_hub(datasets, place)
    except Exception as error:  # the library raises whatever the hub, the script or the disk did
        raise ImageError(f"cannot load the data set {place}: {next(iter(str(error).splitlines()), error)}") from None
    if isinstance(loaded, Mapping):
        split = split or next((name for name in ("validation", "val", "test") if name in loaded), next(iter(loaded)))
        if split not in loaded:
            raise ImageError(f"{place} has no split {split}; it has {', '.join(loaded)}")
        loaded = loaded[split]
    columns = loaded.column_names
    picture = next((name for name in ("image", "img", "picture", "pixel_values") if name in columns), None)
    label = next((name for name in ("label", "labels", "fine_label") if name in columns), None)
    if picture is None:
        raise ImageError(f"{place} has no column of images; it has {', '.join(columns)}")
    values = loaded[label] if label else [None] * len(loaded)
    labels = [None if value is None or value < 0 else int(value) for value in values]
    if isinstance(getattr(loaded, "features", {}).get(picture), getattr(datasets, "Image", ())):
        loaded = loaded.cast_column(picture, datasets.Image(decode=False))  # the library would open any format
    return [
        LabelledImage(f"{split or 'data'}/{i}", label=labels[i], given=_row_reader(loaded, i, picture))
        for i in range(len(loaded))
    ]


def _from_hub(datasets: Any, place: Path) -> Any:
    """A data set by its name; the library's versions before 4 would ask whether to run a script of the hub's."""
    return datasets.load_dataset(str(place), trust_remote_code=False)


def _row_reader(rows: Any, index: int, column: str) -> Callable[[], Any]:
    def read() -> Any:
        value = rows[index][column]
        if isinstance(value, Mapping):  # a file, as it is
            return value["bytes"] if value.get("bytes") else Path(value["path"])
        return value

    return read

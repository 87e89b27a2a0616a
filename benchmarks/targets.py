"""How faithful are maps of similarities, regions and boxes?

    python benchmarks/targets.py pairs    DATA --weights CLIP_VIT_B16.safetensors
    python benchmarks/targets.py likeness DATA --weights VIT_TINY.safetensors
    python benchmarks/targets.py region   DATA --weights RESNET18.safetensors
    python benchmarks/targets.py box      DATA --weights RESNET18.safetensors

Add `--images N`, `--steps N` (of curves), `--masks N` (of RISE), `--minutes N` (stop then, with the images done so
far), and `--csv FILE`, to which the means are added.

DATA/pets has `labels.csv` (name, split, class_index, breed), `images/` and `trimaps/` (1 is the animal); DATA/imagenet
has `labels.csv` (file, split, class_index) and the files. Measured on the split "val" alone; the detector is trained on
"train".

- pairs: a photograph of a pet is compared with a mosaic of four, one of which shows another animal of its breed, and
  three no cat and no dog. Where is the positive evidence for their likeness, and does the strongest pixel lie there?
- likeness: the same with another encoder, measured by Deletion and Insertion of the cosine.
- region: ResNet-18 turned fully convolutional, (1000, 7, 7) outputs for 224 pixels; the best class of one tile of a
  mosaic, its mean probability there deleted and inserted.
- box: a detector of cats and dogs, whose head is trained here in a minute or two on features of ResNet-18; the number
  is the overlap with a true box times the score of its class (D-RISE's similarity), deleted and inserted.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

import aha
from aha.core.pictures import read_image
from aha.targets.detections import overlap

SIDE, HALF = 224, 112
TILES = [(0, 0), (HALF, 0), (0, HALF), (HALF, HALF)]  # left, top
IMAGENET_COLOURS = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
PETS_OF_IMAGENET = range(151, 300)  # dogs, wolves, foxes, cats, bears
Row = tuple[str, str, list[float]]
"""Method, metric, one value for each image."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("data", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--images", type=int)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--masks", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--csv", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    args.end = time.monotonic() + 60 * args.minutes
    rows = TASKS[args.task](args)
    print("| method | metric | n | mean | standard error |\n|---|---|---|---|---|")
    told = []
    for method, metric, values in rows:
        mean, error = float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))
        told.append((args.task, args.weights.stem, method, metric, len(values), round(mean, 4), round(error, 4)))
        print(f"| `{method}` | {metric} | {len(values)} | {mean:.3f} | {error:.3f} |")
    if args.csv:
        is_new = not args.csv.exists()
        with args.csv.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([("task", "weights", "method", "metric", "n", "mean", "standard_error")] * is_new + told)


# Data


def rows_of(folder: Path, split: str) -> list[dict[str, str]]:
    """Rows of labels.csv in a fixed random order."""
    with (folder / "labels.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == split]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).tolist()
    return [rows[i] for i in order]


def pet(data: Path, row: dict[str, str]) -> Image.Image:
    return read_image(data / "pets" / "images" / f"{row['name']}.jpg")


def photograph(data: Path, row: dict[str, str]) -> Image.Image:
    return read_image(data / "imagenet" / row["file"])


def mosaic(pictures: Sequence[Image.Image]) -> Image.Image:
    """Four pictures in one of 224 x 224."""
    whole = Image.new("RGB", (SIDE, SIDE))
    for place, picture in zip(TILES, pictures, strict=True):
        whole.paste(picture.resize((HALF, HALF), Image.Resampling.BICUBIC), place)
    return whole


def pairs(data: Path, count: int) -> Iterator[tuple[Image.Image, Image.Image, int]]:
    """A photograph, a mosaic, and the tile of the mosaic that shows another animal of the breed."""
    rows, rng = rows_of(data / "pets", "val"), np.random.default_rng(0)
    others = [row for row in rows_of(data / "imagenet", "val") if int(row["class_index"]) not in PETS_OF_IMAGENET]
    for first in rows[:count]:
        same = [row for row in rows if row["breed"] == first["breed"] and row is not first]
        shown = [photograph(data, others[i]) for i in rng.choice(len(others), 4, replace=False)]
        tile = int(rng.integers(4))
        shown[tile] = pet(data, same[int(rng.integers(len(same)))])
        yield pet(data, first), mosaic(shown), tile


# Models


def encoder(weights: Path) -> aha.TargetModel:
    """A network without its head."""
    name = "vit_base_patch16_clip_quickgelu_224" if "clip" in weights.stem else "vit_tiny_patch16_224"
    network = timm.create_model(name, num_classes=0).eval()
    missing, unexpected = network.load_state_dict(load_file(weights), strict=False)
    assert not missing and all(key.startswith("head.") for key in unexpected), (missing, unexpected)
    return aha.load_model(network, batch_size=16, fit="squash")


class Dense(nn.Module):
    """ResNet-18 with scores (B, 1000, h, w) of classes at places."""

    def __init__(self, weights: Path) -> None:
        super().__init__()
        self.body = timm.create_model("resnet18").eval()
        self.body.load_state_dict(load_file(weights))

    def forward(self, images: Tensor) -> Tensor:
        features = self.body.forward_features(images)  # (B, 512, h, w)
        return F.conv2d(features, self.body.fc.weight[:, :, None, None], self.body.fc.bias)


class Detector(nn.Module):
    """Each place of a 14 x 14 grid is a candidate: two class scores, and distances to the sides of a box (FCOS).

    `body` is a ResNet-18 that is not trained.
    """

    STRIDE = 16

    def __init__(self, weights: Path, classes: int = 2) -> None:
        super().__init__()
        self.body = timm.create_model("resnet18", features_only=True, out_indices=(3, 4)).eval()
        self.body.load_state_dict(load_file(weights), strict=False)
        self.neck = nn.Sequential(nn.Conv2d(768, 128, 1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1), nn.ReLU())
        self.score, self.sides = nn.Conv2d(128, classes, 1), nn.Conv2d(128, 4, 1)
        nn.init.constant_(self.score.bias, -3.0)  # most candidates are of nothing

    def features(self, images: Tensor) -> Tensor:
        fine, coarse = self.body(images)
        return torch.cat([fine, F.interpolate(coarse, size=fine.shape[-2:], mode="nearest")], dim=1)

    def candidates(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Boxes (B, N, 4) and logits (B, N, K)."""
        hidden = self.neck(features)
        sides = (F.softplus(self.sides(hidden)) * self.STRIDE).flatten(2).movedim(1, 2)
        rows, columns = (self.STRIDE * (torch.arange(n) + 0.5) for n in hidden.shape[-2:])
        y, x = (one.flatten() for one in torch.meshgrid(rows, columns, indexing="ij"))
        centre = torch.stack([x, y], dim=1)
        boxes = torch.cat([centre - sides[..., :2], centre + sides[..., 2:]], dim=-1)
        return boxes, self.score(hidden).flatten(2).movedim(1, 2)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        boxes, logits = self.candidates(self.features(images))
        return {"boxes": boxes, "scores": logits.sigmoid()}


# Detection


def scene(data: Path, rows: Sequence[dict[str, str]]) -> tuple[Image.Image, list[tuple[int, Tensor]]]:
    """A mosaic of four pets and what is on it: classes (0 cat, 1 dog) and boxes, where the animal is large enough."""
    found = []
    for (left, top), row in zip(TILES, rows, strict=True):
        animal = np.asarray(Image.open(data / "pets" / "trimaps" / f"{row['name']}.png")) == 1
        if animal.sum() < 200:
            continue
        ys, xs = animal.any(axis=1).nonzero()[0], animal.any(axis=0).nonzero()[0]
        scale = HALF / np.array(animal.shape)
        x0, x1 = left + xs[[0, -1]] * scale[1] + [0, scale[1]]
        y0, y1 = top + ys[[0, -1]] * scale[0] + [0, scale[0]]
        found.append((int(row["breed"] not in CATS), torch.tensor([x0, y0, x1, y1], dtype=torch.float32)))
    return mosaic([pet(data, row) for row in rows]), found


CATS = {
    "Abyssinian",
    "Bengal",
    "Birman",
    "Bombay",
    "British_Shorthair",
    "Egyptian_Mau",
    "Maine_Coon",
    "Persian",
    "Ragdoll",
    "Russian_Blue",
    "Siamese",
    "Sphynx",
}


def normalised(image: Image.Image) -> Tensor:
    pixels = torch.from_numpy(np.asarray(image)).movedim(2, 0).float() / 255
    mean, std = (torch.tensor(IMAGENET_COLOURS[name])[:, None, None] for name in ("mean", "std"))
    return (pixels - mean) / std


def trained(data: Path, weights: Path, mosaics: int = 400, steps: int = 250) -> Detector:
    """A detector whose head learned from mosaics of "train" photographs."""
    torch.manual_seed(0)
    detector, rng = Detector(weights), np.random.default_rng(1)
    rows = rows_of(data / "pets", "train")
    groups = [[rows[i] for i in rng.choice(len(rows), 4, replace=False)] for _ in range(mosaics)]
    features, classes, sides = [], [], []
    with torch.no_grad():
        for group in groups:
            image, found = scene(data, group)
            features.append(detector.features(normalised(image)[None])[0].half())
            labels, boxes = goals(found)
            classes.append(labels)
            sides.append(boxes)
    all_features, all_classes, all_boxes = torch.stack(features), torch.stack(classes), torch.stack(sides)
    learned = [one for name, one in detector.named_parameters() if not name.startswith("body.")]
    optimizer = torch.optim.AdamW(learned, lr=2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    for _ in range(steps):
        batch = torch.from_numpy(rng.choice(mosaics, 16, replace=False))
        boxes, logits = detector.candidates(all_features[batch].float())
        wanted, places = all_classes[batch], all_boxes[batch]
        loss = focal(logits, F.one_hot(wanted + 1, 3)[..., 1:].float())
        near = wanted >= 0
        loss = loss + (1 - torch.stack([overlap(a, b) for a, b in zip(boxes[near], places[near], strict=True)])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return detector.eval().requires_grad_(False)


def goals(found: Sequence[tuple[int, Tensor]]) -> tuple[Tensor, Tensor]:
    """For each of 196 places: the class of the box in whose middle it lies, or -1, and the box."""
    classes, boxes = torch.full((196,), -1), torch.zeros(196, 4)
    centre = Detector.STRIDE * (torch.arange(14) + 0.5)
    y, x = (one.flatten() for one in torch.meshgrid(centre, centre, indexing="ij"))
    for label, (x0, y0, x1, y1) in found:
        far = torch.maximum((x - (x0 + x1) / 2).abs() / (x1 - x0), (y - (y0 + y1) / 2).abs() / (y1 - y0))
        inside = far < max(0.25, float(far.min()) + 1e-6)
        classes[inside], boxes[inside] = label, torch.stack([x0, y0, x1, y1])
    return classes, boxes


def focal(logits: Tensor, wanted: Tensor) -> Tensor:
    """Lin et al., 2017, over the number of positives."""
    p = logits.sigmoid()
    missed = torch.where(wanted > 0, 1 - p, p)
    weight = torch.where(wanted > 0, 0.25, 0.75) * missed**2
    loss = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    return (weight * loss).sum() / wanted.sum().clamp(min=1)


def recall(model: aha.TargetModel, scenes: Sequence[Any]) -> float:
    """Share of true boxes that the best candidate of their class at that place overlaps by at least a half."""
    hits = []
    for image, found in scenes:
        with torch.no_grad():
            returned = model.module(normalised(image)[None])
        for label, box in found:
            boxes, scores = returned["boxes"][0], returned["scores"][0]
            near = overlap(boxes, box) >= 0.5
            hits.append(float(bool((near & (scores[:, label] >= 0.3) & (scores.argmax(dim=1) == label)).any())))
    return float(np.mean(hits))


# Tasks


def measured(args: argparse.Namespace, model: aha.TargetModel, asked: Sequence[tuple[Image.Image, Any]]) -> list[Row]:
    """Deletion and Insertion of the number itself, against blur, of each image by each method."""
    methods = ["aha", "grad_cam", f"rise(n={args.masks})", "gradient", "random_map"]
    metrics = [f"{name}(steps={args.steps}, references=[blur])" for name in ("deletion", "insertion")]
    values: dict[tuple[str, str], list[float]] = {}
    for place, (image, target) in enumerate(asked):
        if time.monotonic() > args.end:
            break
        scores = aha.evaluate(model, image, list(methods), metrics, target=target, progress=False)
        for method in methods:
            deletion, insertion = (scores.values(method, name)[0] for name in ("deletion", "insertion"))
            for metric, value in (("deletion", deletion), ("insertion", insertion), ("ins_del", insertion - deletion)):
                values.setdefault((method, metric), []).append(value)
        if place % 10 == 9:
            print(f"{place + 1} of {len(asked)}", flush=True)
    best = [values[method, "ins_del"] for method in methods]
    against = [
        (f"{method} - {methods[0]}", "ins_del", [a - b for a, b in zip(own, best[0], strict=True)])
        for method, own in zip(methods[1:], best[1:], strict=True)
    ]
    return [(method, metric, found) for (method, metric), found in values.items()] + against


def ask_pairs(args: argparse.Namespace) -> list[Row]:
    model, values = encoder(args.weights), {}
    for first, second, tile in pairs(args.data, args.images or 100):
        if time.monotonic() > args.end:
            break
        target = aha.targets.similarity(picture=first)
        found = aha.explain(model, second, ["aha", "grad_cam"], target, progress=False)
        left, top = TILES[tile]
        for method, explanation in found.items():
            positive = explanation.maps[0].clamp(min=0)  # (224, 224)
            inside = torch.zeros_like(positive, dtype=torch.bool)
            inside[top : top + HALF, left : left + HALF] = True
            share = float(positive[inside].sum() / positive.sum().clamp(min=1e-12))
            hit = float(inside.flatten()[explanation.maps[0].argmax()])
            values.setdefault((method, "share in the tile"), []).append(share)
            values.setdefault((method, "strongest pixel in the tile"), []).append(hit)
    return [(method, metric, found) for (method, metric), found in values.items()]


def ask_likeness(args: argparse.Namespace) -> list[Row]:
    asked = [
        (second, aha.targets.similarity(picture=first)) for first, second, _ in pairs(args.data, args.images or 50)
    ]
    return measured(args, encoder(args.weights), asked)


def ask_region(args: argparse.Namespace) -> list[Row]:
    model = aha.load_model(Dense(args.weights), input_size=SIDE, fit="squash", batch_size=16, **IMAGENET_COLOURS)
    rows, asked = rows_of(args.data / "imagenet", "val"), []
    for place in range(args.images or 50):
        image = mosaic([photograph(args.data, row) for row in rows[4 * place : 4 * place + 4]])
        left, top = TILES[place % 4]
        box = (left, top, left + HALF, top + HALF)
        asked.append((image, aha.targets.region(box=box, of="probability")))
    return measured(args, model, asked)


def ask_box(args: argparse.Namespace) -> list[Row]:
    detector = trained(args.data, args.weights)
    model = aha.load_model(
        detector, input_size=SIDE, fit="squash", batch_size=16, class_names=["cat", "dog"], **IMAGENET_COLOURS
    )
    rows = rows_of(args.data / "pets", "val")
    scenes = [scene(args.data, rows[i : i + 4]) for i in range(0, len(rows) - 3, 4)]
    print(f"recall on {len(scenes)} mosaics of held-out photographs: {recall(model, scenes):.2f}")
    asked = []
    for image, found in scenes[: args.images or 50]:
        label, box = found[len(asked) % len(found)]
        asked.append((image, aha.targets.box(*box.tolist(), cls=label)))
    return measured(args, model, asked)


TASKS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "pairs": ask_pairs,
    "likeness": ask_likeness,
    "region": ask_region,
    "box": ask_box,
}


if __name__ == "__main__":
    main()

"""Localisation metrics and mosaics, against scikit-learn, arithmetic, and slow versions of the protocols."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import gaussian_filter
from sklearn.metrics import average_precision_score, f1_score, jaccard_score
from torch import Tensor, nn

import aha
from aha.data.mosaics import Mosaic, build_mosaic, build_mosaics, plan_mosaics
from aha.errors import AhaWarning, ImageError, MetricError, ModelError, SpecError
from aha.metrics import Case, Sample, load_metric
from aha.metrics.localisation.base import average_precision
from aha.models import TargetModel

SIDE = 8


def target(classes: int = 6, size: int = SIDE, **options: Any) -> TargetModel:
    module = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, classes))
    return aha.load_model(module, input_size=(size, size), mean=[0.5] * 3, std=[0.5] * 3, **options)


def case(values: Tensor, class_index: int = 0, **known: Any) -> Case:
    return Case(Sample(target(size=len(values)), "image", torch.zeros(3, *values.shape), **known), class_index, values)


def numbers(metric: str, judged: Case) -> dict[str, float]:
    values = load_metric(metric)(judged)
    assert {value.column for value in values} <= set(load_metric(metric).columns)
    return {value.column: value.value for value in values}


def rectangle(y0: int, x0: int, y1: int, x1: int, side: int = SIDE) -> Tensor:
    mask = torch.zeros(side, side, dtype=torch.bool)
    mask[y0:y1, x0:x1] = True
    return mask


MASK = rectangle(2, 1, 6, 7)
MAPS = {
    "distinct": torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(3)),
    "patches": torch.randint(0, 4, (4, 4), generator=torch.Generator().manual_seed(4)).float().kron(torch.ones(2, 2)),
    "perfect": MASK.float(),
    "inverted": 1 - MASK.float(),
    "one pixel": rectangle(3, 3, 4, 4).float(),
    "all ties": torch.full((SIDE, SIDE), 2.5),
}
IGNORE = rectangle(0, 0, 4, 2)


@pytest.fixture(params=MAPS)
def values(request: pytest.FixtureRequest) -> Tensor:
    return MAPS[request.param]


def unit(values: Tensor) -> np.ndarray:
    array = values.numpy()
    return np.zeros_like(array) if array.min() == array.max() else (array - array.min()) / (array.max() - array.min())


# Average precision


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_average_precision_is_scikit_learns(levels: int) -> None:
    generator = torch.Generator().manual_seed(levels)
    scores = torch.randint(0, levels, (500,), generator=generator).double()
    labels = torch.rand(500, generator=generator) < 0.2
    assert average_precision(labels, scores) == pytest.approx(average_precision_score(labels, scores), abs=1e-12)


def test_average_precision_of_nothing_but_ties_is_the_share_of_positives() -> None:
    assert average_precision(torch.arange(8) < 3, torch.zeros(8)) == pytest.approx(3 / 8)


@pytest.mark.parametrize("ignore", [None, IGNORE])
def test_aupr(values: Tensor, ignore: Tensor | None) -> None:
    found = numbers("aupr", case(values, mask=MASK, ignore=ignore))
    counted = np.ones((SIDE, SIDE), bool) if ignore is None else ~ignore.numpy()
    truth, scores = MASK.numpy()[counted], values.numpy()[counted]
    assert found["aupr1"] == pytest.approx(average_precision_score(truth, scores), abs=1e-9)
    assert found["aupr0"] == pytest.approx(average_precision_score(~truth, -scores), abs=1e-9)


def test_aupr_of_a_perfect_map_is_one() -> None:
    assert numbers("aupr", case(MASK.float(), mask=MASK)) == {"aupr1": 1.0, "aupr0": 1.0}


def test_aupr_needs_object_and_background() -> None:
    with pytest.raises(MetricError, match="no background"):
        numbers("aupr", case(MAPS["distinct"], mask=torch.ones(SIDE, SIDE, dtype=torch.bool)))
    with pytest.raises(MetricError, match="contains no pixel"):
        numbers("aupr", case(MAPS["distinct"], mask=IGNORE, ignore=IGNORE))
    with pytest.raises(MetricError, match="no object mask"):
        numbers("aupr", case(MAPS["distinct"]))


# Segmentation


@pytest.mark.parametrize("ignore", [None, IGNORE])
def test_segmentation(values: Tensor, ignore: Tensor | None) -> None:
    found = numbers("segmentation", case(values, mask=MASK, ignore=ignore))
    counted = np.ones((SIDE, SIDE), bool) if ignore is None else ~ignore.numpy()
    scaled = unit(values).astype(np.float64)
    predicted, truth = (scaled > scaled.mean())[counted], MASK.numpy()[counted]
    scaled = scaled[counted]
    both_scores = np.concatenate([1 - scaled, scaled])
    both_labels = np.concatenate([~truth, truth])
    ious = [jaccard_score(t, p, zero_division=0) for t, p in ((truth, predicted), (~truth, ~predicted))]
    assert found["pixel_accuracy"] == pytest.approx((predicted == truth).mean())
    assert found["miou"] == pytest.approx(np.mean(ious))
    assert found["segmentation_ap"] == pytest.approx(average_precision_score(both_labels, both_scores), abs=1e-9)
    assert found["segmentation_f1"] == pytest.approx(f1_score(truth, predicted, zero_division=0))
    rows = [np.flatnonzero(row) for row in counted]
    ours = unit(values) > unit(values).mean()
    each = [f1_score(MASK.numpy()[y, x], ours[y, x], zero_division=0) for y, x in enumerate(rows) if len(x)]
    assert found["segmentation_f1_rows"] == pytest.approx(np.mean(each), abs=1e-6)
    assert found["labelled_pixels"] == counted.sum()


def test_segmentation_of_a_perfect_and_an_inverted_map() -> None:
    perfect = numbers("segmentation", case(MASK.float(), mask=MASK))
    inverted = numbers("segmentation", case(1 - MASK.float(), mask=MASK))
    for column in ("pixel_accuracy", "miou", "segmentation_ap", "segmentation_f1"):
        assert perfect[column] == 1.0
    for column in ("pixel_accuracy", "miou", "segmentation_f1"):
        assert inverted[column] == 0.0


def test_dataset_figures_pool_the_pixels_of_all_images() -> None:
    metric = load_metric("segmentation")
    small = rectangle(0, 0, 2, 2)
    pairs = [(MAPS["distinct"], MASK), (MAPS["patches"], small), (MAPS["one pixel"], MASK)]
    columns: dict[str, list[float]] = {}
    for values, mask in pairs:
        for name, value in numbers("segmentation", case(values, mask=mask)).items():
            columns.setdefault(name, []).append(value)
    truth = np.concatenate([mask.numpy().ravel() for _, mask in pairs])
    predicted = np.concatenate([(unit(v) > unit(v).mean()).ravel() for v, _ in pairs])
    expected = (jaccard_score(truth, predicted) + jaccard_score(~truth, ~predicted)) / 2
    found = metric.over_dataset(columns)
    assert found["dataset_miou"] == pytest.approx((expected, 3))
    assert found["dataset_pixel_accuracy"] == pytest.approx(((truth == predicted).mean(), 3))
    assert found["dataset_miou"].value != pytest.approx(np.mean(columns["miou"]))
    assert metric.over_dataset({"miou": [0.5]}) == {}


# Pointing game


def test_pointing_game_counts_the_share_of_tied_pixels() -> None:
    assert numbers("pointing_game", case(MAPS["one pixel"], mask=MASK)) == {"pointing_game": 1.0}
    assert numbers("pointing_game", case(MAPS["inverted"], mask=MASK)) == {"pointing_game": 0.0}
    assert numbers("pointing_game", case(MAPS["all ties"], mask=MASK))["pointing_game"] == pytest.approx(24 / 64)
    half = rectangle(2, 0, 3, 2).float()  # two largest pixels, one of them on the object
    assert numbers("pointing_game", case(half, mask=MASK)) == {"pointing_game": 0.5}


def test_pointing_game_takes_boxes_and_prefers_the_mask() -> None:
    peak = rectangle(0, 0, 1, 1).float()
    boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [5.0, 5.0, 8.0, 8.0]])
    assert numbers("pointing_game", case(peak, boxes=boxes)) == {"pointing_game": 1.0}
    assert numbers("pointing_game", case(peak, boxes=boxes, mask=MASK)) == {"pointing_game": 0.0}
    with pytest.raises(MetricError, match="mask or boxes"):
        numbers("pointing_game", case(peak))


def test_pointing_game_ignores_pixels_that_do_not_count() -> None:
    values = rectangle(3, 3, 4, 4).float() + 2 * rectangle(0, 0, 1, 1).float()
    assert numbers("pointing_game", case(values, mask=MASK)) == {"pointing_game": 0.0}
    assert numbers("pointing_game", case(values, mask=MASK, ignore=IGNORE)) == {"pointing_game": 1.0}


@pytest.mark.parametrize("radius", [0, 1, 2, 3])
def test_tolerance_is_a_distance(radius: int) -> None:
    inside = MASK.nonzero().double()
    for y, x in [(0, 0), (1, 0), (2, 0), (7, 7), (6, 7), (0, 4)]:
        distance = float((inside - torch.tensor([y, x])).norm(dim=1).min())
        hit = numbers(f"pointing_game(tolerance={radius})", case(rectangle(y, x, y + 1, x + 1).float(), mask=MASK))
        assert hit["pointing_game"] == float(distance <= radius)


# Mass in regions


def test_energy_in_box_counts_the_union_once() -> None:
    values = MAPS["distinct"]
    boxes = torch.tensor([[1.0, 1.0, 4.0, 5.0], [2.0, 3.0, 7.0, 6.0]])
    inside = total = 0.0
    for y in range(SIDE):
        for x in range(SIDE):
            mass = max(0.0, float(values[y, x]))
            total += mass
            inside += mass * any(x0 <= x + 0.5 < x1 and y0 <= y + 0.5 < y1 for x0, y0, x1, y1 in boxes.tolist())
    found = numbers("energy_in_box", case(values, boxes=boxes))
    assert found["energy_in_box"] == pytest.approx(inside / total)


def test_energy_in_box_of_simple_maps() -> None:
    boxes = torch.tensor([[1.0, 2.0, 7.0, 6.0]])  # the mask
    assert numbers("energy_in_box", case(MASK.float(), boxes=boxes)) == {"energy_in_box": 1.0}
    assert numbers("energy_in_box", case(-MASK.float(), boxes=boxes)) == {"energy_in_box": 0.0}
    assert numbers("energy_in_box", case(torch.ones(SIDE, SIDE), boxes=boxes))["energy_in_box"] == pytest.approx(0.375)
    with pytest.raises(MetricError, match="no pixel"):
        numbers("energy_in_box", case(MASK.float(), boxes=torch.zeros(0, 4)))
    with pytest.raises(MetricError, match="no boxes"):
        numbers("energy_in_box", case(MASK.float()))


CELLS = {0: (0, 0, 4, 4), 1: (0, 4, 4, 8), 2: (4, 0, 8, 4), 3: (4, 4, 8, 8)}


def test_grid_pointing_shares_add_up_over_the_cells() -> None:
    shares = [numbers("grid_pointing", case(MAPS["distinct"], c, cells=CELLS))["grid_pointing"] for c in CELLS]
    positive = MAPS["distinct"].clamp(min=0).double()
    assert sum(shares) == pytest.approx(1.0)
    assert shares[1] == pytest.approx(float(positive[:4, 4:].sum() / positive.sum()))
    assert numbers("grid_pointing", case(MAPS["all ties"], 2, cells=CELLS))["grid_pointing"] == pytest.approx(0.25)
    assert numbers("grid_pointing", case(-torch.ones(SIDE, SIDE), cells=CELLS)) == {"grid_pointing": 0.0}
    assert numbers("grid_pointing", case(torch.full((SIDE, SIDE), 1e-10), cells=CELLS)) == {"grid_pointing": 0.0}


def test_grid_pointing_needs_a_cell_of_the_class() -> None:
    with pytest.raises(MetricError, match="not a mosaic"):
        numbers("grid_pointing", case(MAPS["distinct"]))
    with pytest.raises(MetricError, match=r"no cell shows class 5; it has \[0, 1, 2, 3\]"):
        numbers("grid_pointing", case(MAPS["distinct"], 5, cells=CELLS))


def test_grid_pointing_reports_the_distribution() -> None:
    found = load_metric("grid_pointing").over_dataset({"grid_pointing": [0.1, 0.2, 0.3, 0.4, 1.0]})
    expected = {"grid_pointing_q1": 0.2, "grid_pointing_median": 0.3, "grid_pointing_q3": 0.4}
    assert {name: value for name, (value, _) in found.items()} == pytest.approx(expected)
    assert {n for _, n in found.values()} == {5}


def blurred(values: Tensor, sigma: float = 2.0) -> np.ndarray:
    """OpenCV's GaussianBlur((11, 11), 2): mirrored without the edge, cut off at five pixels."""
    return gaussian_filter(values.double().numpy(), sigma, mode="mirror", radius=5)


@pytest.mark.parametrize("support", ["mean", "positive"])
@pytest.mark.parametrize("truth", ["mask", "cell"])
def test_region(values: Tensor, support: str, truth: str) -> None:
    known = {"mask": MASK} if truth == "mask" else {"cells": CELLS}
    region = MASK.numpy() if truth == "mask" else rectangle(*CELLS[3]).numpy()
    found = numbers(f"region(support='{support}')", case(values, 3, **known))
    smooth = blurred(values)
    positive = np.maximum(smooth, 0)
    chosen = smooth > (positive[positive > 0].mean() * (1 + 1e-9) if support == "mean" else 0)
    both, covered, area = (chosen & region).sum(), chosen.sum(), region.sum()
    assert found["region_attribution"] == pytest.approx(positive[region].sum() / positive.sum())
    assert found["region_iou"] == pytest.approx(both / (chosen | region).sum())
    assert found["region_f1"] == pytest.approx(f1_score(region.ravel(), chosen.ravel()))
    assert found["region_precision"] == pytest.approx(both / max(covered, 1))
    assert found["region_recall"] == pytest.approx(both / area)


def test_region_without_blur_or_mass() -> None:
    assert set(numbers("region(kernel=1, support='positive')", case(MASK.float(), mask=MASK)).values()) == {1.0}
    assert set(numbers("region", case(-torch.ones(SIDE, SIDE), mask=MASK)).values()) == {0.0}
    with pytest.raises(SpecError, match="kernel"):
        load_metric("region(kernel=4)")


def test_region_ignores_pixels_that_do_not_count() -> None:
    values = MASK.float() + 5 * rectangle(0, 0, 2, 2).float()
    found = numbers("region(kernel=1, support='positive')", case(values, mask=MASK, ignore=IGNORE))
    assert set(found.values()) == {1.0}


# Mosaics


def pictures(count: int, classes: int, size: tuple[int, int] = (20, 12)) -> list[tuple[Image.Image, int]]:
    """One colour per picture, so that its place in a mosaic can be read off."""
    return [(Image.new("RGB", size, (5 * i, 255 - 5 * i, 17)), i % classes) for i in range(count)]


def colours(mosaic: Mosaic) -> list[int]:
    """The picture each cell shows, row by row."""
    array = np.array(mosaic.image)
    found = []
    for y0, x0, y1, x1 in mosaic.cells.values():
        inside = array[y0:y1, x0:x1].reshape(-1, 3)
        assert (inside == inside[0]).all()
        found.append(int(inside[0, 0]) // 5)
    return found


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("cell", ["resize", "full"])
def test_mosaics_show_each_class_in_its_cell(n: int, cell: str) -> None:
    given = pictures(40, 10)
    model = target(classes=10)
    made = list(build_mosaics(model, given, count=3, n=n, cell=cell))  # type: ignore[arg-type]
    used = [source for mosaic in made for source in mosaic.sources]
    assert len(made) == 3 and len(used) == len(set(used)) == 3 * n * n
    for mosaic in made:
        side = SIDE if cell == "resize" else n * SIDE
        assert mosaic.image.size == (side, side)
        assert len(mosaic.cells) == n * n and mosaic.boxes is None
        assert tuple(colours(mosaic)) == mosaic.sources
        assert list(mosaic.cells) == [given[source][1] for source in mosaic.sources]
        length = SIDE // n if cell == "resize" else SIDE
        assert all((y1 - y0, x1 - x0) == (length, length) for y0, x0, y1, x1 in mosaic.cells.values())
        assert list(mosaic.cells.values())[1] == (0, length, length, 2 * length)


def test_mosaics_follow_from_the_seed() -> None:
    model, given = target(classes=10), pictures(40, 10)
    first, again, other = ([m.sources for m in build_mosaics(model, given, count=4, seed=s)] for s in (1, 1, 2))
    assert first == again != other
    assert first == [m.sources for m in build_mosaics(model, iter(given), count=4, seed=1)]


def test_mosaics_can_be_planned_by_labels_alone() -> None:
    model, given = target(classes=10), pictures(40, 10)
    plan = plan_mosaics([label for _, label in given], count=4, seed=1)
    for made, sources in zip(build_mosaics(model, given, count=4, seed=1), plan, strict=True):
        alone = build_mosaic(model, given, sources)
        assert (alone.sources, alone.cells) == (made.sources, made.cells) and alone.image == made.image


def test_mosaic_inputs_are_normalised_and_not_cropped() -> None:
    model = target(classes=10)
    mosaic = next(build_mosaics(model, pictures(40, 10), count=1))
    expected = (torch.from_numpy(np.array(mosaic.image)).permute(2, 0, 1).float() / 255 - 0.5) / 0.5
    assert torch.allclose(mosaic.inputs(model), expected)


def test_boxes_move_with_their_pictures() -> None:
    given = [(image, label, (5.0, 3.0, 15.0, 9.0)) for image, label in pictures(12, 6, size=(20, 12))]
    mosaic = next(build_mosaics(target(), given, count=1))
    assert mosaic.boxes is not None
    for label, (y0, x0, _, _) in mosaic.cells.items():  # 20 x 12 becomes 4 x 4
        assert mosaic.boxes[label] == (y0 + 1, x0 + 1, y0 + 3, x0 + 3)
    values = torch.zeros(SIDE, SIDE)
    label, (y0, x0, y1, x1) = next(iter(mosaic.boxes.items()))
    values[y0:y1, x0:x1] = 1.0
    judged = case(values, label, cells=mosaic.boxes)
    assert numbers("region(kernel=1, support='positive')", judged)["region_iou"] == 1.0


def test_pictures_whose_object_is_cropped_away_are_left_out() -> None:
    gone, kept = (0.0, 0.0, 2.0, 12.0), (8.0, 0.0, 12.0, 12.0)  # a centre crop of 12 x 12 sees columns 4 to 16
    given = [(image, label, gone if i < 6 else kept) for i, (image, label) in enumerate(pictures(12, 6))]
    mosaic = next(build_mosaics(target(), given, count=1, cell="full"))
    assert min(mosaic.sources) >= 6


def colour_model() -> TargetModel:
    """Says class 0 to red, 1 to green, 2 to blue and 3 to black pictures."""
    model = target(classes=4)
    with torch.no_grad():
        model.module[2].bias.zero_()
        model.module[2].weight.zero_()
        for channel in range(3):
            model.module[2].weight[channel, channel * 16 : (channel + 1) * 16] = 0.5
    return model


@pytest.mark.parametrize("cell", ["resize", "full"])
def test_pictures_the_model_does_not_recognise_are_left_out(cell: str) -> None:
    solid = [Image.new("RGB", (9, 9), colour) for colour in ("red", "lime", "blue", "black")]
    wrong = [(solid[label], (label + 1) % 4) for label in range(4)] * 5
    given = [*wrong, *((solid[label], label) for label in range(4))]
    mosaics = list(build_mosaics(colour_model(), given, count=1, cell=cell, min_confidence=0.9))  # type: ignore[arg-type]
    assert sorted(mosaics[0].sources) == [20, 21, 22, 23]
    with pytest.raises(ImageError, match="no mosaic could be filled"):
        list(build_mosaics(colour_model(), wrong, count=1, min_confidence=0.9))


def test_too_few_pictures_give_fewer_mosaics_and_a_warning() -> None:
    with pytest.warns(AhaWarning, match="enough images for 2 of 5 mosaics"):
        assert len(list(build_mosaics(target(), pictures(11, 6), count=5))) == 2


def test_bad_mosaics_are_refused_at_once() -> None:
    with pytest.raises(SpecError, match="n >= 2"):
        build_mosaics(target(), pictures(8, 4), count=1, n=1)
    with pytest.raises(ModelError, match="probabilities"):
        build_mosaics(target(score="logit"), pictures(8, 4), count=1, min_confidence=0.5)


def test_values_stay_in_bounds(values: Tensor) -> None:
    known = {"mask": MASK, "boxes": torch.tensor([[0.0, 0.0, 3.0, 3.0]]), "cells": CELLS}
    for name in ("aupr", "energy_in_box", "grid_pointing", "pointing_game", "region", "segmentation"):
        low, high = load_metric(name).bounds
        assert all(
            low <= value <= high and math.isfinite(value) for value in numbers(name, case(values, **known)).values()
        )

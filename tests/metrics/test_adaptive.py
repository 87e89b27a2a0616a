"""Adaptive curves: how sure they are of smooth, jumping, spiky and wandering curves, and what they ask of the model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.interpolate import PchipInterpolator
from torch import Tensor, nn

import aha
from aha.errors import SpecError
from aha.metrics import load_metric
from aha.metrics.curves.adaptive import (
    FINEST,
    filled_in,
    first_places,
    further_places,
    height_errors,
    recognition,
    recognition_errors,
)
from aha.metrics.protocols import PROTOCOLS
from aha.models import TargetModel
from fakes import tiny_vit

TOLERANCE = 0.002
STEPS = np.arange(FINEST + 1)
Errors = Callable[[Sequence[int], Sequence[float]], list[float]]


def adapted(
    curves: Sequence[np.ndarray], errors: Errors = height_errors, tolerance: float = TOLERANCE
) -> tuple[list[list[int]], float]:
    """The places that are asked about, and the estimated error of the mean area."""
    places = [first_places(FINEST) for _ in curves]
    while True:
        found = [errors(own, curve[own]) for own, curve in zip(places, curves, strict=True)]
        further = further_places(places, found, tolerance)
        if not any(further):
            return places, math.hypot(*(error for own in found for error in own)) / len(found)
        assert all(set(new).isdisjoint(own) for new, own in zip(further, places, strict=True))
        places = [sorted({*own, *new}) for own, new in zip(places, further, strict=True)]


def miss(curve: np.ndarray) -> float:
    """How far the area through the points is from that of the whole curve."""
    (places,), _ = adapted([curve])
    return float(abs(np.trapezoid(filled_in(places, curve[places])) - np.trapezoid(curve)) / FINEST)


def wandering(seed: int, size: float = 0.02) -> np.ndarray:
    """A falling curve with a random walk on top, as the curves of real networks are."""
    random = np.random.default_rng(seed)
    fall = np.exp(-STEPS / random.uniform(5, 80))
    walk = np.cumsum(random.normal(0, size, FINEST + 1)) * fall
    return np.clip(fall + walk, 0, 1)


# The mathematics


def test_flat_curves_need_no_more_than_the_first_points() -> None:
    (places,), error = adapted([np.full(FINEST + 1, 0.3)])
    assert places == first_places(FINEST) and error == 0


def test_what_moves_is_looked_at_even_if_it_looks_straight() -> None:
    line = 1 - STEPS / FINEST
    (places,), error = adapted([line])
    assert miss(line) < 1e-12 and 0 < error <= TOLERANCE
    assert len(places) < FINEST / 7  # and no more than a rough curve
    stairs = 1 - (STEPS // 32) / 7  # goes through the same first points, and lies above the line between them
    assert miss(stairs) <= 4 * TOLERANCE  # seven errors that all have one sign


def test_a_jump_is_found_wherever_it_is() -> None:
    for place in range(1, FINEST + 1, 3):
        assert miss((place > STEPS).astype(float)) <= TOLERANCE


def test_falling_curves_are_measured_however_they_fall() -> None:
    for seed in range(60):
        random = np.random.default_rng(seed)
        falls = np.zeros(FINEST)
        where = random.choice(FINEST, random.integers(2, 12), replace=False)
        falls[where] = random.random(len(where))
        assert miss(1 - np.append(0, np.cumsum(falls / falls.sum()))) <= 2.5 * TOLERANCE


@pytest.mark.parametrize("shape", ["rectangle", "triangle", "sine"])
def test_what_is_wider_than_the_first_gaps_is_measured(shape: str) -> None:
    for start in range(0, 110, 7):
        for width in (70, 110) if shape == "sine" else (40, 65):
            inside = np.clip((STEPS - start) / width, 0, 1)
            curve = {
                "rectangle": ((inside > 0) & (inside < 1)).astype(float),
                "triangle": 1 - np.abs(2 * inside - 1),
                "sine": np.sin(2 * np.pi * inside) ** 2,  # two humps
            }[shape]
            assert miss(curve) <= 2.5 * np.sqrt(2) * TOLERANCE


def test_a_narrow_spike_may_be_missed_but_costs_no_more_than_itself() -> None:
    missed = 0
    for start in range(1, 200, 9):
        for width in (1, 4, 20):
            curve = ((start <= STEPS) & (start + width > STEPS)).astype(float)
            error = miss(curve)
            missed += error > 2.5 * np.sqrt(2) * TOLERANCE
            assert error <= max(width / FINEST, 2.5 * np.sqrt(2) * TOLERANCE) + 1e-12
    assert missed  # as the documentation says


def test_the_estimate_holds_for_wandering_curves() -> None:
    errors, estimates, asked = [], [], 0
    for seed in range(40):
        curves = [wandering(seed + 1000 * k) for k in range(3)]
        places, estimate = adapted(curves)
        areas = [np.trapezoid(filled_in(p, c[p])) - np.trapezoid(c) for c, p in zip(curves, places, strict=True)]
        errors.append(np.mean(areas) / FINEST)
        estimates.append(estimate)
        asked += sum(map(len, places))
    assert max(estimates) <= TOLERANCE
    assert np.sqrt(np.mean(np.square(errors))) <= 1.2 * TOLERANCE
    assert np.quantile(np.abs(errors), 0.95) <= 2.5 * TOLERANCE and abs(np.mean(errors)) <= TOLERANCE / 2
    assert asked / (40 * 3) < (FINEST + 1) / 6


def test_between_points_the_curve_is_the_monotone_cubic() -> None:
    random = np.random.default_rng(3)
    places = [0, *sorted(random.choice(np.arange(1, FINEST), 12, replace=False).tolist()), FINEST]
    heights = random.random(len(places))
    found, expected = filled_in(places, heights), PchipInterpolator(places, heights)(STEPS)
    assert np.allclose(found[places], heights)
    inner = slice(places[1], places[-2] + 1)  # its end slopes are chosen in another way
    assert np.allclose(found[inner], expected[inner], atol=1e-12)
    assert np.allclose(filled_in([0, 4], [1.0, 0.0]), [1, 0.75, 0.5, 0.25, 0])


def test_points_go_to_the_curve_that_is_less_sure() -> None:
    (rough, flat), _ = adapted([wandering(0, size=0.05), np.full(FINEST + 1, 0.3)])
    assert len(flat) == len(first_places(FINEST)) < len(rough)


def test_recognition_is_certain_where_it_is_known_and_doubtful_between() -> None:
    chance = recognition([0, 8, 16, 24, 32], [4.0, 3.0, 1.0, -1.0, -3.5])
    assert chance[[0, 8, 16, 24, 32]].tolist() == [1, 1, 1, 0, 0]
    assert 0.2 < chance[20] < 0.8 and chance[4] > 0.99 and chance[30] < 0.1
    errors = recognition_errors([0, 8, 16, 24, 32], [4.0, 3.0, 1.0, -1.0, -3.5])
    assert np.argmax(errors) == 2


def test_the_share_of_recognised_steps_is_estimated_without_bias() -> None:
    errors = []
    for seed in range(30):
        random = np.random.default_rng(seed)
        margins = 5 * np.exp(-STEPS / random.uniform(10, 120)) - random.uniform(0, 3)
        margins = margins + np.cumsum(random.normal(0, random.uniform(0.03, 0.3), FINEST + 1))
        (places,), estimate = adapted([margins], recognition_errors)
        assert estimate <= TOLERANCE
        found = np.trapezoid(recognition(places, margins[places]))
        errors.append((found - np.trapezoid((margins > 0).astype(float))) / FINEST)
    assert abs(np.mean(errors)) < TOLERANCE / 2 and np.quantile(np.abs(errors), 0.95) < 4 * TOLERANCE


# The metrics


class Counting(nn.Module):
    """Counts calls and images, and refuses to see a perturbed image twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls, self.seen = tiny_vit(), 0, list[Tensor]()

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen += list(x)
        return self.inner(x)


def counted() -> tuple[TargetModel, Counting]:
    module = Counting()
    return aha.load_model(module, input_size=32, mean=[0.5] * 3, std=[0.5] * 3), module


CURVES = ["deletion", "insertion", "ins_del", "positive", "negative", "neg_pos"]


@pytest.mark.parametrize("name", ["ins_del", "positive"])  # the others are made of the same curves
def test_without_tolerance_it_is_the_full_curve(images: Tensor, name: str) -> None:
    model, _ = counted()
    full = aha.evaluate(model, images[:1], "gradient", f"{name}(references=(blur,))")
    adaptive = aha.evaluate(
        model, images[:1], "gradient", f"{name}(steps='adaptive', tolerance=1e-9, references=(blur,))"
    )
    for ours, theirs in zip(adaptive.rows, full.rows, strict=True):
        assert ours.reference == theirs.reference and ours.value == pytest.approx(theirs.value, abs=2e-6)


def test_the_protocol_is_near_the_full_one_and_asks_far_less(images: Tensor) -> None:
    found, shown = {}, {}
    for name in ("aha", "aha-adaptive"):
        model, module = counted()
        found[name] = aha.evaluate(model, images[:2], "random_map", name)
        shown[name] = len(module.seen)
    assert shown["aha-adaptive"] < shown["aha"] / 3  # a random network: its curves are rougher than real ones
    full = {(r.image, r.metric, r.reference): r.value for r in found["aha"].rows}
    ours = {(r.image, r.metric, r.reference): r.value for r in found["aha-adaptive"].rows}
    assert full.keys() == ours.keys()
    averages = [abs(ours[key] - full[key]) for key in full if key[2] == "average" and key[1] in CURVES]
    assert np.mean(averages) < 0.006
    assert "aha-adaptive" in found["aha-adaptive"].to_markdown()


def test_the_quick_one_is_about_as_near_as_32_even_steps_and_asks_less(images: Tensor) -> None:
    off, shown = {}, {}
    metrics = ("deletion", "insertion")
    model, _ = counted()
    full = aha.evaluate(model, images, "random_map", [f"{name}(steps=224)" for name in metrics])
    expected = {(r.image, r.metric, r.reference): r.value for r in full.rows}
    for name in ("quick", "quick-adaptive", "sketch"):
        model, module = counted()
        rows = aha.evaluate(model, images, "random_map", name).rows
        shown[name] = len(module.seen)
        ours = {(r.image, r.metric, r.reference): r.value for r in rows if r.metric in metrics}
        off[name] = np.mean([abs(value - expected[key]) for key, value in ours.items() if key[2] == "average"])
    assert shown["quick-adaptive"] < 0.9 * shown["quick"]  # rougher curves than those of real networks, as above
    assert off["quick-adaptive"] < 1.5 * off["quick"]
    assert shown["sketch"] < 0.7 * shown["quick-adaptive"]
    assert off["sketch"] < 4 * off["quick"] and off["sketch"] < 0.02


@pytest.mark.parametrize("name, accuracy", [("deletion", "positive"), ("insertion", "negative")])
def test_accuracy_begins_with_the_points_of_the_score(images: Tensor, name: str, accuracy: str) -> None:
    asked = {}
    for chosen in ([name], [accuracy], [name, accuracy]):
        model, module = counted()
        aha.evaluate(model, images[:1], "random_map", [f"{each}(steps='adaptive')" for each in chosen])
        asked[tuple(chosen)] = {image.numpy().tobytes() for image in module.seen}
    assert asked[name,] < asked[accuracy,] == asked[name, accuracy]


def test_no_image_is_shown_twice_and_images_fill_each_others_batches(images: Tensor) -> None:
    model, module = counted()
    aha.evaluate(model, images, "random_map", "aha-adaptive")
    prints = {image.numpy().tobytes() for image in module.seen}
    # Black and mean colour alone are the same picture for every image; nothing else is.
    assert len(module.seen) - len(prints) == 2 * (len(images) - 1)
    together = module.calls
    alone = 0
    for image in images:
        model, module = counted()
        aha.evaluate(model, image, "random_map", "aha-adaptive")
        alone += module.calls
    assert together < 0.75 * alone  # fewer, fuller batches


def test_numbers_do_not_depend_on_company(images: Tensor) -> None:
    model, _ = counted()
    together = aha.evaluate(model, images, ["random_map", "center_map"], ["aha-adaptive", "quick"])
    wanted = [
        row for row in together.rows if (row.image, row.method, row.metric) == ("image-0", "center_map", "deletion")
    ]
    alone = aha.evaluate(model, images[:1], "center_map", "deletion(steps='adaptive')")
    ours = [row.value for row in wanted if row.protocol == "aha-adaptive"]
    assert ours == pytest.approx([row.value for row in alone.rows], abs=1e-5)


def test_curves_keep_the_points_that_were_asked_about(images: Tensor) -> None:
    model, _ = counted()
    scores = aha.evaluate(model, images[:1], "gradient", ["deletion(steps='adaptive')", "insertion(steps='adaptive')"])
    values = {(row.metric, row.reference): row.value for row in scores.rows}
    for curve in scores.curve_rows:
        assert curve.fractions[0] == 0 and curve.fractions[-1] == 1 and len(curve.fractions) < 100
        places = [round(share * FINEST) for share in curve.fractions]
        shares = [round(step * 1024 / FINEST) / 1024 for step in STEPS]  # of the 32 x 32 pixels
        area = np.trapezoid(filled_in(places, curve.scores), shares)
        assert area == pytest.approx(values[curve.kind, curve.reference], abs=1e-6)


def test_scores_that_are_no_probabilities_are_measured_by_their_own_range(images: Tensor) -> None:
    asked = []
    for factor in (1.0, 1000.0):
        module = Counting()
        module.inner.head.weight.data *= factor
        module.inner.head.bias.data *= factor
        model = aha.load_model(module, input_size=32, mean=[0.5] * 3, std=[0.5] * 3, score="logit")
        aha.evaluate(model, images[:1], "random_map", "deletion(steps='adaptive')", target=0)
        asked.append(len(module.seen))
    assert asked[0] == asked[1]


@pytest.mark.parametrize(
    "text",
    [
        "mas(steps='adaptive')",
        "monotonicity(steps='adaptive')",
        "deletion(steps='adaptive', normalised=True)",
        "deletion(steps='adaptive', fractions=(0.1, 0.5))",
        "deletion(steps='adaptive', tolerance=0.0)",
        "deletion(steps='coarse')",
    ],
)
def test_what_cannot_be_adaptive_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        load_metric(text)


def test_the_text_says_so() -> None:
    metric = load_metric("deletion(steps='adaptive')")
    assert load_metric(str(metric)) == metric and "tolerance=0.002" in metric.in_full()
    assert all("adaptive" in str(m) for m in PROTOCOLS["aha-adaptive"].metrics if m.name in CURVES)
    assert replace(metric, steps=224) == load_metric("deletion")

"""Information curves, against a slow version of the published protocol that uses scipy for each channel."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import interpolate
from torch import Tensor, nn

import aha
from aha.errors import MetricError, SpecError
from aha.metrics import Case, Sample, load_metric
from aha.metrics.information.codec import information_area, interpolated, webp_bytes
from aha.metrics.information.information_curve import THRESHOLDS
from aha.models import TargetModel

SIDE = 24


class BrightCentre(nn.Module):
    """Class 0 if the middle is bright, class 1 if it is dark; counts what it is asked."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.channels, self.calls, self.images = channels, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.images += len(x)
        middle = x[:, :, 8:16, 8:16].mean(dim=(1, 2, 3)) - 0.2
        return torch.stack([4 * middle, -4 * middle], dim=1)


def target(channels: int = 3, **options: Any) -> TargetModel:
    options = {"input_size": (SIDE, SIDE), "mean": [0.5] * channels, "std": [0.5] * channels, **options}
    return aha.load_model(BrightCentre(channels), **options)


def picture(channels: int = 3) -> np.ndarray:
    """A bright textured square on a dark textured ground."""
    generator = np.random.default_rng(5)
    values = generator.integers(0, 60, (SIDE, SIDE, channels))
    values[8:16, 8:16] += 180
    return values.astype(np.uint8)


def sample(model: TargetModel, image: np.ndarray | None = None, name: str = "image") -> Sample:
    image = picture(len(model.preprocessing.mean)) if image is None else image  # type: ignore[union-attr]
    pixels = torch.from_numpy(image).permute(2, 0, 1).float() / 255
    return Sample(model, name, model.to_inputs(pixels))


def numbers(judged: Case, metric: str = "information_curve") -> dict[str, float]:
    return {value.column: value.value for value in load_metric(metric)(judged)}


def centre_map() -> Tensor:
    values = 0.1 * torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(2))
    values[8:16, 8:16] += 1
    return values


# The protocol, slowly


def slow_blur(image: np.ndarray, mask: np.ndarray) -> np.ndarray:
    mask = mask.copy()
    for corner in ((0, 0), (0, SIDE - 1), (SIDE - 1, 0), (SIDE - 1, SIDE - 1)):
        mask[corner] = True
    result = image.astype(np.float32)  # the published code rounds in single precision, where halves are hit more often
    for channel in range(image.shape[2]):
        filled = interpolate.griddata(
            np.argwhere(mask),
            image[:, :, channel][mask].astype(float),
            np.argwhere(~mask),
            method="linear",
            fill_value=image[:, :, channel].mean(),
        )
        result[:, :, channel][~mask] = filled
    return np.round(result).astype(np.uint8)


def slow_bytes(image: np.ndarray) -> int:
    file = io.BytesIO()
    Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image).save(file, "WEBP", lossless=True, quality=100)
    return len(file.getvalue())


def slow_area(entropies: list[float], predictions: list[float]) -> float:
    curve = interpolate.interp1d([*entropies, 0.0, 1.0], [*predictions, 0.0, 1.0])
    x = np.linspace(0, 1, 1000, endpoint=False)
    return float(np.trapezoid(np.append(curve(x), 1.0), np.append(x, 1.0)))


def slow_curves(model: TargetModel, image: np.ndarray, values: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    def ask(shown: np.ndarray) -> tuple[float, float]:
        pixels = torch.from_numpy(shown).permute(2, 0, 1).float() / 255
        outputs = model.outputs(model.to_inputs(pixels)[None])[0]
        return float(outputs.argmax() == 0), float(outputs.softmax(0)[0])

    blurred = slow_blur(image, mask)
    low, high = slow_bytes(blurred), slow_bytes(image)
    start, end = ask(blurred), ask(image)
    entropies: list[float] = []
    answers: tuple[list[float], list[float]] = ([], [])
    for threshold in THRESHOLDS:
        shown = slow_blur(image, (values >= np.quantile(values, 1 - threshold)) | mask)
        entropies.append(float(np.clip((slow_bytes(shown) - low) / (high - low), 0, 1)))
        for kept, now, first, last in zip(answers, ask(shown), start, end, strict=True):
            kept.append(max([float(np.clip((now - first) / (last - first), 0, 1)), *kept]))
    return {"aic": slow_area(entropies, answers[0]), "sic": slow_area(entropies, answers[1])}


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("kind", ["centre", "random", "patches", "inverted"])
def test_areas_follow_the_published_protocol(channels: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(6)
    values = {
        "centre": centre_map(),
        "random": torch.randn(SIDE, SIDE, generator=generator),
        "patches": torch.rand(6, 6, generator=generator).kron(torch.ones(4, 4)),
        "inverted": -centre_map(),
    }[kind]
    model = target(channels)
    judged = Case(sample(model), 0, values)
    found = numbers(judged)
    (canvas,) = judged.sample.cache.values()
    expected = slow_curves(model, picture(channels), values.double().numpy(), canvas.revealed)  # type: ignore[attr-defined]
    assert found == pytest.approx(expected, abs=1e-6)


def test_the_true_region_beats_its_opposite() -> None:
    model = target()
    good, bad = (numbers(Case(sample(model), 0, values)) for values in (centre_map(), -centre_map()))
    assert good["sic"] > bad["sic"] + 0.2 and good["aic"] > bad["aic"] + 0.2


# Parts


@pytest.mark.parametrize("share", [0.01, 0.3, 0.97])
def test_interpolation_is_griddata(share: float) -> None:
    mask = np.random.default_rng(1).random((SIDE, SIDE)) < share
    assert (interpolated(picture(), mask) == slow_blur(picture(), mask)).all()


def test_interpolation_from_all_pixels_is_the_picture_and_linear_ramps_come_back() -> None:
    assert (interpolated(picture(), np.ones((SIDE, SIDE), bool)) == picture()).all()
    ramp = np.add.outer(np.arange(SIDE) * 4, np.arange(SIDE) * 3).astype(np.uint8)[:, :, None]
    assert (interpolated(ramp, np.zeros((SIDE, SIDE), bool)) == ramp).all()


def test_bytes_are_those_of_lossless_webp() -> None:
    assert webp_bytes(picture()) == slow_bytes(picture())
    assert webp_bytes(picture(1)) == slow_bytes(picture(1))
    assert webp_bytes(np.zeros_like(picture())) < webp_bytes(picture())


@pytest.mark.parametrize(
    ("information", "performance"),
    [
        ([0.2, 0.5, 0.9], [0.1, 0.6, 0.8]),
        ([0.0, 0.0, 0.4, 0.4, 1.0, 1.0], [0.3, 0.5, 0.6, 0.9, 0.9, 1.0]),  # jumps, also at both ends
        ([0.5, 0.3, 0.7], [0.2, 0.4, 0.4]),  # not in order of information
    ],
)
def test_area_is_that_of_scipys_interpolation(information: list[float], performance: list[float]) -> None:
    found = information_area(np.array(information), np.array(performance))
    assert found == pytest.approx(slow_area(information, performance), abs=1e-9)


def test_area_of_simple_curves() -> None:
    assert information_area(np.array([0.5]), np.array([0.5])) == pytest.approx(0.5)
    assert information_area(np.array([1e-6]), np.array([1.0])) == pytest.approx(1.0, abs=1e-3)
    assert information_area(np.array([0.25, 0.5]), np.array([0.8, 0.1])) == pytest.approx(0.1 + 0.2 + 0.45, abs=1e-6)


# Economy, seeds and refusals


def test_all_thresholds_are_one_forward_pass_and_images_keep_their_part() -> None:
    model = target()
    module = model.module
    shared = sample(model)
    numbers(Case(shared, 0, centre_map()))
    assert (module.calls, module.images) == (3, 2 + len(THRESHOLDS))  # the picture, its blur, all thresholds
    numbers(Case(shared, 0, -centre_map()))
    assert (module.calls, module.images) == (4, 2 + 2 * len(THRESHOLDS))


def test_first_pixels_follow_from_seed_and_image() -> None:
    def first(name: str, seed: int) -> bytes:
        judged = Case(sample(target(), name=name), 0, centre_map(), seed=seed)
        numbers(judged)
        (canvas,) = judged.sample.cache.values()
        assert canvas.revealed.sum() == int(0.01 * SIDE * SIDE)  # type: ignore[attr-defined]
        return canvas.revealed.tobytes()  # type: ignore[attr-defined, no-any-return]

    assert first("a", 0) == first("a", 0)
    assert first("a", 0) != first("b", 0) and first("a", 0) != first("a", 1)


def test_unclear_images_are_refused() -> None:
    with pytest.raises(MetricError, match=r"class 1 scores 0\.\d+, less than 0\.5"):
        numbers(Case(sample(target()), 1, centre_map()))
    flat = np.full((SIDE, SIDE, 3), 200, np.uint8)
    with pytest.raises(MetricError, match="no less information"):
        numbers(Case(sample(target(), flat), 0, centre_map()))
    with pytest.raises(MetricError, match="accuracy needs a classifier"):
        numbers(Case(sample(target(score="logit")), 0, centre_map()))


def test_images_recognised_when_blurred_have_no_accuracy_curve() -> None:
    bright = np.random.default_rng(0).integers(160, 200, (SIDE, SIDE, 3)).astype(np.uint8)
    bright[8:16, 8:16] += 50
    assert set(numbers(Case(sample(target(), bright), 0, centre_map()))) == {"sic"}
    dark_centre = np.random.default_rng(0).integers(200, 250, (SIDE, SIDE, 3)).astype(np.uint8)
    dark_centre[8:16, 8:16] -= 30
    with pytest.raises(MetricError, match="no lower than the image"):
        numbers(Case(sample(target(), dark_centre), 0, centre_map()))


def test_the_median_stands_beside_the_mean() -> None:
    metric = load_metric("information_curve")
    assert metric.over_dataset({"sic": [0.1, 0.2, 0.9]}) == {"sic_median": (0.2, 3)}
    assert metric.over_dataset({"deletion": [0.1]}) == {}


def test_bad_thresholds_are_refused() -> None:
    for text in ("thresholds=(0.5, 0.2)", "thresholds=()", "thresholds=(0.5, 1.0)", "fraction=0.0"):
        with pytest.raises(SpecError, match=r"(thresholds|fraction) must"):
            load_metric(f"information_curve({text})")

"""The metrics that audits added, on maps and networks whose answer is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aha.errors import MetricError, SpecError
from aha.methods import load_method
from aha.metrics import Case, Sample, load_metric
from aha.metrics.localisation.border_mass import border, corners
from aha.metrics.sanity.answer_stability import shifted
from aha.models import TargetModel, load_model
from fakes import SIZE, TinyCNN, randomised

Maps = Callable[[TargetModel, Tensor, Tensor], Tensor]


class Brightness(nn.Module):
    """Class 1 above a brightness, class 0 below."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = nn.Parameter(torch.tensor(limit))

    def forward(self, x: Tensor) -> Tensor:
        above = 100 * (x.mean(dim=(1, 2, 3)) - self.limit)
        return torch.stack([-above, above], dim=1)


def model_of(module: nn.Module) -> TargetModel:
    return load_model(module.eval(), input_size=SIZE, mean=[0.0] * 3, std=[1.0] * 3)


@pytest.fixture
def image() -> Tensor:
    """Smooth noise around one half, so that a small shift changes little of it."""
    noise = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    smooth = F.interpolate(noise, size=(SIZE, SIZE), mode="bicubic").clamp(0, 1)[0]
    return 0.25 + 0.5 * smooth


def case_of(model: TargetModel, image: Tensor, maps: Callable[[int], Maps], target: int = 0) -> Case:
    values = maps(0)(model, image[None], torch.tensor([target]))[0]
    return Case(Sample(model, "image", image), target, values, "fake", explain=maps(0), reseeded=maps)


def measured(text: str, case: Case) -> dict[str, float]:
    return {value.column: value.value for value in load_metric(text)(case)}


def by_method(text: str) -> Callable[[int], Maps]:
    def maps(seed: int, model: TargetModel, inputs: Tensor, classes: Tensor) -> Tensor:
        found = load_method(text).seeded(seed)(model, inputs, classes).detach()
        return F.interpolate(found[:, None].float(), size=inputs.shape[-2:])[:, 0]

    return lambda seed: partial(maps, seed)


# Repeatability


def test_a_deterministic_map_repeats_and_a_random_one_does_not_by_another_seed(image: Tensor) -> None:
    model = model_of(randomised(TinyCNN()))
    found = measured("repeatability", case_of(model, image, by_method("gradient")))
    assert found == pytest.approx(dict.fromkeys(found, 1.0), abs=1e-4) and len(found) == 4
    found = measured("repeatability(seeds=3)", case_of(model, image, by_method("random_map")))
    assert found["repeat_again"] == found["repeat_precision"] == pytest.approx(1.0)
    assert abs(found["repeat_seeds"]) < 0.1


def test_a_map_that_depends_on_its_neighbours_is_found(image: Tensor) -> None:
    def spoilt(model: TargetModel, inputs: Tensor, classes: Tensor) -> Tensor:
        return inputs.mean(dim=(0, 1)).expand(len(inputs), -1, -1)

    found = measured("repeatability", case_of(model_of(randomised(TinyCNN())), image, lambda seed: spoilt))
    assert found["repeat_again"] == pytest.approx(1.0) and found["repeat_batch"] < 0.9


def test_precision_is_that_of_passes_without_gradients(image: Tensor) -> None:
    seen: list[str] = []

    def look(model: TargetModel, inputs: Tensor, classes: Tensor) -> Tensor:
        seen.append(model.precision)
        return inputs.mean(dim=1)

    model = model_of(randomised(TinyCNN()))
    measured("repeatability(seeds=1)", case_of(model, image, lambda seed: look))
    assert seen.count("bfloat16") == 1 and model.precision == "float32"


# Stability of the answer


def brightness(model: TargetModel, inputs: Tensor, classes: Tensor) -> Tensor:
    return inputs.mean(dim=1)


def test_a_map_that_moves_with_the_image_is_stable(image: Tensor) -> None:
    model = model_of(Brightness(0.0))
    found = measured("answer_stability", case_of(model, image, lambda seed: brightness, 1))
    assert found["answers_kept"] == 1.0 and found["answer_stability_least"] > 0.97
    fixed = by_method("random_map")
    found = measured("answer_stability", case_of(model, image, fixed, 1))  # stays behind when the image moves
    assert abs(found["answer_stability_least"]) < 0.1 and found["answer_stability"] == pytest.approx(0.8, abs=0.02)


def test_changes_that_change_the_answer_do_not_count(image: Tensor) -> None:
    model = model_of(Brightness(float(image.mean()) * 0.97))  # 5 % darker is the other class

    def by_answer(model: TargetModel, inputs: Tensor, classes: Tensor) -> Tensor:
        signs = model.outputs(inputs).diff(dim=1).sign()[:, :, None]
        return signs * brightness(model, inputs, classes)

    found = measured("answer_stability(shift=1)", case_of(model, image, lambda seed: by_answer, 1))
    assert found["answers_kept"] == pytest.approx(0.8) and found["answer_stability_least"] > 0.9


def test_a_shift_repeats_the_edge() -> None:
    assert shifted(torch.tensor([[1.0, 2, 3, 4]]), 2).tolist() == [[1, 1, 1, 2]]


# Mass at the border


@pytest.mark.parametrize(("region", "expected"), [("all", (1, 1)), ("frame", (1024 / 348, -1)), ("centre", (0, 0))])
def test_mass_at_the_border_is_relative_to_a_uniform_map(
    region: str, expected: tuple[float, float], image: Tensor
) -> None:
    frame = border((32, 32), 0.1)  # three pixels broad
    values = {"all": torch.ones(32, 32), "frame": frame.float(), "centre": torch.zeros(32, 32)}[region]
    if region == "centre":
        values[16, 16] = 1.0
    assert (int(frame.sum()), int(corners((32, 32), 0.15).sum())) == (348, 100)
    in_corners = int((frame & corners((32, 32), 0.15)).sum())
    case = Case(Sample(model_of(Brightness(0.0)), "image", image), 0, values)
    found = measured("border_mass", case)
    wanted = (expected[0], in_corners / 348 * 1024 / 100 if region == "frame" else expected[1])
    assert (found["border_mass"], found["corner_mass"]) == pytest.approx(wanted)


def test_what_cannot_be_measured_is_refused(image: Tensor) -> None:
    model = model_of(Brightness(0.0))

    def flat(seed: int) -> Maps:
        return lambda model, inputs, classes: torch.zeros(len(inputs), SIZE, SIZE)

    for text in ("repeatability", "answer_stability", "border_mass", "text_mass"):
        with pytest.raises(MetricError, match=r"constant|no positive mass"):
            measured(text, case_of(model, image, flat))
    for text in ("repeatability(seeds=0)", "answer_stability(sigma=0.0)", "border_mass(width=0.5)"):
        with pytest.raises(SpecError):
            load_metric(text)

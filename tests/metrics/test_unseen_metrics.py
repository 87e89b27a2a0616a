"""ROAD, SRG, single deletion, SaCo and bounded fidelity against direct slow versions, one picture at a time."""

from __future__ import annotations

import zlib
from itertools import pairwise

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from aha.errors import MetricError, SpecError
from aha.metrics import Case, Sample, load_metric
from aha.models import load_model
from aha.perturb.references import load_reference
from fakes import tiny_vit

SIDE = 32


def a_case(seed: int = 0, score: str | None = None) -> Case:
    options = {} if score is None else {"score": score}
    model = load_model(tiny_vit(), input_size=SIDE, mean=[0.5] * 3, std=[0.5] * 3, **options)
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(3, SIDE, SIDE, generator=generator) * 2 - 1
    target = int(model.outputs(inputs[None]).argmax())
    return Case(Sample(model, "vit", inputs, label=0), target, torch.randn(SIDE, SIDE, generator=generator))


def raw(case: Case, keep: list[list[bool]], reference: str) -> Tensor:
    """Raw outputs (K,) of one picture, put together pixel by pixel."""
    pixels, mask = case.sample.pixels, torch.tensor(keep)
    chosen = load_reference(reference)
    if hasattr(chosen, "fill"):
        empty = chosen.fill(pixels[None], mask[None])[0]
    else:
        empty = chosen(case.model, pixels[None], torch.tensor([case.target]))[0]
    picture = empty.clone()
    for y in range(SIDE):
        for x in range(SIDE):
            if keep[y][x]:
                picture[:, y, x] = pixels[:, y, x]
    return case.model.module(case.model.to_inputs(picture[None])).detach()[0]


def ordered(case: Case) -> list[tuple[int, int]]:
    """Pixels, most important first."""
    places = [(y, x) for y in range(SIDE) for x in range(SIDE)]
    return sorted(places, key=lambda place: -float(case.values[place]))


def without(gone: list[tuple[int, int]]) -> list[list[bool]]:
    missing = set(gone)
    return [[(y, x) not in missing for x in range(SIDE)] for y in range(SIDE)]


def numbers(text: str, case: Case) -> dict[tuple[str, str], float]:
    return {(value.column, value.reference): value.value for value in load_metric(text)(case)}


def probability(outputs: Tensor, case: Case) -> float:
    return float(outputs.softmax(0)[case.target])


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize(("reference", "against"), [("imputed", "target"), ("black", "label")])
def test_road_is_the_mean_over_the_shares(reference: str, against: str) -> None:
    case, shares = a_case(), (0.1, 0.5, 0.7)
    order = ordered(case)
    label = case.target if against == "target" else case.sample.label
    expected = {}
    for name, places in (("morf", order), ("lerf", order[::-1])):
        outputs = [raw(case, without(places[: round(share * SIDE**2)]), reference) for share in shares]
        expected[f"road_{name}"] = mean([probability(o, case) for o in outputs])
        expected[f"road_{name}_accuracy"] = mean([float(o.argmax() == label) for o in outputs])
    expected["road"] = expected["road_lerf"] - expected["road_morf"]
    found = numbers(f"road(fractions={shares}, references=({reference},), against={against!r})", case)
    assert found == {(name, reference): pytest.approx(value, abs=1e-5) for name, value in expected.items()}


def test_road_takes_nine_tenths_and_imputes() -> None:
    chosen = load_metric("road")
    assert chosen.fractions == tuple(tenth / 10 for tenth in range(1, 10)) and str(chosen.references[0]) == "imputed"
    assert len(list(chosen.perturbations(a_case()))) == sum(chosen.questions().values()) == 18


def test_road_of_a_regression_has_no_accuracy() -> None:
    columns = {value.column for value in load_metric("road(fractions=(0.5,))")(a_case(score="regression"))}
    assert columns == {"road", "road_morf", "road_lerf"}


def test_srg_is_least_first_minus_most_first_and_so_ins_del() -> None:
    case, steps = a_case(1), 6
    order = ordered(case)

    def area(places: list[tuple[int, int]]) -> float:
        counts = [round(step * SIDE**2 / steps) for step in range(steps + 1)]
        curve = [probability(raw(case, without(places[:count]), "blur"), case) for count in counts]
        return sum((a + b) / 2 for a, b in pairwise(curve)) / steps

    text = f"(steps={steps}, references=(blur,))"
    found = numbers(f"srg{text}", case)[("srg", "blur")]
    assert found == pytest.approx(area(order[::-1]) - area(order), abs=1e-4)
    assert found == numbers(f"ins_del{text}", case)[("ins_del", "blur")]


@pytest.mark.parametrize("choices", ["steps=5", "steps=4, references=(imputed, black)", "steps='adaptive'"])
def test_srg_is_ins_del_by_another_name(choices: str) -> None:
    case = a_case(2)
    found, expected = load_metric(f"srg({choices})")(case), load_metric(f"ins_del({choices})")(case)
    assert [value[1:] for value in found] == [value[1:] for value in expected]


@pytest.mark.parametrize("scale", ["logit", "score"])
def test_single_deletion_correlates_mass_and_drop(scale: str) -> None:
    case = a_case(3)
    expected = {}
    for grid in (4, 8):
        side, mass, drops = SIDE // grid, [], []
        clean = raw(case, without([]), "black")
        for row in range(grid):
            for column in range(grid):
                cell = [(row * side + y, column * side + x) for y in range(side) for x in range(side)]
                mass.append(sum(float(case.values[place]) for place in cell))
                outputs = raw(case, without(cell), "black")
                drop = clean - outputs if scale == "logit" else clean.softmax(0) - outputs.softmax(0)
                drops.append(float(drop[case.target]))
        expected["single_deletion", f"black, {grid} x {grid}"] = spearmanr(mass, drops).statistic
    expected["single_deletion", "average"] = mean(list(expected.values()))
    found = numbers(f"single_deletion(references=(black,), scale={scale!r})", case)
    assert found == {key: pytest.approx(value, abs=0.01) for key, value in expected.items()}  # near ties may turn


class Counting(nn.Module):
    """Counts the images that it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.count = nn.Parameter(torch.rand(3, 16, generator=torch.Generator().manual_seed(1))), 0

    def forward(self, images: Tensor) -> Tensor:
        self.count += len(images)
        return images.mean(dim=(1, 2))[:, :16] @ self.weights.T


def test_single_deletion_asks_once_for_all_maps_of_an_image() -> None:
    module = Counting()
    model = load_model(module, input_size=16, mean=[0.5] * 3, std=[0.5] * 3)
    sample = Sample(model, "counted", torch.rand(3, 16, 16))
    maps = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(2))
    chosen = load_metric("single_deletion")
    before = module.count
    first = chosen(Case(sample, 1, maps[0]))
    assert module.count - before == 80 == sum(chosen.questions().values())
    assert chosen(Case(sample, 1, maps[1])) != first and module.count - before == 80
    chosen(Case(sample, 2, maps[0]))  # of another class: some references depend on it
    assert module.count - before == 160


def test_a_map_without_differences_has_no_correlation() -> None:
    case = a_case()
    case.values[:] = 1.0
    with pytest.raises(MetricError, match="4 x 4 patches are alike"):
        load_metric("single_deletion")(case)


@pytest.mark.parametrize("seed", range(4))
def test_saco_weighs_pairs_of_groups_by_their_mass(seed: int) -> None:
    case, groups = a_case(seed), 7
    order = ordered(case)
    bounds = [round(k * SIDE**2 / groups) for k in range(groups + 1)]
    parts = [order[a:b] for a, b in pairwise(bounds)]
    salience = [sum(float(case.values[place]) for place in part) for part in parts]
    clean = probability(raw(case, without([]), "own_mean"), case)
    drops = [clean - probability(raw(case, without(part), "own_mean"), case) for part in parts]
    score, total = 0.0, 0.0
    for i in range(groups - 1):
        for j in range(i + 1, groups):
            weight = salience[i] - salience[j] if drops[i] >= drops[j] else salience[j] - salience[i]
            score += weight
            total += abs(weight)
    assert numbers(f"saco(groups={groups})", case) == {("saco", "own_mean"): pytest.approx(score / total, abs=1e-4)}


def test_saco_of_a_constant_map_is_zero() -> None:
    case = a_case()
    case.values[:] = 0.0
    assert numbers("saco", case) == {("saco", "own_mean"): 0.0}


@pytest.mark.parametrize("accuracy", [True, False])
def test_bounded_fidelity_removes_small_random_shares(accuracy: bool) -> None:
    case, shares, alpha, beta, samples = a_case(4), (0.1, 0.5, 1.0), 0.5, 0.2, 3
    order, read = ordered(case), float

    def reading(outputs: Tensor) -> float:
        return read(outputs.argmax() == case.target) if accuracy else probability(outputs, case)

    clean = reading(raw(case, without([]), "zeros_normalised"))
    expected = {}
    for name, places in (("plus", order), ("minus", order[::-1])):
        readings = []
        for share in shares:
            inside = places[: round(share * SIDE**2)]
            ratio = alpha
            if len(inside) * alpha > beta * SIDE**2:
                ratio = beta * SIDE**2 / len(inside)
            for draw in range(samples):
                generator = torch.Generator().manual_seed(zlib.crc32(f"0 {draw}".encode()))
                chance = torch.rand(SIDE, SIDE, generator=generator)
                gone = [place for place in inside if float(chance[place]) < ratio]
                assert len(gone) < 1.3 * beta * SIDE**2
                readings.append(reading(raw(case, without(gone), "zeros_normalised")))
        expected[f"fidelity_bounded_{name}"] = clean - mean(readings)
    expected["fidelity_bounded"] = expected["fidelity_bounded_plus"] - expected["fidelity_bounded_minus"]
    text = f"fidelity_bounded(shares={shares}, alpha={alpha}, beta={beta}, samples={samples}, accuracy={accuracy})"
    found = numbers(text, case)
    assert found == {(name, "zeros_normalised"): pytest.approx(value, abs=1e-5) for name, value in expected.items()}


def test_bounded_fidelity_of_everything_knows_no_ends() -> None:
    """Top and bottom of all pixels are the same pixels, and the draws are shared."""
    found = numbers("fidelity_bounded(shares=(1.0,))", a_case(5))
    assert found["fidelity_bounded", "zeros_normalised"] == 0.0


@pytest.mark.parametrize("name", ["road", "saco", "single_deletion", "fidelity_bounded", "srg(steps=3)"])
def test_several_references_are_averaged(name: str) -> None:
    metric, _, rest = name.partition("(")
    few = "fractions=(0.5,), " if metric == "road" else ""
    values = load_metric(f"{metric}({few}references=(black, shuffled(grid=4)){', ' + rest if rest else ')'}")(a_case(6))
    for column in {value.column for value in values}:
        own = [value for value in values if value.column == column]
        assert own[-1].reference == "average"
        assert own[-1].value == pytest.approx(mean([value.value for value in own[:-1]]))


@pytest.mark.parametrize(
    "text",
    [
        "road(fractions=())",
        "road(fractions=(0.0, 0.5))",
        "road(references=())",
        "saco(groups=1)",
        "single_deletion(grids=(1,))",
        "single_deletion(references=())",
        "fidelity_bounded(beta=0.0)",
        "fidelity_bounded(shares=(1.5,))",
        "fidelity_bounded(samples=0)",
    ],
)
def test_unfit_choices_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        load_metric(text)

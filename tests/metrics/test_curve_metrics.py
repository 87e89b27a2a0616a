"""The perturbation metrics against closed forms and against direct slow implementations of the protocols."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from aha.errors import MetricError, SpecError
from aha.metrics import METRICS, Case, Sample, load_metric
from aha.metrics.protocols import PROTOCOLS
from aha.models import TargetModel, load_model
from aha.perturb.references import load_reference
from fakes import tiny_vit

ONE_REFERENCE = "references=(black,)"


class Weighted(nn.Module):
    """One output: a weighted sum of the pixels, so that every curve is known."""

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.Parameter(weights)

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, 0] * self.weights).sum(dim=(1, 2))[:, None]


def linear_case(weights: Tensor, values: Tensor | None = None, seed: int = 0) -> Case:
    model = load_model(Weighted(weights), input_size=weights.shape, mean=[0.0], std=[1.0], score="regression")
    sample = Sample(model, "linear", torch.ones(1, *weights.shape))
    return Case(sample, 0, weights if values is None else values, seed=seed)


def vit_case(seed: int = 0) -> Case:
    model = load_model(tiny_vit(), input_size=32, mean=[0.5] * 3, std=[0.5] * 3)
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(3, 32, 32, generator=generator) * 2 - 1
    target = int(model.outputs(inputs[None]).argmax())
    return Case(Sample(model, "vit", inputs, label=target), target, torch.rand(32, 32, generator=generator))


def number(text: str, case: Case, reference: str | None = None, column: str | None = None) -> float:
    values = load_metric(text)(case)
    found = [v for v in values if reference in (None, v.reference) and column in (None, v.column)]
    assert len(found) == 1, found
    return found[0].value


# Closed forms


def test_linear_deletion_and_insertion_curves_are_cumulative_sums() -> None:
    weights = torch.rand(6, 5)
    case = linear_case(weights)
    ordered = weights.flatten().sort(descending=True).values.double()
    left = torch.cat([ordered.sum()[None], ordered.sum() - ordered.cumsum(0)])
    there = torch.cat([torch.zeros(1).double(), ordered.cumsum(0)])
    expected = [float(torch.trapezoid(curve) / 30) for curve in (left, there)]
    assert number(f"deletion(steps=30, {ONE_REFERENCE})", case) == pytest.approx(expected[0], rel=1e-5)
    assert number(f"insertion(steps=30, {ONE_REFERENCE})", case) == pytest.approx(expected[1], rel=1e-5)
    assert number(f"ins_del(steps=30, {ONE_REFERENCE})", case) == pytest.approx(expected[1] - expected[0], rel=1e-4)


def test_perfect_and_worst_orders_bound_every_other() -> None:
    weights = torch.rand(3, 3)
    best, worst = (number(f"ins_del(steps=9, {ONE_REFERENCE})", linear_case(weights, s * weights)) for s in (1, -1))
    for seed in range(20):
        values = torch.rand(3, 3, generator=torch.Generator().manual_seed(seed))
        assert worst - 1e-5 <= number(f"ins_del(steps=9, {ONE_REFERENCE})", linear_case(weights, values)) <= best + 1e-5


def test_equal_weights_make_every_order_worth_nothing() -> None:
    case = linear_case(torch.ones(4, 4), torch.rand(4, 4))
    assert number(f"ins_del(steps=16, {ONE_REFERENCE})", case) == pytest.approx(0.0, abs=1e-5)


def test_all_ties_are_defined_and_seeded() -> None:
    weights = torch.rand(4, 4)
    flat = [
        number(f"deletion(steps=16, {ONE_REFERENCE})", linear_case(weights, torch.zeros(4, 4), s)) for s in (0, 0, 1)
    ]
    assert flat[0] == flat[1] != flat[2]


def test_one_pixel_image() -> None:
    case = linear_case(torch.ones(1, 1), torch.zeros(1, 1))
    assert number(f"deletion({ONE_REFERENCE})", case) == pytest.approx(0.5)
    assert number(f"ins_del({ONE_REFERENCE})", case) == pytest.approx(0.0)


# Direct slow versions


def slow_scores(case: Case, order: list[int], reference: Tensor, counts: list[int], insert: bool) -> list[Tensor]:
    """Raw outputs, one forward pass at a time, from a list of pixels."""
    outputs = []
    pixels = case.sample.pixels
    for count in counts:
        picture = (reference if insert else pixels).clone()
        for index in order[:count]:
            row, column = divmod(index, pixels.shape[-1])
            picture[:, row, column] = (pixels if insert else reference)[:, row, column]
        outputs.append(case.model.module(case.model.to_inputs(picture[None])).detach()[0])
    return outputs


def slow_sequences(case: Case, reference: str, steps: int) -> tuple[list[Tensor], list[Tensor]]:
    order = case.values.flatten().argsort(descending=True).tolist()
    empty = load_reference(reference)(case.model, case.sample.pixels[None], torch.tensor([case.target]))[0]
    counts = [round(i * 1024 / steps) for i in range(steps + 1)]
    return slow_scores(case, order, empty, counts, False), slow_scores(case, order, empty, counts, True)


@pytest.mark.parametrize("reference", ["black", "mean", "blur(kernel=7, sigma=3.0)"])
def test_six_curve_metrics_equal_the_slow_protocol(reference: str) -> None:
    case, steps = vit_case(), 8
    deleted, inserted = slow_sequences(case, reference, steps)

    def mean_area(values: list[float]) -> float:
        return (sum(values) - values[0] / 2 - values[-1] / 2) / steps

    def probability(outputs: list[Tensor]) -> float:
        return mean_area([float(o.softmax(0)[case.target]) for o in outputs])

    def accuracy(outputs: list[Tensor]) -> float:
        return mean_area([float(o.argmax() == case.target) for o in outputs])

    expected = {
        "deletion": probability(deleted),
        "insertion": probability(inserted),
        "ins_del": probability(inserted) - probability(deleted),
        "positive": accuracy(deleted),
        "negative": accuracy(inserted),  # removing the lowest first, read backwards
        "neg_pos": accuracy(inserted) - accuracy(deleted),
    }
    for name, value in expected.items():
        assert number(f"{name}(steps={steps}, references=({reference},))", case) == pytest.approx(value, abs=1e-5), name


def test_chefer_removes_ten_to_ninety_percent_to_black() -> None:
    case = vit_case()
    order = case.values.flatten().argsort(descending=True).tolist()
    counts = [round(0.1 * i * 1024) for i in range(1, 10)]
    black = torch.zeros_like(case.sample.pixels)
    for name, pixels in (("positive", order), ("negative", order[::-1])):
        outputs = slow_scores(case, pixels, black, counts, False)
        hits = [float(o.argmax() == case.sample.label) for o in outputs]
        expected = (sum(hits) - hits[0] / 2 - hits[-1] / 2) / 8
        metric = next(m for m in PROTOCOLS["chefer"].metrics if m.name == name)
        # 0.1 of 1024 pixels is no whole number, so the steps are not exactly equal.
        assert metric(case)[0].value == pytest.approx(expected, abs=2e-3)


def test_mda_and_mas_equal_the_slow_protocol() -> None:
    case, steps = vit_case(3), 16
    deleted, inserted = slow_sequences(case, "zeros_normalised", steps)
    order = case.values.flatten().argsort(descending=True)
    mass = case.values.flatten()[order].double().cumsum(0) / case.values.double().sum()
    density = [0.0] + [float(mass[round(i * 1024 / steps) - 1]) for i in range(1, steps + 1)]

    def monotone(outputs: list[Tensor], rising: bool) -> list[float]:
        raw = [float(o.softmax(0)[case.target]) for o in outputs]
        blank, clean = (raw[0], raw[-1]) if rising else (raw[-1], raw[0])
        scaled = [min(1.0, max(0.0, (v - blank) / abs(clean - blank))) for v in raw]
        return list(itertools.accumulate(scaled, max if rising else min))

    def mean_area(values: list[float]) -> float:
        return (sum(values) - values[0] / 2 - values[-1] / 2) / steps

    def mas(response: list[float], mass_at: list[float], sign: int) -> float:
        raw = [min(1.0, max(0.0, r + sign * abs(r - d))) for r, d in zip(response, mass_at, strict=True)]
        low, high = min(raw), max(raw)
        return mean_area([(v - low) / (high - low) for v in raw])

    rising, falling = monotone(inserted, True), monotone(deleted, False)
    refs = "references=(zeros_normalised,)"
    assert number(f"insertion(steps={steps}, {refs}, normalised=True)", case) == pytest.approx(
        mean_area(rising), abs=1e-5
    )
    assert number(f"deletion(steps={steps}, {refs}, normalised=True)", case) == pytest.approx(
        mean_area(falling), abs=1e-5
    )
    text = f"mas(steps={steps}, {refs}, insert_into=(zeros_normalised,))"
    assert number(text, case, column="mas_insertion") == pytest.approx(mas(rising, density, -1), abs=1e-5)
    assert number(text, case, column="mas_deletion") == pytest.approx(
        mas(falling, [1 - d for d in density], 1), abs=1e-5
    )
    assert number(text, case, column="mas_insertion_response") == pytest.approx(mean_area(rising), abs=1e-5)


def test_monotonicity_is_spearman_over_steps() -> None:
    case = vit_case(1)
    _, inserted = slow_sequences(case, "black", 12)
    raw = [float(o.softmax(0)[case.target]) for o in inserted]
    expected = spearmanr(range(13), raw).statistic
    assert number("monotonicity(steps=12, references=(black,))", case) == pytest.approx(expected, abs=1e-5)


def test_average_drop_and_increase_blend_through_the_map() -> None:
    case = vit_case(2)
    low, high = case.values.min(), case.values.max()
    keep = (case.values - low) / (high - low)
    empty = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    mixed = case.sample.pixels * keep + empty * (1 - keep)
    before, after = (
        float(case.model.module(case.model.to_inputs(p[None])).detach().softmax(1)[0, case.target])
        for p in (case.sample.pixels, mixed)
    )
    drop = number("average_drop(references=(mean,))", case, "mean")
    assert drop == pytest.approx(100 * max(0, before - after) / before, abs=1e-3)
    assert number("confidence_increase(references=(mean,))", case) == (100.0 if after > before else 0.0)
    assert number("average_drop(references=(mean,))", case, column="map_mean") == pytest.approx(
        float(keep.mean()), abs=1e-6
    )


def test_a_map_of_ones_keeps_everything() -> None:
    case = vit_case()
    case.values[:] = 1.0
    case.values[0, 0] = 0.0  # not constant, so that scaling is defined
    assert number("average_drop(references=(black,))", case, "black") < 60  # one pixel of 1024 is missing


# Averages, patches, errors, counting


def test_the_average_is_over_the_references() -> None:
    values = load_metric("deletion(steps=4)")(vit_case())
    assert [v.reference for v in values] == ["black", "mean", "blur", "average"]
    assert values[-1].value == pytest.approx(sum(v.value for v in values[:-1]) / 3)


def test_patches_leave_whole() -> None:
    weights = torch.rand(4, 4)
    coarse = torch.tensor([[4.0, 3.0], [2.0, 1.0]]).repeat_interleave(2, 0).repeat_interleave(2, 1)
    case = linear_case(weights, coarse)
    whole = [float(weights.sum())]
    for corner in ((0, 0), (0, 2), (2, 0), (2, 2)):
        whole.append(whole[-1] - float(weights[corner[0] : corner[0] + 2, corner[1] : corner[1] + 2].sum()))
    expected = (sum(whole) - whole[0] / 2 - whole[-1] / 2) / 4
    assert number(f"deletion({ONE_REFERENCE}, by_patch=True)", case) == pytest.approx(expected, rel=1e-5)


class Counting(nn.Module):
    """Counts the images it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 4)
        self.shown = 0

    def forward(self, x: Tensor) -> Tensor:
        self.shown += len(x)
        return self.head(x.mean(dim=(2, 3)))


def counting_model() -> tuple[Counting, TargetModel]:
    module = Counting()
    return module, load_model(module, input_size=16, mean=[0.5] * 3, std=[0.5] * 3)


def test_six_metrics_share_every_forward_pass() -> None:
    """Two sequences per reference, ends shared: 2 x 3 x (steps - 1) images, 3 references, the clean image once."""
    module, model = counting_model()
    sample, steps = Sample(model, "s", torch.rand(3, 16, 16)), 8
    names = ("deletion", "insertion", "ins_del", "positive", "negative", "neg_pos")
    metrics = [load_metric(f"{name}(steps={steps})") for name in names]
    first = Case(sample, 1, torch.rand(16, 16))
    for chosen in metrics:
        chosen(first)
    assert module.shown == 2 * 3 * (steps - 1) + 3 + 1
    second = Case(sample, 1, torch.rand(16, 16))  # another method on the same image
    for chosen in metrics:
        chosen(second)
    assert module.shown == 2 * 2 * 3 * (steps - 1) + 3 + 1


def test_full_batches_are_streamed() -> None:
    module, model = counting_model()
    sizes: list[int] = []
    module.register_forward_pre_hook(lambda _m, args: sizes.append(len(args[0])))
    model.chunks.size = 10
    case = Case(Sample(model, "s", torch.rand(3, 16, 16)), 1, torch.rand(16, 16))
    case.prepare(load_metric("ins_del(steps=11)").perturbations(case))
    assert sorted(sizes, reverse=True)[:6] == [10] * 6  # 60 hard images in 6 batches; ends come singly


def test_vanishing_probability_is_refused_by_relative_drop() -> None:
    case = vit_case()
    case.sample.know_clean(torch.tensor([0.0, 0, 0, 0, 0]).index_fill(0, torch.tensor([(case.target + 1) % 5]), 100.0))
    with pytest.raises(MetricError, match="too low for a relative drop"):
        load_metric("average_drop")(case)


def test_accuracy_needs_a_classifier() -> None:
    with pytest.raises(MetricError, match="classifier"):
        load_metric("positive(steps=2)")(linear_case(torch.rand(4, 4)))


def test_maps_that_do_not_fit_are_refused() -> None:
    case = vit_case()
    with pytest.raises(MetricError, match=r"bring the map"):
        Case(case.sample, 0, torch.rand(7, 7))
    with pytest.raises(MetricError, match="not finite"):
        Case(case.sample, 0, torch.full((32, 32), math.nan))


def test_unbuildable_reference_names_the_image() -> None:
    case = vit_case()
    with pytest.raises(MetricError, match="vit: adaptive_blur"):
        load_metric("monotonicity(references=(adaptive_blur(largest=31, threshold=0.0),))")(case)


UNFIT = [
    "deletion(fractions=(0.5, 0.1, 0.9))",  # the area needs an order
    "insertion(fractions=(0.5, 0.5))",
    "deletion(fractions=(0.1, 0.9), normalised=True)",  # between the image and the reference, which are not there
    "mas(fractions=(0, 0.5))",
    "mas(references=(black, mean))",  # one number, of one reference
    "mas(insert_into=())",
]


@pytest.mark.parametrize(
    "text", ["deletion(steps=1)", "deletion(references=())", "deletion(fractions=(0.5,))", "deletio", *UNFIT]
)
def test_bad_metrics_are_refused(text: str) -> None:
    with pytest.raises(SpecError):
        load_metric(text)


@pytest.mark.parametrize("name", list(METRICS))
def test_texts_round_trip(name: str) -> None:
    chosen = load_metric(name)
    assert load_metric(str(chosen)) == chosen and hash(load_metric(str(chosen))) == hash(chosen)
    assert METRICS[name].columns and METRICS[name].__module__.rpartition(".")[2] == name


def test_multi_label_scores_are_judged_one_by_one() -> None:
    model = load_model(tiny_vit(), input_size=32, mean=[0.5] * 3, std=[0.5] * 3, score="sigmoid")
    case = Case(Sample(model, "m", torch.rand(3, 32, 32)), 2, torch.rand(32, 32))
    outputs = torch.tensor([[9.0, 9, 0.1, 9, 9], [9.0, 9, -0.1, 9, 9]])
    assert case.recognised(outputs, 2).tolist() == [True, False]
    assert 0 < number("deletion(steps=4, references=(black,))", case) < 1

"""What every registered metric promises: declared columns, finite values within bounds, determinism, no trace left."""

from __future__ import annotations

import contextlib
from itertools import count

import pytest
import torch
from torch import Tensor, nn

from aha.errors import MetricError
from aha.methods import load_method
from aha.metrics import METRICS, Case, Sample, load_metric
from aha.metrics.case import Explain
from aha.models import TargetModel, load_model
from fakes import changes, snapshot, surroundings, tiny_vit

SMALL = {  # smaller settings of metrics whose defaults are made for 224 px and real networks
    "information_curve": "information_curve(min_prediction=0.0)",
    "mas": "mas(steps=6, insert_into=(black,))",
    "monotonicity": "monotonicity(steps=6, references=(black,))",
    "randomisation": "randomisation(stages=2)",
}
CURVES = ("deletion", "insertion", "ins_del", "positive", "negative", "neg_pos", "srg")


def small(name: str) -> str:
    return f"{name}(steps=6)" if name in CURVES else SMALL.get(name, name)


def a_case(model: TargetModel) -> Case:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.rand(3, 32, 32, generator=generator) * 2 - 1
    target = int(model.outputs(inputs[None]).argmax())
    mask = torch.zeros(32, 32, dtype=torch.bool)
    mask[4:20, 6:22] = True
    sample = Sample(
        model,
        "sample",
        inputs,
        label=target,
        mask=mask,
        ignore=torch.zeros_like(mask),
        boxes=torch.tensor([[6.0, 4.0, 22.0, 20.0]]),
        cells={target: (0, 0, 16, 16)},
    )

    def explain(other: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        return load_method("gradient")(other, images, classes).detach()

    values = explain(model, inputs[None], torch.tensor([target]))[0]
    return Case(
        sample,
        target,
        values,
        "gradient",
        explain=explain,
        reseeded=lambda seed: explain,
        seconds=0.1,
        forward_images=1.0,
        backward_images=1.0,
    )


@pytest.mark.parametrize("name", list(METRICS))
def test_a_metric_keeps_its_promises(name: str) -> None:
    module = tiny_vit()
    model = load_model(module, input_size=32, mean=[0.5] * 3, std=[0.5] * 3)
    before = snapshot(module) | surroundings()
    chosen = load_metric(small(name))
    first, second = chosen(a_case(model)), chosen(a_case(model))
    assert changes(before, snapshot(module) | surroundings()) == []
    assert first and {value.column for value in first} <= set(chosen.columns)
    assert first == second
    low, high = chosen.bounds
    judging = [value for value in first if chosen.columns[value.column] != "neither"]
    assert all(low <= value.value <= high for value in judging), first


class Watched(Sample):
    """A sample that notes which truth is looked at."""

    read: set[str]

    def __getattribute__(self, name: str) -> object:
        if name in ("mask", "ignore", "boxes"):
            object.__getattribute__(self, "read").add("boxes" if name == "boxes" else "mask")
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("name", list(METRICS))
@pytest.mark.parametrize("without", ["", "mask", "boxes"])
def test_a_metric_declares_the_truth_that_it_looks_at(name: str, without: str) -> None:
    """By it, results are known: truth that is not declared could change and its numbers would stay."""
    model = load_model(tiny_vit(), input_size=32, mean=[0.5] * 3, std=[0.5] * 3)
    case, chosen = a_case(model), load_metric(small(name))
    if without in chosen.needs:
        pytest.skip(f"it needs {without}")
    watched = Watched.__new__(Watched)
    object.__setattr__(watched, "read", set())
    for field, value in vars(case.sample).items():
        object.__setattr__(watched, field, None if field == without else value)
    case.sample = watched
    with contextlib.suppress(MetricError):
        chosen(case)
    assert watched.read <= chosen.needs | chosen.looks_at


# A perfect map


REGION = (slice(4, 20), slice(6, 22))  # rows and columns of the only pixels that speak for the class


def texture() -> Tensor:
    """Light and dark pixels (16, 16), as many of the one as of the other."""
    return torch.randperm(256, generator=torch.Generator().manual_seed(1)).remainder(2).view(16, 16) * 2.0 - 1


class Square(nn.Module):
    """Two classes; the second one is a square with a certain texture, the darker its surroundings the better."""

    def __init__(self) -> None:
        super().__init__()
        weights = torch.full((32, 32), -0.1 / (1024 - 256))
        weights[REGION] = texture() / 256
        self.weights = nn.Parameter(torch.stack([-weights, weights]))  # (2, 32, 32)
        self.least = nn.Parameter(torch.tensor([-0.4, 0.4]))

    def forward(self, inputs: Tensor) -> Tensor:
        return 6 * (torch.einsum("bchw,khw->bk", inputs, self.weights) / 3 - self.least)  # (B, 2)


def perfect(model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
    """What each pixel brings to each class, exactly: the network is linear."""
    weights = dict(model.module.named_parameters())["weights"].detach()
    return weights[classes] * images.mean(dim=1)  # (B, 32, 32)


def inverse(model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
    return -perfect(model, images, classes)


def elsewhere(model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
    """The same map half an image away."""
    return perfect(model, images, classes).roll((16, 16), (1, 2))


def one_for_all(model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
    """The same map for every class and every model: it shows nothing but the picture."""
    return perfect(SQUARE, images, torch.ones_like(classes))


def jumpy(model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
    """Another map for every picture, however close."""
    seeds = (images.double().flatten(1).sum(dim=1) * 1e6).long().tolist()
    return torch.stack([torch.rand(32, 32, generator=torch.Generator().manual_seed(seed % 2**31)) for seed in seeds])


CALLS = count()


def restless(model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
    """Another map each time."""
    return torch.rand(len(images), 32, 32, generator=torch.Generator().manual_seed(next(CALLS)))


def evenly_spread(model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
    values = torch.rand(32, 32, generator=torch.Generator().manual_seed(9))
    return values.expand(len(images), -1, -1)


SQUARE = load_model(Square(), input_size=32, mean=[0.5] * 3, std=[0.5] * 3)
# Of an additive model, the curve of the inverse is that of the map itself turned round: as monotone, and best where
# evidence for and against a class comes evenly.
BETTER = {"monotonicity": evenly_spread}
WORSE = {
    "answer_stability": jumpy,
    "class_sensitivity": one_for_all,
    "randomisation": one_for_all,
    "repeatability": restless,
    "stability": jumpy,
    **dict.fromkeys(("earth_movers_distance", "mass_in_truth", "precision_at_k"), elsewhere),  # they fold the sign
}


def square_case(explain: Explain, effort: float = 1.0) -> Case:
    generator = torch.Generator().manual_seed(3)
    pixels = 0.6 + 0.1 * torch.rand(3, 32, 32, generator=generator)
    pixels[:, *REGION] = 0.5 + 0.4 * texture() + 0.05 * torch.rand(3, 16, 16, generator=generator)
    mask = torch.zeros(32, 32, dtype=torch.bool)
    mask[REGION] = True
    sample = Sample(
        SQUARE,
        "square",
        SQUARE.to_inputs(pixels),
        label=1,
        mask=mask,
        ignore=torch.zeros_like(mask),
        boxes=torch.tensor([[6.0, 4.0, 22.0, 20.0]]),
        cells={1: (4, 6, 20, 22)},
    )
    values = explain(SQUARE, sample.inputs[None], torch.tensor([1]))[0]
    cost = dict.fromkeys(("seconds", "forward_images", "backward_images", "peak_bytes"), effort)
    return Case(sample, 1, values, "perfect", explain=explain, reseeded=lambda seed: explain, **cost)


@pytest.mark.parametrize("name", list(METRICS))
def test_a_perfect_map_beats_its_inverse(name: str) -> None:
    """Where the map alone is not what is judged, a method that sees class, weights and picture beats a blind one."""
    chosen = load_metric(small(name))
    good, bad = square_case(BETTER.get(name, perfect)), square_case(WORSE.get(name, inverse), effort=2.0)
    better, worse = ({v.column: v.value for v in chosen(case)} for case in (good, bad))  # averages come last
    judged = {column: direction for column, direction in chosen.columns.items() if direction != "neither"}
    judged = {column: direction for column, direction in judged.items() if not column.endswith("_penalty")}  # of sizes
    assert judged or name in ("sparseness", "border_mass", "text_mass"), (
        "a metric that judges nothing describes something, and is listed here"
    )
    assert judged.keys() == better.keys() & judged.keys()
    for column, direction in judged.items():
        gain = better[column] - worse[column]
        assert (gain if direction == "higher" else -gain) > 0, (column, better[column], worse[column])


@pytest.mark.parametrize("name", list(METRICS))
def test_what_is_read_was_named_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a metric names is asked of the model together with what others name; the rest would be asked one by one."""
    chosen, case = load_metric(small(name)), square_case(perfect)
    named = list(chosen.perturbations(case))
    case.prepare(named)
    assert case.sample.clean.isfinite().all()

    def asked(*_: object, **__: object) -> Tensor:
        raise AssertionError(f"{name} reads perturbed images that it did not name")

    monkeypatch.setattr("aha.metrics.case.perturbed_outputs", asked)
    monkeypatch.setattr(Sample, "blank", asked)
    assert chosen(case)

"""What every registered metric promises: declared columns, finite values within bounds, determinism, no trace left."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aha.methods import load_method
from aha.metrics import METRICS, Case, Sample, load_metric
from aha.models import TargetModel, load_model
from fakes import changes, snapshot, surroundings, tiny_vit

SMALL = {  # smaller settings of metrics whose defaults are made for 224 px and real networks
    "information_curve": "information_curve(min_prediction=0.0)",
    "mas": "mas(steps=6, insert_into=(black,))",
    "monotonicity": "monotonicity(steps=6, references=(black,))",
    "randomisation": "randomisation(stages=2)",
}
CURVES = ("deletion", "insertion", "ins_del", "positive", "negative", "neg_pos")


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
        sample, target, values, "gradient", explain=explain, seconds=0.1, forward_images=1.0, backward_images=1.0
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

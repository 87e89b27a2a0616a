"""Networks with several inputs, of which one is explained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reading import one_line
from torch import Tensor, nn

import aha
from aha.errors import ModelError
from aha.models import load_model
from fakes import SIZE, TinyCNN, changes, randomised, snapshot, tiny_vit

HALF = (0.5,) * 3
METHODS = ["gradient", "grad_cam", "integrated_gradients(steps=4)", "occlusion(window=16, stride=16)", "score_cam"]


class WithMetadata(TinyCNN):
    """An image and a row of numbers, which shift the logits and scale the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Linear(2, 1)

    def forward(self, x: Tensor, metadata: Tensor, *, flip: bool = False) -> Tensor:  # type: ignore[override]
        found = super().forward(x * self.gain(metadata)[:, :, None, None])
        return -found if flip else found


class Pair(nn.Module):
    """Both pictures go through one trunk, the explained one first or second."""

    def __init__(self, trunk: nn.Module) -> None:
        super().__init__()
        self.trunk = trunk

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.trunk(left) * self.trunk(right)


@pytest.mark.parametrize("method", METHODS)
def test_metadata_by_position_and_by_name(method: str, images: Tensor) -> None:
    network, row = randomised(WithMetadata()), torch.tensor([[0.5, -1.0]])
    before = snapshot(network)
    expected = aha.explain(lambda x: network(x, row.expand(len(x), 2), flip=True), images, method)
    fixed: list[Any] = [{"x": ..., "metadata": row, "flip": True}]
    if method == "gradient":
        fixed.append({"metadata": row.numpy(), "x": ..., "flip": True})
    for inputs in fixed:
        found = aha.explain(load_model(network, inputs=inputs), images, method)
        assert torch.equal(found.maps, expected.maps)
    by_position = aha.explain(load_model(network, inputs=(..., row)), images, method, expected.targets.tolist())
    assert by_position.maps.shape == expected.maps.shape
    assert changes(before, snapshot(network)) == []


@pytest.mark.parametrize("method", ["grad_cam", "hires_cam", "score_cam", "ablation_cam"])
@pytest.mark.parametrize("is_first", [True, False])
def test_the_features_are_those_of_the_explained_picture(method: str, is_first: bool, images: Tensor) -> None:
    trunk, other = randomised(TinyCNN()), images[:1].flip(3)
    inputs = (..., other) if is_first else (other, ...)
    with torch.no_grad():
        factor = trunk(other)
    expected = aha.explain(lambda x: trunk(x) * factor, images, method, 1)
    found = aha.explain(load_model(Pair(trunk), inputs=inputs), images, method, 1)
    assert torch.allclose(found.maps, expected.maps, rtol=1e-4, atol=1e-6)
    assert found.maps.abs().sum() > 0


@pytest.mark.parametrize("is_first", [True, False])
def test_attention_of_the_explained_picture(is_first: bool, images: Tensor) -> None:
    trunk, other = randomised(tiny_vit()), images[:1].flip(3)
    with torch.no_grad():
        factor = trunk(other)
    for method in ("grad_cam", "rollout", "transformer_attribution"):
        expected = aha.explain(lambda x: trunk(x) * factor, images, method, 1)
        found = aha.explain(
            load_model(Pair(trunk), inputs=(..., other) if is_first else (other, ...)), images, method, 1
        )
        assert torch.allclose(found.maps, expected.maps, rtol=1e-3, atol=1e-6)


def test_other_values_are_another_model(images: Tensor) -> None:
    network = randomised(WithMetadata())
    one, same, two = (load_model(network, inputs=(..., torch.tensor([[a, 1.0]]))) for a in (1.0, 1.0, 2.0))
    assert (one.spec, one.digest) == (same.spec, same.digest)
    assert one.spec != two.spec
    assert one.digest != two.digest
    flipped = load_model(network, inputs={"x": ..., "metadata": torch.tensor([[1.0, 1.0]]), "flip": True})
    assert flipped.spec not in (one.spec, two.spec)


def test_what_is_fixed_does_not_follow_the_callers_tensor(images: Tensor) -> None:
    network, row = randomised(WithMetadata()), torch.ones(1, 2)
    model = load_model(network, inputs=(..., row))
    before = model.outputs(images)
    row.zero_()
    assert torch.equal(model.outputs(images), before)


def test_evaluate_with_fixed_inputs(images: Tensor) -> None:
    model = load_model(randomised(WithMetadata()), inputs=(..., torch.ones(1, 2)), input_size=SIZE, mean=HALF, std=HALF)
    scores = aha.evaluate(model, images, "grad_cam", "deletion(steps=4)")
    assert not scores.failures


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ((torch.ones(1, 2),), "has 0 places for the explained image; write ..."),
        ((..., ...), "has 2 places for the explained image"),
        ((..., torch.ones(3, 2)), r"inputs\[1\] has the shape \(3, 2\); fix one row of it"),
        (
            {"x": ..., "meta": torch.ones(1, 2)},
            "WithMetadata.forward does not take these inputs=: missing .*'metadata'",
        ),
        ((..., torch.ones(1, 2), 1), "WithMetadata.forward does not take these inputs="),
        ("metadata", "inputs= is a list or a dict of what the network is called with"),
        ((..., torch.ones(1, 5)), r"module:WithMetadata\[inputs \w+\] fails on inputs of shape"),
    ],
)
def test_what_is_refused(inputs: Any, says: str, images: Tensor) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        load_model(randomised(WithMetadata()), inputs=inputs).outputs(images)
    one_line(caught)

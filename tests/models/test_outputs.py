"""What a model returns, and the scores taken from it."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from reading import one_line, plain_outputs
from torch import Tensor

import aha
from aha.errors import ModelError
from aha.models import load_model
from aha.models.scores import SCORES, load_score
from fakes import (
    SIZE,
    LinearModel,
    Returns,
    TinyCNN,
    randomised,
)

# What a model returns


@dataclass
class Answer:
    loss: Tensor | None
    logits: Tensor


Pair = namedtuple("Pair", ["logits", "extra"])

WRAPPINGS: dict[str, Callable[[Tensor], Any]] = {
    "tuple": lambda y: (y, "extra"),
    "list": lambda y: [y],
    "tuple with a feature map": lambda y: (torch.zeros(len(y), 8, 4, 4), y),
    "named tuple": lambda y: Pair(y, y * 0),
    "named tuple, other order": lambda y: namedtuple("Swapped", ["extra", "logits"])(y * 0, y),
    "dict": lambda y: {"logits": y},
    "dict with a loss": lambda y: {"loss": torch.zeros(()), "logits": y},
    "dict with one unknown key": lambda y: OrderedDict(answer=y),
    "dict with features first": lambda y: {"features": y * 0, "pred": y},
    "object": lambda y: Answer(None, y),
    "tuple that starts with nothing": lambda y: (None, y),
    "nested": lambda y: ({"out": y},),
    "nested, with an embedding": lambda y: {"answer": {"features": y.repeat(1, 3), "head": y}},
    "dict with a head": lambda y: {"features": y.repeat(1, 3), "head": y},
    "dict with an embedding": lambda y: {"embedding": y.repeat(1, 3), "classes": y},
    "logits before other names": lambda y: {"out": y.repeat(1, 3), "logits": y},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_outputs_are_found_in_any_wrapping(wrapping: str, images: Tensor) -> None:
    module = randomised(TinyCNN())
    model = load_model(Returns(module, WRAPPINGS[wrapping]))
    assert torch.equal(model.outputs(images), plain_outputs(module, images))
    expected = aha.explain(module, images, "grad_cam").maps
    assert torch.allclose(aha.explain(model, images, "grad_cam").maps, expected, atol=1e-6)


def test_the_caller_may_name_a_field(images: Tensor) -> None:
    module = randomised(TinyCNN())
    wrapped = Returns(module, lambda y: Answer(None, y))
    assert torch.equal(load_model(wrapped, output="logits").outputs(images), plain_outputs(module, images))


@pytest.mark.parametrize(("reader", "factor"), [("b", 2), (1, 2), (lambda returned: returned["a"] * 3, 3)])
def test_the_caller_may_say_where_the_outputs_are(reader: Any, factor: int, images: Tensor) -> None:
    module = randomised(TinyCNN())
    wrapped = Returns(module, (lambda y: (y, 2 * y)) if reader == 1 else (lambda y: {"a": y, "b": 2 * y}))
    found = load_model(wrapped, output=reader).outputs(images)
    assert torch.allclose(found, factor * plain_outputs(module, images))


@pytest.mark.parametrize(
    ("wrap", "output", "says"),
    [
        (
            lambda y: (y.repeat(1, 3), y),
            None,
            r"several outputs: 0 of shape \(4, 15\), 1 of shape \(4, 5\); .*output=1\)",
        ),
        (lambda y: {"embed": y * 2, "y": y}, None, r"'embed' of shape \(4, 5\), 'y' of .*output='y'\)"),
        (lambda y: {"out": y * 2, "head": y}, None, r"'out' of shape \(4, 5\), 'head' of shape \(4, 5\)"),
        (lambda y: ([y, y * 2],), None, r"\[0\]\[0\] of shape .*output=lambda returned: returned\[0\]\[1\]"),
        (lambda y: {"pooler_output": y, "last_hidden_state": y[..., None]}, None, "without recognisable class"),
        (lambda y: "text", None, "returned str without recognisable class outputs; pass output='KEY'"),
        (lambda y: {}, None, "returned dict without recognisable class outputs"),
        (lambda y: None, None, "NoneType"),
        (lambda y: {"a": y}, "b", "the model's output has no entry 'b'"),
        (lambda y: (y,), 3, "no entry 3"),
        (lambda y: y[..., None, None], None, r"shape \(4, 5, 1, 1\), not \(batch, classes\)"),
        (lambda y: y[:1], None, "returned 1 rows for 4 images"),
        (lambda y: y.sum(), None, r"shape \(\)"),
    ],
)
def test_unusable_outputs_are_explained(wrap: Any, output: Any, says: str, images: Tensor) -> None:
    model = load_model(Returns(randomised(TinyCNN()), wrap), output=output)
    with pytest.raises(ModelError, match=says) as caught:
        model.outputs(images)
    one_line(caught)


def test_one_number_per_image_is_a_binary_classifier(images: Tensor) -> None:
    module = randomised(TinyCNN(classes=1))
    flat = load_model(Returns(module, lambda y: y[:, 0]))
    outputs = flat.outputs(images)
    assert outputs.shape == (4, 1)
    assert flat.num_classes == 2
    explanation = aha.explain(flat, images, "gradient(channels='sum')", target=[[0, 1]] * 4)
    maps = explanation.maps.unflatten(0, (4, 2))
    assert torch.allclose(maps[:, 0], -maps[:, 1])
    assert torch.allclose(explanation.scores.view(4, 2).sum(dim=1), torch.ones(4))
    predicted = aha.explain(flat, images, "gradient").targets
    assert predicted.tolist() == (outputs[:, 0] > 0).int().tolist()


# Scores


def test_scores_are_their_formulas() -> None:
    outputs = torch.randn(6, 4, dtype=torch.float64) * 3
    classes = torch.tensor([0, 1, 2, 3, 0, 2])
    picked = outputs[torch.arange(6), classes]
    softmax = outputs.exp() / outputs.exp().sum(dim=1, keepdim=True)
    expected = {
        "logit": picked,
        "softmax": softmax[torch.arange(6), classes],
        "log_softmax": softmax[torch.arange(6), classes].log(),
        "log_odds": (softmax / (1 - softmax))[torch.arange(6), classes].log(),
        "sigmoid": 1 / (1 + (-picked).exp()),
        "regression": picked,
    }
    assert set(expected) == set(SCORES)
    for name, values in expected.items():
        assert torch.allclose(SCORES[name](outputs, classes), values), name


def test_scores_of_a_single_output() -> None:
    outputs = torch.randn(6, 1, dtype=torch.float64) * 3
    ones, zeros = torch.ones(6, dtype=torch.long), torch.zeros(6, dtype=torch.long)
    z = outputs[:, 0]
    assert torch.equal(SCORES["logit"](outputs, ones), z)
    assert torch.equal(SCORES["logit"](outputs, zeros), -z)
    for name in ("softmax", "sigmoid"):
        assert torch.allclose(SCORES[name](outputs, ones), torch.sigmoid(z))
        assert torch.allclose(SCORES[name](outputs, zeros), 1 - torch.sigmoid(z))
    assert torch.allclose(SCORES["log_softmax"](outputs, zeros), torch.log(1 - torch.sigmoid(z)))
    assert torch.equal(SCORES["regression"](outputs, zeros), z)


def test_probabilities_are_explained_by_their_logit() -> None:
    for name in SCORES:
        score = SCORES[name]
        expected = "logit" if score.is_probability else name
        assert score.differentiated().name == expected


@pytest.mark.parametrize("name", list(SCORES))
def test_explained_gradient_is_that_of_the_score(name: str, images: Tensor) -> None:
    module = randomised(TinyCNN())
    leaf = images.clone().requires_grad_()
    score = SCORES[name].differentiated()
    (gradient,) = torch.autograd.grad(score(module(leaf), torch.tensor([1] * 4)).sum(), leaf)
    found = aha.explain(load_model(module, score=name), images, "gradient(channels='sum')", target=1)
    assert torch.allclose(found.maps, gradient.sum(dim=1), atol=1e-6)
    reported = SCORES[name](plain_outputs(module, images), torch.tensor([1] * 4))
    assert torch.allclose(found.scores, reported, atol=1e-6)


def test_a_multi_label_model_scores_each_class_alone(images: Tensor) -> None:
    module = randomised(TinyCNN())
    found = aha.explain(load_model(module, score="sigmoid"), images, "gradient", target="top5")
    assert torch.allclose(found.scores.view(4, 5), plain_outputs(module, images).sigmoid().sort(descending=True).values)


def test_a_regression_model_has_one_thing_to_explain(images: Tensor) -> None:
    module = randomised(TinyCNN(classes=1))
    with torch.no_grad():
        module.head.bias.fill_(100.0)  # a positive prediction is no second class
    model = load_model(module, score="regression")
    found = aha.explain(model, images, "gradient(channels='sum')")
    assert model.num_classes == 1
    assert found.targets.tolist() == [0] * 4
    assert found.labels == ["value"] * 4
    several = aha.explain(load_model(randomised(TinyCNN()), score="regression"), images, "gradient", target=2)
    assert several.labels == ["value 2"] * 4
    assert torch.allclose(found.scores, plain_outputs(module, images)[:, 0])
    with pytest.raises(aha.AhaError, match="class 1 does not exist"):
        aha.explain(model, images, "gradient", target=1)


def test_a_callable_score(images: Tensor) -> None:
    def margin(outputs: Tensor, classes: Tensor) -> Tensor:
        best = outputs.gather(1, classes[:, None])[:, 0]
        return best - outputs.mean(dim=1)

    module = LinearModel()
    model = load_model(module, score=margin)
    found = aha.explain(model, images, "gradient(channels='sum')", target=2)
    weights = module.linear.weight.detach()
    expected = (weights[2] - weights.mean(dim=0)).view(3, SIZE, SIZE).sum(dim=0)
    assert torch.allclose(found.maps, expected.expand(4, -1, -1), atol=1e-6)
    assert found.settings["score"] == "margin"
    assert load_score(SCORES["logit"]) is SCORES["logit"]

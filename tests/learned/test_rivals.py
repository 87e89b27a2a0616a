"""A class against its rivals: the direction in which its log-odds rise."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from aha.learned.explainer import Explainer, against_rivals
from aha.learned.refinement import Refining
from aha.learned.settings import Design
from aha.models import load_model
from fakes import SIZE, TinyCNN, randomised


def test_it_is_the_gradient_of_the_log_odds() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(7, 5, generator=generator)
    features = torch.randn(4, 5, generator=generator, requires_grad=True)
    classes = torch.tensor([0, 3, 6, 3])
    outputs = features @ weights.T
    chance = outputs.softmax(dim=1).gather(1, classes[:, None])[:, 0]
    (slopes,) = torch.autograd.grad((chance / (1 - chance)).log().sum(), features)
    torch.testing.assert_close(against_rivals(weights, classes, outputs.detach()), slopes)


def test_a_certain_prediction_still_has_rivals() -> None:
    outputs = torch.tensor([[1000.0, 0.0, 0.0]])
    found = against_rivals(torch.eye(3), torch.tensor([0]), outputs)
    torch.testing.assert_close(found, torch.tensor([[1.0, -0.5, -0.5]]))


@pytest.mark.parametrize(("score", "rivals"), [("softmax", True), ("sigmoid", False), ("logit", False)])
def test_only_classes_that_share_probability_are_rivals(score: str, rivals: bool) -> None:
    target = load_model(randomised(TinyCNN()), input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3, score=score)
    assert Explainer.for_target(target, Design(rivals=True)).config.rivals is rivals
    assert not Explainer.for_target(target).config.rivals


def test_rivals_change_where_the_evidence_is(images: Tensor, tmp_path: Path) -> None:
    target = load_model(randomised(TinyCNN()), input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3)
    classes = torch.zeros(len(images), dtype=torch.long)
    alone, against = (Explainer.for_target(target, Design(rivals=rivals)) for rivals in (False, True))
    against.start_from(alone)
    assert alone.digest != against.digest  # results of the one are not those of the other
    maps = against.maps(target, images, classes)
    assert not torch.allclose(maps, alone.maps(target, images, classes), atol=1e-3)
    kept = Explainer.from_pretrained(against.save_pretrained(tmp_path / "e"))
    torch.testing.assert_close(kept.maps(target, images, classes), maps)
    refined = Refining.start(against, target, images, classes).after(0)
    torch.testing.assert_close(refined, maps, atol=1e-5, rtol=1e-4)

"""Predictions of how good a map is."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import aha
from aha.learned import quality
from aha.learned.quality import FEATURES, Quality, QualityHead, predicted, quality_features
from aha.methods import aha as aha_method
from aha.models import load_model
from fakes import TinyCNN, randomised

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "fit_quality.py"
if not BENCHMARK.is_file():
    pytest.skip("the benchmarks are part of the source tree, not of the package", allow_module_level=True)
fitted: Callable[..., QualityHead] = runpy.run_path(str(BENCHMARK))["fitted"]
STATED = {"input_size": 64, "mean": [0.5] * 3, "std": [0.5] * 3}


def test_features_follow_the_order_alone() -> None:
    model = load_model(randomised(TinyCNN(), seed=1), **STATED)
    maps, outputs, classes = torch.rand(3, 64, 64), torch.randn(3, model.num_classes), torch.tensor([0, 1, 2])
    read = quality_features(model, outputs, classes, maps)
    assert read.shape == (3, FEATURES)
    assert torch.equal(read, quality_features(model, outputs, classes, 5 * maps.exp() - 2))


def test_shape_of_a_square() -> None:
    model = load_model(randomised(TinyCNN(), seed=1), **STATED)
    maps = torch.zeros(2, 100, 100)
    maps[0, :45, :45] = torch.rand(45, 45) + 1  # in a corner: 20 % of the pixels
    maps[1] = torch.rand(100, 100)  # everywhere
    read = quality_features(model, torch.zeros(2, model.num_classes), torch.tensor([0, 0]), maps)
    corner, everywhere = read[:, -3:]
    assert corner[0] < everywhere[0] and corner[1] > 0.3 > everywhere[1] and corner[2] < 0.5 < everywhere[2]


def test_a_fit_finds_what_is_there() -> None:
    generator = torch.Generator().manual_seed(0)
    read = torch.randn(600, FEATURES, generator=generator)
    noise = 0.05 * torch.randn(600, generator=generator)
    ins_del, gain = 0.3 + 0.1 * read[:, 2] - 0.05 * read[:, 4] + noise, 0.05 - 0.02 * read[:, 2] + 0.01 * read[:, 4]
    head = fitted(read[:400], ins_del[:400], gain[:400])
    mean, scale, more = head(read[400:]).unbind(dim=1)
    assert (mean - ins_del[400:]).abs().mean() < 0.07
    assert scale.mean() == pytest.approx(0.05, abs=0.01)
    assert torch.corrcoef(torch.stack([more, gain[400:]]))[0, 1] > 0.9
    assert (head(read)[:, 2] > head.least_gain(0.25)).float().mean() == pytest.approx(0.25, abs=0.05)
    assert head.least_gain(1.0) == -torch.inf


def test_explanations_carry_it(monkeypatch: pytest.MonkeyPatch) -> None:
    head = fitted(torch.rand(50, FEATURES), torch.rand(50), torch.rand(50))
    monkeypatch.setattr(quality, "shipped_head", lambda: head)
    model = load_model(randomised(TinyCNN(), seed=1), **STATED)
    images = torch.rand(3, 3, 64, 64)
    explanation = aha.explain(model, images, "aha", target=0)
    assert len(explanation.quality) == 3 and explanation[1:].quality == explanation.quality[1:]
    assert all(one.error > 0 and one.sentence.startswith("predicted Ins-Del") for one in explanation.quality)
    assert not aha.explain(model, images, "gradient", target=0).quality
    logits = load_model(randomised(TinyCNN(), seed=1), score="logit", **STATED)
    assert predicted(logits, torch.rand(1, 5), torch.tensor([0]), torch.rand(1, 64, 64)) == []


def test_a_budget_goes_to_those_that_gain_most(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    read = torch.rand(80, FEATURES, generator=generator)
    head = fitted(read, read[:, 2], 1 - read[:, 2])
    for module in (quality, aha_method):
        monkeypatch.setattr(module, "shipped_head", lambda: head)
    model = load_model(randomised(TinyCNN(), seed=1), **STATED)
    images, classes = torch.rand(6, 3, 64, 64, generator=generator), torch.zeros(6, dtype=torch.long)
    plain, refined = (aha.load_method(text)(model, images, classes) for text in ("aha", "aha(looks=25)"))
    foreseen = predicted(model, model.outputs(images), classes, plain)
    gains = torch.tensor([one.gain for one in foreseen]).sort().values
    widest = int(gains.diff().argmax())  # rounding in another batch must not carry a map over the limit
    head.gains = gains[widest : widest + 2].mean().expand(101)
    found = aha.load_method("aha(budget=50)")(model, images, classes)
    wanted = torch.tensor([one.gain > head.least_gain(0.5) for one in foreseen])
    assert 0 < wanted.sum() < 6
    for row, is_refined in enumerate(wanted.tolist()):
        alone = aha.load_method("aha(budget=50)")(model, images[row : row + 1], classes[:1])
        for one in (found[row], alone[0]):  # whichever images are with it
            gaps = [(one - maps[row]).abs().mean() for maps in (plain, refined)]
            assert (gaps[1] < gaps[0]) == is_refined


def test_a_poor_map_is_said_to_be_poor() -> None:
    assert Quality(0.1, 0.1, 0.08).sentence.endswith("likely poor: refine it")
    assert "poor" not in Quality(0.5, 0.1, 0.08).sentence

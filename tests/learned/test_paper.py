"""The preset `paper` is what the paper prints, part by part."""

from __future__ import annotations

import pytest
import torch

from aha.errors import SpecError
from aha.learned.decoder import DecoderConfig, Given
from aha.learned.dpt import DPTDecoder
from aha.learned.explainer import Explainer
from aha.learned.refinement import RefinementConfig
from aha.learned.regions import random_regions
from aha.learned.settings import PRESETS, Design, TrainConfig, load_settings
from aha.learned.training.loop import learning_rate
from aha.models import load_model
from fakes import tiny_vit

STATED = {"input_size": 32, "mean": [0.5] * 3, "std": [0.5] * 3}


def test_the_printed_numbers() -> None:
    design, training = PRESETS["paper"].design, PRESETS["paper"].training
    assert (design.encoder, design.conditioning, design.evidence, design.decoder) == (
        "dinov3-l",
        "embedding",
        "none",
        "dpt",
    )
    assert (design.width, design.class_dim, design.cohesion) == (256, 1024, 0)
    assert (training.perturbations, training.learning_rate, training.weight_decay, training.clip) == (16, 3e-4, 1e-3, 1)
    assert (training.grids, training.grid_spread, training.step_places) == ((7, 28), "even", "even")
    objective = training.objective
    assert (objective.deletion, objective.insertion, objective.peaks, objective.iterations) == (1, 1, 2.5e-3, 30)
    assert (objective.order, objective.log) == ("full", 0)
    assert (training.refine_rate, training.refine_steps) == (1e-4, 16)


def test_one_cycle_is_that_of_pytorch() -> None:
    config = TrainConfig(steps=200, learning_rate=3e-4, warm_up=0.3, schedule="one_cycle")
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-4, total_steps=200, pct_start=0.3)
    for step in range(200):
        assert learning_rate(config, step) == pytest.approx(theirs.get_last_lr()[0], abs=0.01 * 3e-4), step
        optimiser.step()
        theirs.step()


def test_every_number_of_cells_comes_as_often() -> None:
    generator, like = torch.Generator().manual_seed(0), torch.zeros(1)
    sides = torch.tensor(
        [random_regions((224, 224), generator, like, (7, 28), "even").count ** 0.5 for _ in range(2000)]
    )
    assert sides.min() >= 7 and sides.max() <= 29
    assert 16.5 < sides.mean() < 19.5  # 17.5, and up to a cell more for the offset; log-uniform would have 15.2


def test_the_decoder() -> None:
    config = DecoderConfig((12, 12, 12, 12), 5, width=16, kind="dpt")
    decoder = DPTDecoder(config).eval()
    features = [torch.randn(2, 12, 14, 14) for _ in range(4)]
    given = Given(features, torch.randn(2, 5), [], torch.zeros(2, 14, 14), torch.zeros(2, 3, 224, 224))
    maps = decoder(given, (224, 224))
    assert maps.shape == (2, 224, 224)
    other = decoder(given._replace(vectors=torch.randn(2, 5)), (224, 224))
    assert not torch.allclose(maps, other), "the class matters"
    assert sum(isinstance(part, torch.nn.BatchNorm2d) for part in decoder.modules()) == 2
    with pytest.raises(SpecError, match="decoder=dpt reads features and class vectors alone; add evidence=none"):
        Explainer.for_target(load_model(tiny_vit(), **STATED), Design(decoder="dpt", width=16))


def test_an_explainer_is_refined_as_its_training_says() -> None:
    target = load_model(tiny_vit(), **STATED)
    explainer = Explainer.for_target(target, Design(width=16, decoder="dpt", evidence="none"))
    assert RefinementConfig.of(explainer) == RefinementConfig()
    settings = load_settings("paper")
    explainer.config = explainer.config.__class__(**{**vars(explainer.config), "training": settings.record()})
    found = RefinementConfig.of(explainer)
    assert (found.learning_rate, found.steps, found.grid) == (1e-4, 16, 14)
    assert (found.objective.peaks, found.objective.iterations, found.objective.noise) == (2.5e-3, 30, 0)

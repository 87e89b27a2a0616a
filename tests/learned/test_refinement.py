"""Refinement: it improves, repeats itself, treats a batch as its images, and leaves the explainer as it was."""

from __future__ import annotations

import pytest
import torch
from colour_world import ColourNet, square_image
from torch import Tensor

from aha.learned.explainer import Explainer
from aha.learned.refinement import RefinementConfig, Refining
from aha.learned.settings import Design
from aha.models import TargetModel, load_model
from fakes import changes, snapshot, surroundings

CONFIG = RefinementConfig(grid=8, steps=6, learning_rate=3e-3)


@pytest.fixture
def explainer(target: TargetModel) -> Explainer:
    explainer = Explainer.for_target(target, Design(stride=4, width=16), seed=1)
    with torch.no_grad():
        # A poor start, so that there is something to refine.
        generator = torch.Generator().manual_seed(2)
        for head in explainer.decoder.heads:
            head.draw.weight.copy_(0.1 * torch.randn(head.draw.weight.shape, generator=generator))
        explainer.decoder.evidence_gain.fill_(0.2)
    return explainer.eval()


@pytest.fixture
def case(target: TargetModel) -> tuple[Tensor, Tensor]:
    inputs = target.to_inputs(torch.stack([square_image(c, 30 + c)[0] for c in range(5)]))
    return inputs, torch.arange(5)


def refined(explainer: Explainer, target: TargetModel, case: tuple[Tensor, Tensor], rounds: int) -> Tensor:
    return Refining.start(explainer, target, *case, CONFIG).after(rounds)


def test_the_soft_loss_falls(explainer: Explainer, target: TargetModel, case: tuple[Tensor, Tensor]) -> None:
    losses = torch.stack([loss for _, loss in Refining.start(explainer, target, *case, CONFIG).course(5)])
    assert losses.shape == (6, 5)
    assert float(losses[-1].mean()) < float(losses[0].mean()) - 0.05
    assert int((losses[-1] < losses[0]).sum()) >= 4


def test_a_batch_is_its_images_one_by_one(
    explainer: Explainer, target: TargetModel, case: tuple[Tensor, Tensor]
) -> None:
    together = refined(explainer, target, case, 3)
    each = [(case[0][i : i + 1], case[1][i : i + 1]) for i in range(5)]
    alone = torch.cat([refined(explainer, target, one, 3) for one in each])
    moved = (together - explainer.maps(target, *case)).abs().amax(dim=(1, 2))
    assert bool(((together - alone).abs().amax(dim=(1, 2)) < 0.01 * moved).all())


def test_it_repeats_itself_and_leaves_no_trace(
    explainer: Explainer, target: TargetModel, case: tuple[Tensor, Tensor]
) -> None:
    before = (snapshot(target.module), snapshot(explainer), surroundings(), case[0].clone())
    first = refined(explainer, target, case, 2)
    torch.manual_seed(99)
    again = surroundings()
    assert torch.equal(refined(explainer, target, case, 2), first)
    assert not changes(again, surroundings())
    assert not changes(before[0], snapshot(target.module)) and not changes(before[1], snapshot(explainer))
    assert torch.equal(before[3], case[0])
    with torch.inference_mode():
        assert torch.equal(refined(explainer, target, case, 2), first)


def test_no_steps_give_the_map_of_one_pass(
    explainer: Explainer, target: TargetModel, case: tuple[Tensor, Tensor]
) -> None:
    assert torch.allclose(refined(explainer, target, case, 0), explainer.maps(target, *case), atol=1e-5)


def test_steps_cost_what_they_say(explainer: Explainer, target: TargetModel, case: tuple[Tensor, Tensor]) -> None:
    target.passes.clear()
    refined(explainer, target, case, 3)
    assert target.passes["forward"] == 5 * (1 + 3 * CONFIG.cost)  # features and evidence once, then perturbed images
    assert target.passes["backward"] == 5 * (1 + 3 * CONFIG.cost)


def test_another_model_pulls_the_maps_towards_itself(explainer: Explainer, target: TargetModel) -> None:
    """A model for which class 0 is blue instead of red: its refined maps must move onto the blue square."""
    other = ColourNet().eval()
    with torch.no_grad():
        other.head.weight.copy_(other.head.weight[torch.tensor([2, 1, 0, 3, 4, 5, 6, 7])])
    swapped = load_model(other, input_size=32, mean=[0.5] * 3, std=[0.5] * 3)
    pixels = torch.full((1, 3, 32, 32), 0.5)
    pixels[0, :, 4:12, 4:12] = torch.tensor([1.0, 0, 0])[:, None, None]  # red
    pixels[0, :, 20:28, 20:28] = torch.tensor([0, 0, 1.0])[:, None, None]  # blue
    inputs, zero = target.to_inputs(pixels), torch.tensor([0])

    def lead(maps: Tensor) -> float:
        return float((maps[0, 20:28, 20:28].mean() - maps[0, 4:12, 4:12].mean()) / maps.std())

    start = explainer.maps(target, inputs, zero)
    refining = Refining.start(explainer, target, inputs, zero, CONFIG, response_model=swapped)
    assert lead(refining.after(8)) > lead(start) + 0.5


def test_auto_stops_when_it_is_done(explainer: Explainer, target: TargetModel, case: tuple[Tensor, Tensor]) -> None:
    maps, taken = Refining.start(explainer, target, *case, CONFIG).until_settled(6, improvement=0.02)
    assert maps.shape == (5, 32, 32) and int(taken.min()) >= 1 and int(taken.max()) <= 6
    assert len(taken.unique()) > 1, "these images differ: some are done earlier"
    _, never = Refining.start(explainer, target, *case, CONFIG).until_settled(4, improvement=10.0)
    assert never.tolist() == [1] * 5


def test_images_that_go_on_are_not_disturbed_by_those_that_stop(
    explainer: Explainer, target: TargetModel, case: tuple[Tensor, Tensor]
) -> None:
    whole = Refining.start(explainer, target, *case, CONFIG)
    part = Refining.start(explainer, target, *case, CONFIG)
    for step in range(3):
        whole.step()
        part.step()
        if step == 0:
            part = part.subset(torch.tensor([True, False, True, False, True]))
    moved = (whole.maps() - explainer.maps(target, *case))[::2].abs().amax(dim=(1, 2))
    assert bool(((whole.maps()[::2] - part.maps()).abs().amax(dim=(1, 2)) < 0.01 * moved).all())

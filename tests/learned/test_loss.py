"""Regions and the objective: adjoints, the hard limit of the curve, exact gradients, one image overfitted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import aha
from aha.bench.recommendation.budget import Account, BudgetSpent, metered
from aha.learned.loss import ObjectiveConfig, isolated_peaks, objective, perturbed_scores, soft_masks
from aha.learned.regions import grid_regions, random_regions, stratified_counts
from aha.metrics import Case, Sample, load_metric
from aha.models import TargetModel, load_model
from aha.perturb.perturbation import blend
from fakes import tiny_vit

CALM = ObjectiveConfig(noise=0.0)


@pytest.fixture
def model() -> TargetModel:
    return load_model(tiny_vit(), input_size=32, mean=[0.5] * 3, std=[0.5] * 3)


@pytest.mark.parametrize(
    ("size", "cells", "offset"), [((32, 32), 4, (0.0, 0.0)), ((30, 45), 7, (0.3, 0.8)), ((5, 5), 5, (0.0, 0.5))]
)
def test_pooling_and_spreading_are_adjoint(size, cells, offset) -> None:
    like = torch.zeros(1, dtype=torch.float64)
    regions = grid_regions(size, cells, offset, like)
    maps, values = torch.rand(2, *size, dtype=torch.float64), torch.rand(2, regions.count, dtype=torch.float64)
    left = (regions.pool(maps) * values).sum()
    right = (maps * regions.spread(values / regions.sizes)).sum()
    assert float(left) == pytest.approx(float(right), rel=1e-12)
    assert int(regions.sizes.sum()) == size[0] * size[1] and int(regions.sizes.min()) >= 1
    assert torch.allclose(regions.pool(regions.spread(values)), values)  # a map that is constant on cells is kept


def test_random_grids_stay_in_their_range() -> None:
    like = torch.zeros(1)
    counts = {random_regions((224, 224), torch.Generator().manual_seed(s), like).count for s in range(60)}
    assert min(counts) >= 7 * 7 and max(counts) <= 113 * 113 and len(counts) > 15
    assert 20 < sum(count < 28 * 28 for count in counts_of_many()) < 40  # as many below the geometric middle as above


def test_no_cell_is_empty_however_small_the_picture() -> None:
    for cells in (7, 30, 56, 112):
        regions = grid_regions((32, 40), cells, (0.3, 0.9), torch.zeros(1))
        assert int(regions.sizes.min()) >= 1 and int(regions.sizes.sum()) == 32 * 40


def counts_of_many() -> list[int]:
    like = torch.zeros(1)
    return [random_regions((224, 224), torch.Generator().manual_seed(s), like).count for s in range(60)]


def test_cold_objective_is_the_hard_metrics_curve(model: TargetModel) -> None:
    """Soft masks at temperature zero on a grid are the hard masks of the same cells: the scores must be equal."""
    inputs = torch.rand(1, 3, 32, 32) * 2 - 1
    target = int(model.outputs(inputs).argmax())
    cells = torch.linspace(-1, 1, 16)[torch.randperm(16)].view(4, 4)
    values = cells.repeat_interleave(8, 0).repeat_interleave(8, 1)
    regions = grid_regions((32, 32), 4, (0.0, 0.0), values)
    counts = torch.arange(1, 16)
    cold = ObjectiveConfig(noise=0.0, iterations=300)
    masks = soft_masks(values[None], regions, counts, 2e-5, cold)
    soft = perturbed_scores(
        model, model.to_pixels(inputs), torch.zeros_like(inputs), torch.tensor([target]), masks, regions
    )[0]
    case = Case(Sample(model, "x", inputs[0]), target, values)
    for row, name in ((0, "deletion"), (1, "insertion")):
        chosen = load_metric(f"{name}(steps=16, references=(black,), by_patch=True)")
        curve = chosen.curve(case, "delete" if row == 0 else "insert", chosen.references[0])
        assert torch.allclose(soft[row], case.scores(curve.outputs)[1:-1], atol=2e-3)


def test_chunked_gradient_is_the_exact_one(model: TargetModel) -> None:
    pixels, blank, classes = torch.rand(2, 3, 32, 32), torch.rand(2, 3, 32, 32), torch.tensor([1, 3])
    regions = grid_regions((32, 32), 5, (0.4, 0.2), pixels)
    masks = torch.rand(2, 3, regions.count, requires_grad=True)
    weights = torch.rand(2, 2, 3)
    model.chunks.size = 5  # 12 rows in uneven chunks
    (ours,) = torch.autograd.grad(
        (perturbed_scores(model, pixels, blank, classes, masks, regions) * weights).sum(), masks
    )

    def direct(rows: Tensor, image: int) -> Tensor:
        shown = blend(pixels[image], blank[image], regions.spread(rows))
        return model.module(model.to_inputs(shown)).softmax(1)[:, classes[image]]

    total = sum(
        (direct(1 - masks[b], b) * weights[b, 0]).sum() + (direct(masks[b], b) * weights[b, 1]).sum() for b in range(2)
    )
    (theirs,) = torch.autograd.grad(total, masks)
    assert torch.allclose(ours, theirs, atol=1e-5)


def test_backward_passes_are_counted_before_they_are_made(model: TargetModel, tmp_path: Path) -> None:
    pixels, classes, account = torch.rand(2, 3, 32, 32), torch.tensor([1, 3]), Account(tmp_path)
    regions = grid_regions((32, 32), 5, (0.4, 0.2), pixels)
    masks = torch.rand(2, 3, regions.count, requires_grad=True)
    made: list[int] = []

    def watch(_module: object, _inputs: object, outputs: Tensor) -> None:
        outputs.register_hook(lambda slopes: made.append(len(slopes)))

    model.module.register_forward_hook(watch)
    model.chunks.size = 5  # 12 rows in uneven chunks
    with metered(account, passes=17, seconds=1e9), pytest.raises(BudgetSpent):
        perturbed_scores(model, pixels, torch.zeros_like(pixels), classes, masks, regions)
    assert made == [5], "forward, backward and forward; the next 5 would be the 20th"
    assert model.passes == {"forward": 10, "backward": 5} and account.passes == 15
    perturbed_scores(model, pixels, torch.zeros_like(pixels), classes, masks, regions)
    assert made == [5, 5, 5, 2] and model.passes == {"forward": 10 + 12, "backward": 5 + 12}


def test_objective_parts_and_weights(model: TargetModel) -> None:
    inputs, classes = torch.rand(2, 3, 32, 32), torch.tensor([0, 1])
    maps = torch.rand(2, 32, 32, requires_grad=True)
    regions = grid_regions((32, 32), 4, (0.0, 0.0), maps)
    config = ObjectiveConfig(deletion=2.0, insertion=3.0, log=0.0, peaks=0.5, noise=0.0)
    counts = stratified_counts(16, 4)
    parts = objective(model, inputs, classes, torch.zeros_like(inputs), maps, regions, counts, 0.05, config)
    assert set(parts) == {"loss", "deletion", "insertion", "peaks"}
    expected = 2 * parts["deletion"] - 3 * parts["insertion"] + 0.5 * parts["peaks"]
    assert torch.allclose(parts["loss"], expected)
    parts["loss"].sum().backward()
    assert bool((maps.grad.abs().amax(dim=(1, 2)) > 0).all())


def test_the_logarithm_is_added_to_scores_that_are_probabilities(model: TargetModel) -> None:
    pixels, classes, maps = torch.rand(2, 3, 32, 32), torch.tensor([0, 1]), torch.rand(2, 32, 32)
    regions = grid_regions((32, 32), 4, (0.0, 0.0), maps)
    counts = stratified_counts(16, 4)
    masks = soft_masks(maps, regions, counts, 0.05, CALM)
    given = (model, pixels, classes, torch.zeros_like(pixels), maps, regions, counts, 0.05)
    plain, with_log = (objective(*given, ObjectiveConfig(log=log)) for log in (0.0, 0.1))
    scores = perturbed_scores(model, pixels, torch.zeros_like(pixels), classes, masks, regions)  # (B, 2, S)
    deletion, insertion = (scores + 1e-3).log().mean(dim=-1).unbind(dim=1)
    torch.testing.assert_close(with_log["loss"] - plain["loss"], 0.1 * (deletion - insertion))


def test_peaks_are_measured_on_the_standardised_map() -> None:
    smooth = torch.linspace(0, 1, 32).expand(32, 32)[None]
    spiky = torch.zeros(1, 32, 32)
    spiky[0, 10, 10] = 1.0
    assert float(isolated_peaks(spiky, 7)) > 5 * float(isolated_peaks(smooth, 7))
    assert float(isolated_peaks(spiky, 7)) == pytest.approx(float(isolated_peaks(0.01 * spiky + 3, 7)), rel=1e-4)
    assert bool(isolated_peaks(torch.zeros(1, 8, 8), 3).isfinite().all())


def test_literal_noise_swamps_the_order_and_scaled_noise_does_not() -> None:
    maps = torch.rand(1, 32, 32)
    regions, counts = grid_regions((32, 32), 8, (0.0, 0.0), maps), stratified_counts(64, 8)
    clean = soft_masks(maps, regions, counts, 0.03, CALM)

    def likeness(config: ObjectiveConfig) -> float:
        noisy = soft_masks(maps, regions, counts, 0.03, config, [torch.Generator().manual_seed(0)])
        pair = torch.stack([noisy.mean(dim=1).flatten(), clean.mean(dim=1).flatten()])
        return float(torch.corrcoef(pair)[0, 1])

    assert likeness(ObjectiveConfig()) > 0.9 > 0.7 > likeness(ObjectiveConfig(literal_noise=True))


def test_one_overfitted_image_beats_every_other_method(model: TargetModel) -> None:
    """The objective means what it says: a map optimised for one image scores best on it, by the hard metric."""
    inputs = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(4)) * 2 - 1
    target = model.outputs(inputs).argmax(dim=1)
    values = torch.zeros(1, 32, 32, requires_grad=True)
    optimiser = torch.optim.Adam([values], lr=0.1)
    regions, counts = grid_regions((32, 32), 8, (0.0, 0.0), values), stratified_counts(64, 16)
    config = ObjectiveConfig(noise=0.0, peaks=0.0)
    with torch.no_grad():
        values += 0.01 * torch.rand(1, 32, 32, generator=torch.Generator().manual_seed(0))
    for step in range(60):
        heat = 0.1 * 0.1 ** (step / 59)
        parts = objective(model, inputs, target, torch.zeros_like(inputs), values, regions, counts, heat, config)
        optimiser.zero_grad()
        parts["loss"].sum().backward()
        optimiser.step()
    found = regions.spread(regions.pool(values.detach()))
    metric = "ins_del(steps=64, references=(black,), by_patch=True)"
    ours = aha.evaluate(model, inputs, found, metric).rows[0].value
    others = aha.evaluate(
        model, inputs, ["gradient", "grad_cam", "rollout", "legrad", "center_map", "random_map"], metric
    )
    assert ours > max(row.value for row in others.rows)

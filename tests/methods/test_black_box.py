"""Black-box methods against captum, scikit-learn, shap, exact Shapley values and definitions written as slow loops."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import comb, factorial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from captum.attr import Occlusion
from sklearn.linear_model import LinearRegression, Ridge
from torch import Tensor, nn

import aha
from aha.errors import CapabilityError
from aha.methods import load_method
from aha.methods.perturbation.kernel_shap import all_coalitions, drawn_coalitions, shapley_regression
from aha.methods.perturbation.lime import nearness, ridge
from aha.methods.perturbation.rise import enlarged
from aha.methods.perturbation.simple_insertion import neighbourhoods
from aha.models import load_model
from fakes import CLASSES, SIZE, LinearModel, TinyCNN, randomised, tiny_vit

CHOSEN = torch.tensor([0, 1, 2, 4])


def agrees(ours: Tensor, theirs: Tensor, tolerance: float = 1e-4) -> None:
    assert ours.shape == theirs.shape
    worst = float((ours.double() - theirs.detach().double()).abs().max() / theirs.detach().abs().max())
    assert worst < tolerance, f"off by {worst:.2g} of the largest value"


def native(module: nn.Module, images: Tensor, method: str) -> Tensor:
    return load_method(method)(load_model(module), images, CHOSEN).detach()


@pytest.fixture(params=["cnn", "vit"])
def module(request: pytest.FixtureRequest) -> nn.Module:
    return (randomised(TinyCNN()) if request.param == "cnn" else tiny_vit()).double()


@pytest.fixture
def images(images: Tensor) -> Tensor:
    return images.double()


def probability(module: nn.Module, image: Tensor, chosen: int) -> float:
    with torch.no_grad():
        return float(module(image[None]).softmax(dim=1)[0, chosen])


# Occlusion: captum adds up in single precision


@pytest.mark.parametrize(("window", "stride"), [(15, 8), (8, 8), (5, 3), (32, 7), (10, 10)])
def test_occlusion_equals_captum(module: nn.Module, images: Tensor, window: int, stride: int) -> None:
    theirs = Occlusion(lambda x: module(x).softmax(dim=1)).attribute(
        images, (3, window, window), strides=(3, stride, stride), target=CHOSEN, perturbations_per_eval=16
    )
    agrees(native(module, images, f"occlusion(window={window}, stride={stride})"), theirs[:, 0], 1e-6)


def test_occlusion_of_logits_in_a_picture_that_is_not_square(images: Tensor) -> None:
    module = randomised(TinyCNN()).double()
    wide = F.interpolate(images, size=(24, 40))
    theirs = Occlusion(module).attribute(wide, (3, 9, 9), strides=(3, 4, 4), target=CHOSEN)
    agrees(native(module, wide, "occlusion(window=9, stride=4, score='logit')"), theirs[:, 0], 1e-6)


def test_occlusion_of_a_linear_model_is_known(images: Tensor) -> None:
    module = LinearModel().double()
    share = (module.linear.weight[CHOSEN].view(4, 3, SIZE, SIZE) * images).sum(dim=1).detach()
    agrees(native(module, images, "occlusion(window=1, stride=1, score='logit')"), share, 1e-9)


# RISE


def test_rise_is_its_definition(module: nn.Module, images: Tensor) -> None:
    generator = torch.Generator().manual_seed(5)
    grids = (torch.rand(25, 7, 7, generator=generator) < 0.4).double()
    shifts = torch.rand(25, 2, generator=generator)
    expected = torch.zeros(4, SIZE, SIZE, dtype=torch.float64)
    for grid, (dy, dx) in zip(grids, shifts.tolist(), strict=True):
        cell = 5  # 32 pixels over 7 cells, rounded up
        large = F.interpolate(grid[None, None], size=(8 * cell, 8 * cell), mode="bilinear")[0, 0]
        top, left = int(dy * cell), int(dx * cell)
        mask = large[top : top + SIZE, left : left + SIZE]
        for row, chosen in enumerate(CHOSEN.tolist()):
            expected[row] += probability(module, images[row] * mask, chosen) * mask / (25 * 0.4)
    agrees(native(module, images, "rise(n=25, p=0.4, seed=5, border='clamp')"), expected, 1e-6)


@pytest.mark.parametrize("cells", [1, 2, 7])
def test_rise_masks_are_those_of_the_published_code(cells: int) -> None:
    """There scikit-image enlarges the grids, with mirrored borders."""
    from skimage.transform import resize

    grid = (torch.rand(cells, cells, generator=torch.Generator().manual_seed(1)) < 0.5).double()
    grid[0, 0] = 1
    pixels = (cells + 1) * -(-30 // cells)
    expected = resize(grid.numpy(), (pixels, pixels), order=1, mode="reflect", anti_aliasing=False)
    found = enlarged(grid[None], torch.zeros(1, 2), (30, 30))
    agrees(found[0], torch.from_numpy(expected)[:30, :30], 1e-9)
    clamped = F.interpolate(grid[None, None], size=(pixels, pixels), mode="bilinear")[0, :, :30, :30]
    agrees(enlarged(grid[None], torch.zeros(1, 2), (30, 30), "clamp"), clamped, 1e-9)


def test_rise_masks_are_what_the_paper_says() -> None:
    """Values in [0, 1] with mean p; a shift of one cell and no more; cells enlarged, not drawn per pixel."""
    generator = torch.Generator().manual_seed(0)
    grids = (torch.rand(400, 7, 7, generator=generator) < 0.3).float()
    masks = enlarged(grids, torch.rand(400, 2, generator=generator), (224, 210))
    assert masks.shape == (400, 224, 210)
    assert 0 <= float(masks.min()) < float(masks.max()) <= 1
    assert float(masks.mean()) == pytest.approx(0.3, abs=0.01)
    assert float(masks.diff(dim=1).abs().max()) <= 1.2 / 32
    still = enlarged(grids[:1], torch.zeros(1, 2), (224, 224))
    moved = enlarged(grids[:1], torch.tensor([[0.5, 0.25]]), (224, 224))
    assert torch.equal(moved[0, :-16, :-8], still[0, 16:, 8:])


def test_rise_finds_the_only_place_that_counts(images: Tensor) -> None:
    class Corner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            bright = x[:, 0, 2:6, 20:24].mean(dim=(1, 2))
            return torch.stack([bright, -bright], dim=1)

    found = load_method("rise(n=2000, seed=0)")(load_model(Corner()), torch.ones(1, 3, 32, 32), torch.tensor([0]))
    place = int(found[0].argmax())
    assert abs(place // 32 - 4) <= 3
    assert abs(place % 32 - 22) <= 3


# LIME


def presences(n: int, count: int, seed: int) -> Tensor:
    present = torch.rand(n, count, generator=torch.Generator().manual_seed(seed)) < 0.5
    present[0] = True
    return present


def cell_masks(present: Tensor, grid: int) -> Tensor:
    """Rows of presence (n, grid^2) as pixels, by repetition of cells of equal size."""
    side = SIZE // grid
    cells = present.view(-1, grid, grid)
    return cells.repeat_interleave(side, dim=1).repeat_interleave(side, dim=2)


def coalition_scores(module: nn.Module, image: Tensor, chosen: int, present: Tensor, grid: int) -> np.ndarray:
    masks = cell_masks(present, grid)
    return np.array([probability(module, image * mask, chosen) for mask in masks])


def test_lime_equals_scikit_learn(module: nn.Module, images: Tensor) -> None:
    present = presences(60, 16, seed=3)
    z = present.double().numpy()
    distances = 1 - z.sum(axis=1) / np.sqrt(np.maximum(z.sum(axis=1), 1e-300) * 16)
    weights = np.sqrt(np.exp(-(distances**2) / 0.25**2))
    expected = []
    for image, chosen in zip(images, CHOSEN.tolist(), strict=True):
        scores = coalition_scores(module, image, chosen, present, 4)
        expected.append(torch.from_numpy(Ridge(alpha=1.0).fit(z, scores, sample_weight=weights).coef_).view(4, 4))
    agrees(native(module, images, "lime(n=60, parts=patches(grid=4), seed=3)"), torch.stack(expected), 1e-8)


def test_the_ridge_solution_is_the_stationary_point() -> None:
    """The gradient of the penalised squares, vanishes there; without a penalty the fit is exact."""
    generator = torch.Generator().manual_seed(0)
    x, weights = torch.rand(30, 4, generator=generator).double(), torch.rand(30, generator=generator).double()
    y = torch.rand(30, 2, generator=generator).double()
    found = ridge(x, y, weights, 0.7).requires_grad_()
    shares = weights / weights.sum()
    intercept = shares @ (y - x @ found)
    loss = (weights[:, None] * (y - intercept - x @ found) ** 2).sum() + 0.7 * (found**2).sum()
    (slope,) = torch.autograd.grad(loss, found)
    assert slope.abs().max() < 1e-10
    truth = torch.tensor([[1.0], [-2.0], [0.5], [0.0]]).double()
    agrees(ridge(x, x @ truth + 3, weights, 0.0), truth, 1e-9)


def test_nearer_samples_weigh_more() -> None:
    present = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]]).bool()
    weights = nearness(present, 0.25)
    assert weights[0] == 1
    assert (weights.diff() < 0).all()
    assert float(weights[2]) == pytest.approx(np.exp(-(0.5**2) / (2 * 0.25**2)))


# Shapley values


def exact_shapley(value: Callable[[frozenset[int]], float], count: int) -> list[float]:
    """By the definition: marginal gains over all coalitions (Shapley, 1953)."""
    result = []
    for player in range(count):
        others = [other for other in range(count) if other != player]
        total = 0.0
        for size in range(count):
            for members in combinations(others, size):
                weight = factorial(size) * factorial(count - size - 1) / factorial(count)
                total += weight * (value(frozenset(members) | {player}) - value(frozenset(members)))
        result.append(total)
    return result


def patch_game(module: nn.Module, image: Tensor, chosen: int, grid: int) -> Callable[[frozenset[int]], float]:
    known: dict[frozenset[int], float] = {}

    def value(members: frozenset[int]) -> float:
        if members not in known:
            present = torch.tensor([[part in members for part in range(grid**2)]])
            known[members] = float(coalition_scores(module, image, chosen, present, grid)[0])
        return known[members]

    return value


def exact_maps(module: nn.Module, images: Tensor, grid: int) -> Tensor:
    rows = zip(images, CHOSEN.tolist(), strict=True)
    values = [exact_shapley(patch_game(module, image, chosen, grid), grid**2) for image, chosen in rows]
    return torch.tensor(values, dtype=torch.float64).view(-1, grid, grid)


def test_kernel_shap_over_all_coalitions_is_exact(module: nn.Module, images: Tensor) -> None:
    agrees(native(module, images, "kernel_shap(parts=patches(grid=2))"), exact_maps(module, images, 2), 1e-9)


def test_kernel_shap_over_nine_patches_is_exact() -> None:
    """512 coalitions; a game with interactions that no linear model fits."""
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(2**9, generator=generator).double()

    def value(members: frozenset[int]) -> float:
        return float(table[sum(2**member for member in members)])

    present, weights = all_coalitions(9)
    codes = (present.long() * 2 ** torch.arange(9)).sum(dim=1)
    gains = (table[codes] - table[0])[:, None]
    found = shapley_regression(present.double(), gains, weights, (table[-1] - table[0])[None])
    agrees(found[:, 0], torch.tensor(exact_shapley(value, 9), dtype=torch.float64), 1e-9)


def test_kernel_shap_equals_the_shap_package(module: nn.Module, images: Tensor) -> None:
    """Its KernelExplainer over all coalitions of four patches, asked about the presence of each."""
    shap = pytest.importorskip("shap")
    ours = native(module, images, "kernel_shap(parts=patches(grid=2))")
    for row, chosen in enumerate(CHOSEN.tolist()):

        def game(present: np.ndarray, row: int = row, chosen: int = chosen) -> np.ndarray:
            return coalition_scores(module, images[row], chosen, torch.from_numpy(present > 0.5), 2)

        explainer = shap.KernelExplainer(game, np.zeros((1, 4)))
        theirs = explainer.shap_values(np.ones(4), nsamples=14, l1_reg=False, silent=True)
        agrees(ours[row].flatten(), torch.from_numpy(np.asarray(theirs)).flatten(), 1e-6)


def test_sampled_kernel_shap_approaches_the_exact_values(images: Tensor) -> None:
    module = randomised(TinyCNN()).double()
    exact = native(module, images, "kernel_shap(n=70000, parts=patches(grid=3))")  # all 510
    errors = []
    for n in (100, 400):
        found = native(module, images, f"kernel_shap(n={n}, parts=patches(grid=3), seed=1)")
        agrees(found.sum(dim=(1, 2)), exact.sum(dim=(1, 2)), 1e-9)  # efficiency holds for every sample
        errors.append(float((found - exact).norm() / exact.norm()))
    assert errors[1] < errors[0] < 0.3
    assert errors[1] < 0.1


def test_sampled_kernel_shap_is_the_regression_on_its_samples(images: Tensor) -> None:
    """The constraint by two samples of huge weight, as captum has it, and an ordinary least-squares solver."""
    module = randomised(TinyCNN()).double()
    present, _ = drawn_coalitions(16, 60, torch.Generator().manual_seed(2))
    z = np.concatenate([present.double().numpy(), np.zeros((1, 16)), np.ones((1, 16))])
    weights = np.concatenate([np.ones(60), [1e8, 1e8]])
    expected = []
    for image, chosen in zip(images, CHOSEN.tolist(), strict=True):
        scores = coalition_scores(module, image, chosen, torch.from_numpy(z).bool(), 4)
        fitted = LinearRegression().fit(z, scores, sample_weight=weights)
        expected.append(torch.from_numpy(fitted.coef_).view(4, 4))
    agrees(native(module, images, "kernel_shap(n=60, parts=patches(grid=4), seed=2)"), torch.stack(expected), 1e-5)


def test_coalitions_are_drawn_by_the_kernel() -> None:
    present, weights = drawn_coalitions(6, 40000, torch.Generator().manual_seed(0))
    assert len(present) == len(weights) == 40000
    assert (present[0::2] ^ present[1::2]).all(), "pairs of complements"
    sizes = present.sum(dim=1)
    kernel = [5 / (comb(6, k) * k * (6 - k)) * comb(6, k) for k in range(1, 6)]
    for size, share in enumerate(kernel, start=1):
        assert float((sizes == size).float().mean()) == pytest.approx(share / sum(kernel), abs=0.01)
    assert (present[sizes == 2].float().mean(dim=0) - 2 / 6).abs().max() < 0.02
    everything, exact = all_coalitions(6)
    assert len(everything.unique(dim=0)) == 62
    for k in range(1, 6):
        total = float(exact[everything.sum(dim=1) == k].sum())
        assert total == pytest.approx(kernel[k - 1])


def test_one_part_gets_everything(images: Tensor) -> None:
    module = randomised(TinyCNN()).double()
    with torch.no_grad():
        gained = module(images).softmax(dim=1) - module(torch.zeros_like(images)).softmax(dim=1)
    expected = gained[range(4), CHOSEN].view(4, 1, 1)
    agrees(native(module, images, "kernel_shap(parts=patches(grid=1))"), expected, 1e-9)
    agrees(native(module, images, "shapley_sampling(parts=patches(grid=1))"), expected, 1e-9)


def test_shapley_sampling_is_its_definition(module: nn.Module, images: Tensor) -> None:
    orders = torch.rand(3, 16, generator=torch.Generator().manual_seed(9)).argsort(dim=1)
    expected = torch.zeros(4, 16, dtype=torch.float64)
    for row, chosen in enumerate(CHOSEN.tolist()):
        value = patch_game(module, images[row], chosen, 4)
        for order in orders.tolist():
            for place, part in enumerate(order):
                before = frozenset(order[:place])
                expected[row, part] += (value(before | {part}) - value(before)) / 3
    found = native(module, images, "shapley_sampling(orders=3, parts=patches(grid=4), seed=9)")
    agrees(found, expected.view(4, 4, 4), 1e-8)


def test_shapley_sampling_approaches_the_exact_values(images: Tensor) -> None:
    module = randomised(TinyCNN()).double()
    exact = exact_maps(module, images, 2)
    found = native(module, images, "shapley_sampling(orders=400, parts=patches(grid=2), seed=0)")
    agrees(found, exact, 0.1)
    agrees(found.sum(dim=(1, 2)), exact.sum(dim=(1, 2)), 1e-9)


def test_shapley_values_of_a_linear_model_are_known(images: Tensor) -> None:
    module = LinearModel().double()
    share = (module.linear.weight[CHOSEN].view(4, 3, SIZE, SIZE) * images).sum(dim=1).detach()
    cells = F.avg_pool2d(share[:, None], 8)[:, 0] * 64
    agrees(native(module, images, "kernel_shap(n=100, parts=patches(grid=4), score='logit')"), cells, 1e-8)
    agrees(native(module, images, "shapley_sampling(orders=2, parts=patches(grid=4), score='logit')"), cells, 1e-8)


# Simple insertion and deletion


@pytest.mark.parametrize("window", [1, 3])
def test_simple_insertion_and_deletion_are_their_definitions(module: nn.Module, images: Tensor, window: int) -> None:
    white = torch.full_like(images[0], 1.0)
    model = load_model(module, input_size=SIZE, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    inserted, deleted = torch.zeros(2, 4, 4, 4, dtype=torch.float64)
    for image, chosen, put, gone in zip(images, CHOSEN.tolist(), inserted, deleted, strict=True):
        for y in range(4):
            for x in range(4):
                rows = slice(max(0, y - window // 2) * 8, (y + window // 2 + 1) * 8)
                columns = slice(max(0, x - window // 2) * 8, (x + window // 2 + 1) * 8)
                pasted, cut = white.clone(), image.clone()
                pasted[:, rows, columns] = image[:, rows, columns]
                cut[:, rows, columns] = 1.0
                put[y, x] = probability(module, pasted, chosen)
                gone[y, x] = probability(module, image, chosen) - probability(module, cut, chosen)
    for name, expected in (("simple_insertion", inserted), ("simple_deletion", deleted)):
        found = load_method(f"{name}(grid=4, window={window})")(model, images, CHOSEN)
        agrees(found, expected, 1e-9)


def test_windows_are_clipped_at_the_border() -> None:
    windows = neighbourhoods(5, 1)
    assert windows.sum(dim=1).view(5, 5)[:2, :2].tolist() == [[4, 6], [6, 9]]
    assert windows[12].view(5, 5).nonzero().tolist() == [[y, x] for y in (1, 2, 3) for x in (1, 2, 3)]
    assert torch.equal(neighbourhoods(3, 0), torch.eye(9).bool())


def test_outputs_are_enough(images: Tensor) -> None:
    """A model without gradients, layers or parameters can be explained."""

    class Opaque(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                return torch.stack([x[:, c % 3].flatten(1).mean(dim=1) * (c + 1) for c in range(CLASSES)], dim=1)

    for method in ("occlusion", "lime(n=400)", "kernel_shap(n=400)"):
        assert native(Opaque(), images, method).isfinite().all()


@pytest.mark.parametrize("name", ["lime", "kernel_shap", "shapley_sampling"])
def test_parts_of_a_map_need_what_the_map_needs(name: str, images: Tensor) -> None:
    with pytest.raises(CapabilityError, match="needs attention"):
        aha.explain(randomised(TinyCNN()), images, f"{name}(parts=cells(rollout))")

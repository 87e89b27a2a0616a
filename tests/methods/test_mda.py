"""MDA against a search that asks for one patch at a time, and its curve fit against a general solver."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

import aha
from aha.errors import CapabilityError, SpecError
from aha.methods import load_method
from aha.methods.patch_order.magnitudes import Order, concave_increments, order_weighted
from aha.methods.patch_order.mda import MDA, default_guide
from aha.methods.patch_order.patch_search import Responses, cell_indices, greedy
from aha.models import TargetModel, load_model
from aha.perturb.perturbation import blend
from aha.perturb.references import Black, Blur, reference_inputs
from fakes import SIZE, TinyCNN, plain_module, randomised, tiny_vit

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


class Gradientless(TinyCNN):
    """A network whose outputs come from somewhere else."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(super().forward(x).detach().numpy())


def loaded(module: nn.Module) -> TargetModel:
    return load_model(module.double(), input_size=SIZE, mean=MEAN, std=STD)


@pytest.fixture(params=["vit", "cnn"])
def model(request: pytest.FixtureRequest) -> TargetModel:
    return loaded(tiny_vit() if request.param == "vit" else randomised(TinyCNN()))


@pytest.fixture
def image(images: Tensor) -> Tensor:
    return images[2:3].double()


def rising(count: int, seed: int, noise: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    curve = torch.linspace(0, 1, count + 1) ** (0.3 + 0.4 * seed) + noise * torch.rand(count + 1, generator=generator)
    return curve.clamp(0, 1).cummax(dim=0).values.double()


# The fit


@pytest.mark.parametrize("seed", range(4))
def test_the_fit_is_what_a_general_solver_finds(seed: int) -> None:
    curve = rising(9, seed, 0.3).numpy()
    second = np.diff(np.eye(10), n=2, axis=0)
    found = minimize(
        lambda ad: float(((ad - curve) ** 2).sum()),
        np.linspace(0, 1, 10),
        jac=lambda ad: 2 * (ad - curve),
        bounds=[(0, 0), *[(0, 1)] * 8, (1, 1)],
        constraints=[{"type": "ineq", "fun": lambda ad: -(second @ ad), "jac": lambda _: -second}],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    fitted = concave_increments(torch.from_numpy(curve)).cumsum(dim=0)
    assert np.abs(fitted.numpy() - found.x[1:]).max() < 1e-5
    assert ((fitted.numpy() - curve[1:]) ** 2).sum() <= found.fun + 1e-10


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.3])
def test_the_fit_of_a_long_curve_has_no_better_neighbour(noise: float) -> None:
    """The condition that decides optimality: no ramp, of which all allowed curves are mixtures, leads downhill."""
    curve = rising(196, 2, noise)
    increments = concave_increments(curve)
    fitted = torch.cat([torch.zeros(1), increments.cumsum(dim=0)])
    slope = fitted - curve
    ramps = (torch.arange(197).double()[:, None] / torch.arange(1, 197)).clamp(max=1)
    assert (ramps.T @ slope).min() >= slope @ fitted - 1e-10
    assert (increments.diff() <= 0).all() and increments[-1] >= 0
    assert fitted[-1] == pytest.approx(1, abs=1e-10)


def test_a_concave_curve_is_its_own_fit() -> None:
    curve = torch.linspace(0, 1, 50).double().sqrt()
    assert torch.allclose(concave_increments(curve), curve.diff(), atol=1e-9)


# The order


def slow_order(model: TargetModel, image: Tensor, label: int, ranked: list[int], window: int, tau: float) -> list[int]:
    """Algorithm of section 3.1 with one forward pass for each candidate, on pixels."""
    pixels = image * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
    black = torch.zeros_like(pixels)
    blurred = Blur()(model, pixels, torch.tensor([label]))
    side = SIZE // 4

    def response(start: Tensor, shown: list[int]) -> float:
        picture = start.clone()
        for place in shown:
            rows, columns = (slice(k * side, (k + 1) * side) for k in divmod(place, 4))
            picture[..., rows, columns] = pixels[..., rows, columns]
        inputs = (picture - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
        with torch.no_grad():
            return float(model.module(inputs).softmax(dim=1)[0, label])

    first: list[int] = []
    while len(first) < 16 and response(blurred, first) < tau * response(pixels, []):
        free = [place for place in ranked if place not in first][:window]
        first.append(max(free, key=lambda place: response(blurred, [*first, place])))
    last: list[int] = []
    while len(first) + len(last) < 16:
        free = [place for place in reversed(ranked) if place not in first + last][:window]
        last.append(min(free, key=lambda place: response(black, [*last, place])))
    return first + last[::-1]


@pytest.mark.parametrize("window", [3, 8, 16])
def test_the_order_is_that_of_the_slow_search(model: TargetModel, image: Tensor, window: int) -> None:
    label = int(model.module(image).argmax())
    guide = load_method("gradient(channels='sum')")
    cells = guide(model, image, torch.tensor([label])).view(4, 8, 4, 8).mean(dim=(1, 3)).flatten()
    ranked = cells.argsort(descending=True).tolist()
    for tau in (0.3, 0.9):
        (found,) = MDA(guide, tau=tau, window=window).search(model, image, torch.tensor([label]))
        assert found.places.tolist() == slow_order(model, image, label, ranked, window, tau)


def objective(model: TargetModel, image: Tensor, label: Tensor, places: list[int]) -> float:
    """Insertion minus deletion area of an order, on MDA's own references."""
    cells = cell_indices((SIZE, SIZE), (4, 4))
    pixels = model.to_pixels(image)
    blank = {True: Blur()(model, pixels, label), False: Black()(model, pixels, label)}
    total = 0.0
    for inserts, sign in ((True, 1), (False, -1)):
        for count in range(17):
            shown = places[:count] if inserts else places[count:]
            keep = torch.isin(cells, torch.tensor(shown, dtype=torch.long))
            picture = torch.where(keep, pixels, blank[inserts])
            total += sign * float(model.scores(model.to_inputs(picture), label))
    return total / 17


@pytest.mark.parametrize("guide", ["random_map(seed=1)", "grad_cam", "center_map"])
def test_no_order_is_worse_than_that_of_its_guide(model: TargetModel, images: Tensor, guide: str) -> None:
    for image in images.double().split(1):
        label = model.module(image).argmax(dim=1)
        values = load_method(guide)(model, image, label)
        cells = nn.functional.interpolate(values[None], (4, 4), mode="area").flatten()
        given = cells.sort(descending=True, stable=True).indices.tolist()
        (found,) = MDA(load_method(guide)).search(model, image, label)
        assert objective(model, image, label, found.places.tolist()) >= objective(model, image, label, given) - 1e-9


def test_each_step_is_one_batch_and_nothing_is_asked_twice(image: Tensor) -> None:
    model = loaded(tiny_vit())
    batches: list[int] = []
    model.module.register_forward_pre_hook(lambda _, args: batches.append(len(args[0])))
    model.structure((3, SIZE, SIZE))
    batches.clear()
    (found,) = MDA(load_method("center_map"), window=4, tau=0.5).search(model, image, torch.tensor([1]))
    assert len(batches) <= 1 + 2 + 16 + 2, "the whole image, two starts, one batch per step, what the curves lack"
    assert max(batches) <= 16
    asked = sum(batches)
    found.values(gamma=0.3)
    assert sum(batches) == asked


# The magnitudes


def test_values_fall_strictly_along_the_order_even_where_the_responses_are_flat() -> None:
    flat = torch.cat([torch.linspace(0, 1, 5), torch.ones(12)])
    order = Order(torch.randperm(16), flat, 1 - flat, (4, 4))
    for gamma in (0.0, 0.4, 1.0):
        values = order.values(gamma).flatten()[order.places].float()
        assert (values.diff() < 0).all()


def test_the_formulas_of_magnitude_and_density() -> None:
    curve = torch.tensor([0.0, 0.5, 0.8, 0.95, 1.0])
    order = Order(torch.tensor([2, 0, 3, 1]), curve, 1 - curve, (2, 2))
    steps = [0.5, 0.3, 0.15, 0.05]
    sparse = [d + d * (4 - i) / 4 for i, d in enumerate(steps, 1)]  # eq. 10
    dense = [(4 - i) / 4 if a >= 0.1 else a for i, a in enumerate(sparse, 1)]  # eq. 11
    for gamma in (0.0, 0.25, 1.0):
        expected = [(1 - gamma) * s + gamma * d for s, d in zip(sparse, dense, strict=True)]
        found = order.values(gamma, kappa=0.1).flatten()[order.places]
        assert found.tolist() == pytest.approx(expected, abs=3e-6)


def test_curves_that_go_up_and_down_are_made_monotone_as_by_mas() -> None:
    """The running maximum from the blurred picture on, and the running minimum from the clean one on."""
    inserted, deleted = [0.1, 0.7, 0.4, 0.8, 0.9], [0.9, 0.2, 0.6, 0.3, 0.1]
    rising = []
    for step in range(5):
        up = max((answer - 0.1) / 0.8 for answer in inserted[: step + 1])
        down = min((answer - 0.1) / 0.8 for answer in deleted[: step + 1])
        rising.append((up + 1 - down) / 2)
    increments = concave_increments(torch.tensor(rising).double())
    found = Order(torch.arange(4), torch.tensor(inserted), torch.tensor(deleted), (2, 2)).values().flatten()
    assert found.tolist() == pytest.approx(order_weighted(increments).tolist(), abs=1e-6)


def test_a_class_without_evidence_still_gives_an_order() -> None:
    falling = torch.linspace(1, 0, 17)
    values = Order(torch.arange(16), falling, falling.flip(0), (4, 4)).values()
    assert values.isfinite().all()
    assert (order_weighted(torch.zeros(16)).diff() < 0).all()


# Guides, grids, refusals


def test_the_guide_is_chosen_by_what_the_model_can_serve(images: Tensor) -> None:
    assert default_guide(load_model(randomised(TinyCNN())), images[:1]) == load_method("grad_cam")
    assert default_guide(load_model(tiny_vit()), images[:1]) is not None
    assert default_guide(load_model(randomised(plain_module())), images[:1]) is None
    with pytest.raises(CapabilityError, match="attention"):
        aha.explain(randomised(TinyCNN()), images, "mda(guide=rollout, deletion=blur)")


def test_models_without_gradients_are_searched_without_a_guide(images: Tensor) -> None:
    model = load_model(Gradientless())
    assert default_guide(model, images[:1]) is None
    found = aha.explain(model, images[:1], "mda(grid=2, deletion=blur)")
    assert found.maps.shape[-2:] == (32, 32)
    with pytest.raises(CapabilityError, match="needs gradients"):
        aha.explain(model, images[:1], "mda(grid=2, screen=2, deletion=blur)")


def test_insertion_ends_at_a_share_of_the_way_where_scores_are_negative(
    image: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(randomised(TinyCNN()).double(), input_size=SIZE, mean=MEAN, std=STD, score="log_softmax")
    ends = []

    def watched(*args: Any, **options: Any) -> list[int]:
        ends.append(options.get("enough"))
        return greedy(*args, **options)

    monkeypatch.setattr("aha.methods.patch_order.mda.greedy", watched)
    label = model.outputs(image).argmax(dim=1)
    load_method("mda(grid=4, tau=0.25)")(model, image, label)
    blurred = reference_inputs(Blur(), model, image, label)
    low, high = (float(model.scores(shown, label)) for shown in (blurred, image))
    assert ends[0] == pytest.approx(0.75 * low + 0.25 * high)


def test_any_grid_on_any_image(images: Tensor) -> None:
    cells = cell_indices((32, 32), (3, 5))
    assert cells.unique().tolist() == list(range(15))
    assert cells.flatten().bincount().min() >= 60
    maps = load_method("mda(grid=3, deletion=blur)")(load_model(randomised(TinyCNN())), images[:1], torch.tensor([0]))
    assert maps.shape == (1, 3, 3)


@pytest.mark.parametrize("text", ["tau=0", "tau=1.5", "gamma=2", "kappa=-1", "window=0", "grid=1"])
def test_bad_parameters(text: str) -> None:
    with pytest.raises(SpecError, match="mda"):
        load_method(f"mda({text})")


def test_a_grid_finer_than_the_pixels(images: Tensor) -> None:
    with pytest.raises(SpecError, match="finer"):
        load_method("mda(grid=64)")(load_model(randomised(TinyCNN())), images[:1], torch.tensor([0]))


def test_references_are_parameters(images: Tensor) -> None:
    method = load_method("mda(deletion=zeros_normalised, insertion=blur(kernel=5, sigma=2.0), grid=2)")
    assert load_method(str(method)) == method
    assert method(load_model(randomised(TinyCNN())), images[:1], torch.tensor([0])).shape == (1, 2, 2)
    with pytest.raises(SpecError, match="does not hide"):
        load_method("mda(insertion=adaptive_blur(smallest=3, largest=3, threshold=0.0))")(
            loaded(randomised(TinyCNN())), images[:1].double(), torch.tensor([0])
        )


# Asking less


@pytest.mark.parametrize("screen", [1, 3])
def test_screening_is_exact_where_patches_add_up(screen: int) -> None:
    """What a patch adds is its slope there, whatever else is shown."""
    weights = torch.randn(16, generator=torch.Generator().manual_seed(2))
    asked = [0, 0]

    def ask(turn: int, masks: Tensor) -> Tensor:
        asked[turn] += len(masks)
        return masks.float() @ weights

    places = torch.randperm(16, generator=torch.Generator().manual_seed(3)).tolist()
    full = greedy(partial(ask, 0), places, 16, window=8)
    few = greedy(partial(ask, 1), places, 16, window=8, screen=screen, foresee=lambda _: weights)
    assert few == full
    assert asked[1] < 0.5 * asked[0]


def test_slopes_are_derivatives_along_each_patch(image: Tensor) -> None:
    model, label = loaded(randomised(TinyCNN())), torch.tensor([1])
    blank, cells = torch.zeros_like(image), cell_indices((SIZE, SIZE), (4, 4))
    mask = torch.rand(1, 16, generator=torch.Generator().manual_seed(4)) < 0.5
    found = Responses(model, image, blank, label, cells).slopes(mask)
    base = blend(image, blank, mask[:, cells])
    for place in range(16):
        step = 1e-6 * (image - blank) * (cells == place)
        ahead, behind = model.scores(base + step, label), model.scores(base - step, label)
        assert float(found[place]) == pytest.approx(float(ahead - behind) / 2e-6, rel=1e-4, abs=1e-8)


def test_an_order_found_by_screening_is_whole_and_cheaper(image: Tensor) -> None:
    model, passes = loaded(randomised(TinyCNN())), []
    for screen in (None, 1):
        model.passes.clear()
        (order,) = MDA(grid=4, screen=screen).search(model, image, torch.tensor([1]))
        passes.append(model.passes["forward"])
        assert sorted(order.places.tolist()) == list(range(16))
    assert passes[1] < 0.8 * passes[0]

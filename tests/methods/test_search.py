"""Search against all orders there are, on games small enough to try them; and the method around it."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor, nn

import aha
from aha.core.progress import heard_by
from aha.errors import SpecError
from aha.methods import load_method
from aha.methods.patch_order.order_search import OrderSearch
from aha.methods.patch_order.search import Search, as_map, divided, starting_guide
from aha.methods.perturbation.part_orders import PartGame, chain_of
from aha.metrics import Case, Sample
from aha.metrics.curves.ins_del import InsDel
from aha.models import TargetModel, load_model
from aha.perturb.partitions import Patches
from aha.perturb.perturbation import area
from aha.perturb.references import Black
from fakes import SIZE, TinyCNN, plain_module, randomised

OBJECTIVES = ("ins_del", "insertion", "deletion")


def answers_of(count: int, seed: int) -> Tensor:
    """A model's answers (2^K,) to all subsets: parts that help, hinder and need each other."""
    generator = torch.Generator().manual_seed(seed)
    subsets = torch.arange(2**count)[:, None] >> torch.arange(count) & 1  # (2^K, K)
    single = torch.randn(count, generator=generator)
    pairs = 0.7 * torch.randn(count, count, generator=generator).triu(1)
    x = subsets.float()
    return (x @ single + ((x @ pairs) * x).sum(dim=1)).sigmoid().double()


def searched(game: PartGame, answers: Tensor, budget: int, polish: str = "swaps") -> tuple[list[int], int]:
    """The order that a search finds, and how many subsets it asked about."""
    search = OrderSearch(game, list(range(game.count)), budget, polish)  # type: ignore[arg-type]
    steps, asked = search.run(), 0
    while True:
        try:
            wanted = next(steps)
        except StopIteration as end:
            return end.value, asked
        asked += len(wanted)
        assert len(set(wanted)) == len(wanted) and not set(wanted) & game.answers.keys(), "asked twice"
        game.answers |= {subset: float(answers[subset]) for subset in wanted}


def direct_value(answers: Tensor, sizes: list[float], order: tuple[int, ...], objective: str) -> float:
    """Areas under both curves, as the metrics take them."""
    shares, subset, everything = [0.0], 0, len(answers) - 1
    inserted, deleted = [answers[0]], [answers[everything]]
    for part in order:
        subset |= 1 << part
        shares.append(shares[-1] + sizes[part])
        inserted.append(answers[subset])
        deleted.append(answers[everything ^ subset])
    insertion, deletion = (
        float(area(torch.tensor(shares).double(), torch.stack(curve))) for curve in (inserted, deleted)
    )
    return {"ins_del": insertion - deletion, "insertion": insertion, "deletion": -deletion}[objective]


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("seed", range(3))
def test_all_subsets_of_six_parts_give_the_best_of_all_orders(seed: int, objective: str) -> None:
    sizes = [0.25, 0.125, 0.125, 0.0625, 0.1875, 0.25]
    answers = answers_of(6, seed)
    best = max(direct_value(answers, sizes, order, objective) for order in permutations(range(6)))
    game = PartGame(sizes, objective)  # type: ignore[arg-type]
    order, asked = searched(game, answers, budget=64)
    assert asked == 64
    assert direct_value(answers, sizes, tuple(order), objective) == pytest.approx(best, abs=1e-12)
    assert game.value(order) == pytest.approx(best, abs=1e-12)


def test_greedy_and_swaps_come_close_to_the_best_order_with_half_of_the_subsets() -> None:
    sizes, shares = [1 / 7] * 7, []
    for seed in range(12):
        answers = answers_of(7, seed)
        game = PartGame(sizes, "ins_del")
        order, asked = searched(game, answers, budget=64)
        assert asked <= 64
        everything = PartGame(sizes, "ins_del", {subset: float(a) for subset, a in enumerate(answers)})
        best, worst = (everything.value(everything.best_order()), everything.value(everything.best_order()[::-1]))
        shares.append((game.value(order) - worst) / (best - worst))
    assert sum(shares) / len(shares) > 0.98


@pytest.mark.parametrize("polish", ["swaps", "anneal", "none"])
def test_more_budget_gives_better_orders_on_average(polish: str) -> None:
    means = []
    for budget in (60, 120, 240, 600):
        values = []
        for seed in range(8):
            game = PartGame([1 / 12] * 12, "ins_del")
            order, asked = searched(game, answers_of(12, seed), budget, polish)
            assert asked <= budget
            assert sorted(order) == list(range(12))
            values.append(game.value(order))
        means.append(sum(values) / len(values))
    assert means == sorted(means)
    assert means[-1] > means[0]


def test_annealing_ends_where_nothing_more_can_be_asked() -> None:
    """Questions come in pairs: of an odd budget one is always left."""
    game = PartGame([1 / 9] * 9, "ins_del")
    search = OrderSearch(game, list(range(9)), 101, "anneal")
    answers, rounds = answers_of(9, 0), 0
    for wanted in search.run():
        rounds += 1
        game.answers |= {subset: float(answers[subset]) for subset in wanted}
    assert search.asked <= 101 and rounds < 200


def test_an_order_is_never_worse_than_the_first() -> None:
    for seed in range(8):
        answers = answers_of(10, seed)
        game = PartGame([0.1] * 10, "ins_del")
        order, _ = searched(game, answers, budget=30)
        assert game.value(order) >= game.value(range(10)) - 1e-12


def test_a_narrow_window_comes_close_to_asking_about_every_part() -> None:
    """The shape of what is known in the field: half of the calls for at least 95 % of what greedy search finds."""
    wide, narrow = 0.0, 0.0
    for seed in range(10):
        answers = answers_of(14, seed)
        games = [PartGame([1 / 14] * 14, "ins_del") for _ in range(2)]
        orders = [searched(game, answers, budget, "none")[0] for game, budget in zip(games, (240, 120), strict=True)]
        wide, narrow = wide + games[0].value(orders[0]), narrow + games[1].value(orders[1])
    assert narrow >= 0.95 * wide > 0


# The method


@pytest.fixture
def model() -> TargetModel:
    return load_model(randomised(TinyCNN()).double(), input_size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3)


def ins_del(model: TargetModel, image: Tensor, values: Tensor, cells: int) -> float:
    """The metric of a map, one step for each cell of a grid."""
    case = Case(Sample(model, "image", image), 0, values)
    return InsDel(steps=cells, references=(Black(),))(case)[0].value


def test_what_is_searched_for_is_what_the_metric_measures(model: TargetModel, images: Tensor) -> None:
    """Six cells: no order of them has a higher Ins-Del than the one that was found."""
    image = images[2].double()
    method = load_method("search(parts=patches(grid=2), reference=black, budget=60, guide=center_map)")
    found = method(model, image[None], torch.tensor([0]))[0]
    cells = torch.arange(SIZE) * 2 // SIZE
    index = cells[:, None] * 2 + cells
    values = [
        ins_del(model, image, torch.tensor(order, dtype=torch.double)[index], cells=4)
        for order in permutations(range(4))
    ]
    assert ins_del(model, image, found, cells=4) == pytest.approx(max(values), abs=1e-5)


def test_the_budget_is_kept_and_told(model: TargetModel, images: Tensor) -> None:
    method = load_method("search(parts=patches(grid=4), budget=300, guide=center_map)")
    shares: list[float] = []
    before = model.passes["forward"]
    with heard_by(shares.append):
        method(model, images.double(), torch.zeros(4, dtype=torch.long))
    assert 4 * 200 < model.passes["forward"] - before <= 4 * 300
    assert shares == sorted(shares) and len(shares) > 10


def test_several_images_share_their_batches(model: TargetModel, images: Tensor) -> None:
    """The model is called far less often for four images than four times as often as for one."""
    calls: list[int] = []
    handle = model.module.register_forward_hook(lambda _m, args, _o: calls.append(len(args[0])))
    method = load_method("search(parts=patches(grid=4), reference=black, budget=100, guide=center_map)")
    counts = []
    for some in (images[:1], images):
        calls.clear()
        method(model, some.double(), torch.zeros(len(some), dtype=torch.long))
        counts.append(len(calls))
    handle.remove()
    assert counts[1] < 2.5 * counts[0]


def test_it_ends_when_its_listener_says_so(model: TargetModel, images: Tensor) -> None:
    def stop(share: float) -> None:
        if share > 0.3:
            raise KeyboardInterrupt

    before = model.passes["forward"]
    with pytest.raises(KeyboardInterrupt), heard_by(stop):
        load_method("search(parts=patches(grid=4), budget=900)")(model, images.double(), torch.tensor([0, 1, 2, 3]))
    assert model.passes["forward"] - before < 4 * 600


def test_pixels_of_a_part_follow_the_guide() -> None:
    index = torch.tensor([[0, 0, 1], [0, 1, 1]])
    hint = torch.tensor([[1.0, 3.0, 5.0], [2.0, 6.0, 4.0]])
    values = as_map([1, 0], index, hint)
    assert values.flatten().argsort(descending=True).tolist() == [4, 2, 5, 1, 3, 0]


def test_levels_of_the_guide_divide_parts() -> None:
    index = torch.tensor([[0, 0, 0, 0], [1, 2, 2, 2]])
    hint = torch.tensor([[3.0, 9.0, 1.0, 5.0], [7.0, 4.0, 8.0, 2.0]])
    assert divided(index, hint, 2).tolist() == [[1, 0, 1, 0], [2, 4, 3, 4]]  # 9, 8, 7 and 5 are the upper level
    assert torch.equal(divided(index, hint, 1), index)


def test_small_pieces_stay_with_their_part() -> None:
    """One pixel of sixteen in another level is no part of its own, at either end; eight are."""
    index = torch.arange(3).repeat_interleave(16)[None]
    first, second, third = torch.arange(100.0, 116.0), torch.arange(50.0, 66.0), torch.arange(16.0)
    first[0], third[15] = 0.5, 200.0  # so that 15, 8 and 1 of them are among the upper half
    pieces = divided(index, torch.cat([first, second, third])[None], 2)[0]
    assert torch.bincount(pieces).tolist() == [16, 8, 8, 16]


def test_levels_find_more_than_whole_parts(model: TargetModel, images: Tensor) -> None:
    """Parts that the guide divides well are no longer kept or removed as a whole."""
    classes, cells = torch.zeros(4, dtype=torch.long), SIZE * SIZE // 8
    found = {}
    for levels in (1, 4):
        method = load_method(
            f"search(parts=patches(grid=4), levels={levels}, reference=black, budget=300, guide=integrated_gradients)"
        )
        maps = method(model, images.double(), classes)
        found[levels] = [ins_del(model, images[i].double(), maps[i], cells) for i in range(4)]
    assert sum(found[4]) > sum(found[1])


def test_a_guide_that_parts_cannot_match_is_returned(images: Tensor) -> None:
    """A model that looks at every other pixel: patches of them are a coarse order, the guide's is the true one."""
    board = (torch.arange(SIZE)[:, None] + torch.arange(SIZE)) % 2 * 1.0

    class Board(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen = (x * board).mean(dim=(1, 2, 3))
            return torch.stack([20 * seen, -20 * seen], dim=1)

    model = load_model(Board(), input_size=SIZE, mean=(0.0,) * 3, std=(1.0,) * 3)
    bright = 0.5 + 0.5 * torch.rand(1, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    text = "search(parts=patches(grid=4), reference=black, budget=100, guide={})"
    found = load_method(text.format("gradient"))(model, bright, torch.tensor([0]))
    assert torch.equal(found, load_method("gradient")(model, bright, torch.tensor([0])))
    other = load_method(text.format("center_map"))(model, bright, torch.tensor([0]))[0]
    assert ins_del(model, bright[0], found[0], cells=8) > ins_del(model, bright[0], other, cells=8)


def test_the_guide_is_the_best_at_hand(model: TargetModel) -> None:
    assert str(starting_guide(model)) == "aha"
    assert starting_guide(load_model(plain_module(), input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("search(budget=0)", "budget"),
        ("search(levels=0)", "level"),
        ("search(reference=())", "reference"),
        ("search(polish='more')", "polish"),
    ],
)
def test_bad_settings_are_refused(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        load_method(text)


def test_a_budget_that_is_too_small_says_what_it_takes(model: TargetModel, images: Tensor) -> None:
    with pytest.raises(SpecError, match=r"takes 422"):
        aha.explain(model, images.double(), Search(budget=50, parts=load_method("lime").parts, reference=Black()))


def test_one_curve_takes_half_of_the_budget(model: TargetModel, images: Tensor) -> None:
    text = "search(parts=patches(grid=4), reference=black, objective='insertion', budget=31)"
    assert load_method(text)(model, images[:1], torch.tensor([0])).isfinite().all()
    with pytest.raises(SpecError, match="takes 31"):
        load_method(text.replace("31", "30"))(model, images[:1], torch.tensor([0]))


def test_a_guide_without_a_map_is_replaced_by_the_centre(model: TargetModel, images: Tensor) -> None:
    class Nothing(Search):
        def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
            return torch.full((len(images), SIZE, SIZE), float("nan"))

    method = Search(parts=Patches(grid=4), reference=Black(), budget=100, guide=Nothing())
    other = Search(parts=Patches(grid=4), reference=Black(), budget=100, guide=load_method("center_map"))
    found, expected = (each(model, images[:1], torch.tensor([0])) for each in (method, other))
    assert found.isfinite().all() and torch.equal(found, expected)


def test_the_cells_of_a_map_can_be_the_parts(model: TargetModel, images: Tensor) -> None:
    method = load_method("search(parts=cells(grad_cam), reference=black, budget=300)")
    assert "features" in method.needs
    index = method.parts(model, images[0].double())  # type: ignore[attr-defined]
    grad_cam = load_method("grad_cam")(model, images[:1].double(), torch.tensor([0]))
    assert index.unique().tolist() == list(range(grad_cam[0].numel()))
    with pytest.raises(SpecError, match=rf"gradient has {SIZE} x {SIZE} cells"):
        load_method("search(parts=cells(gradient))")(model, images[:1].double(), torch.tensor([0]))


def test_a_chain_shows_one_part_more_at_each_step() -> None:
    assert chain_of([2, 0, 1]) == [0, 4, 5, 7]

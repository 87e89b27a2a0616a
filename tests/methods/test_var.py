"""VAR against its formula in slow loops, what it costs, and what becomes of the distribution over classes."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import aha
from aha.data.mosaics import Mosaic
from aha.errors import CapabilityError, OutputError, SpecError, TargetError
from aha.methods import Method, load_method
from aha.methods.distribution import Distribution
from aha.methods.var import Var, chosen_rivals, class_shares
from aha.models import TargetModel, load_model
from aha.results.explanation import Explanation
from command_line import MODEL, assert_refused, items, picture, run
from fakes import CLASSES, SIZE, LinearModel, TinyCNN, randomised, tiny_vit

NORMAL = {"input_size": SIZE, "mean": (0.5,) * 3, "std": (0.5,) * 3}
NAMES = ["ant", "bee", "cow", "dog", "eel, common"]


@pytest.fixture
def model() -> TargetModel:
    return load_model(randomised(TinyCNN()), **NORMAL, class_names=NAMES)


@dataclass(frozen=True)
class Masked(Method):
    """A perturbation method: mean over eight masks of the mask times the score of the class behind it."""

    name = "masked"

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        masks = (torch.rand(8, SIZE, SIZE, generator=torch.Generator().manual_seed(0)) > 0.5).float()
        total = torch.zeros(len(images), SIZE, SIZE)
        for mask in masks:
            total += mask * model.scores(images * mask, classes)[:, None, None]
        return total / len(masks)


# The formula


def test_equal_maps_share_evenly() -> None:
    values = torch.rand(6, 7)
    maps = values.expand(3, 6, 7)
    shares = class_shares(maps, (1, 5, 100))
    assert torch.allclose(shares, torch.tensor(1 / 3))
    everything = Distribution((4, 2, 9), 1, maps, shares, margin=None)
    assert torch.allclose(everything.discriminative(), values / 3)
    assert Distribution((4, 2, 9), 1, maps, shares).discriminative().abs().max() == 0, "nothing beats chance"
    assert torch.allclose(everything.shared(), values), "all of it is shared"


def slow_var(maps: list[list[list[float]]], target: int, temperatures: list[float], competition: str) -> np.ndarray:
    """Section 3.3, place by place."""
    largest = max(abs(v) for one in maps for row in one for v in row)
    height, width = len(maps[0]), len(maps[0][0])
    result = np.zeros((height, width))
    for i in range(height):
        for j in range(width):
            share = 0.0
            for t in temperatures:
                here = [one[i][j] for one in maps]
                if competition == "divide":
                    powers = [math.exp(h / t) for h in here]
                elif competition == "absolute":
                    powers = [math.exp(t * abs(h)) for h in here]
                else:
                    powers = [math.exp(t * h / largest) for h in here]
                share += powers[target] / sum(powers) / len(temperatures)
            if share > 1 / len(maps):
                result[i, j] = maps[target][i][j] * share
    return result


@pytest.mark.parametrize("competition", ["shared_scale", "divide", "absolute"])
@pytest.mark.parametrize("kind", ["cnn", "vit"])
def test_var_in_slow_loops(kind: str, competition: str, images: Tensor) -> None:
    module = (randomised(TinyCNN()) if kind == "cnn" else tiny_vit()).double()
    target, images = load_model(module), images.double()
    base, temperatures = load_method("input_x_gradient"), [1.0, 3.0]
    found = load_method(f"var({base}, classes='top3', temperatures=[1, 3], competition='{competition}')")(
        target, images, torch.tensor([0, 1, 2, 4])
    )
    for row, wanted in enumerate([0, 1, 2, 4]):
        ranked = module(images[[row]])[0].argsort(descending=True).tolist()
        rivals = ranked[:3] if wanted in ranked[:3] else [*ranked[:2], wanted]
        maps = [base(target, images[[row]], torch.tensor([c]))[0].tolist() for c in rivals]
        expected = slow_var(maps, rivals.index(wanted), temperatures, competition)
        assert np.abs(expected).max() > 0
        np.testing.assert_allclose(found[row].numpy(), expected, atol=1e-9 * np.abs(expected).max())


def test_the_unit_of_the_maps_does_not_matter() -> None:
    maps = torch.randn(4, 5, 5)
    for factor in (1e-8, 1e6):
        assert torch.allclose(class_shares(maps * factor, (1, 5, 100)), class_shares(maps, (1, 5, 100)), atol=1e-5)
    assert torch.allclose(class_shares(torch.zeros(4, 2, 2), (1, 100)), torch.tensor(0.25))


def test_rivals() -> None:
    order = [3, 1, 4, 0, 2]
    assert chosen_rivals(order, 1, 2, False) == [3, 1]
    assert chosen_rivals(order, 0, 2, False) == [3, 0], "the explained class takes part"
    assert chosen_rivals(order, 1, 2, True) == [3, 1, 2]
    assert chosen_rivals(order, 0, 2, True) == [3, 0, 2]
    assert chosen_rivals(order, 2, 1, True) == [3, 2], "best against worst"
    assert chosen_rivals(order, 4, 1, True) == [4, 2]
    assert chosen_rivals(order, 4, 9, True) == order, "no more than there are"


def test_classes_by_list_or_rule(model: TargetModel, images: Tensor) -> None:
    with torch.no_grad():
        worst = model.module(images).argmin(dim=1).tolist()
    found = aha.explain(model, images, "var(gradient, classes='best_vs_worst')")
    assert [d.classes for d in found.distribution] == list(zip(found.targets.tolist(), worst, strict=True))
    found = aha.explain(model, images, "var(gradient, classes=[1, 2])", target=[[1], [2], [3], [1, 3]])
    assert [d.classes for d in found.distribution] == [(1, 2), (1, 2), (1, 2, 3), (1, 2), (1, 2, 3)]
    assert [d.target for d in found.distribution] == [0, 1, 2, 0, 2]


def test_a_single_output_has_two_sides(images: Tensor) -> None:
    binary = load_model(LinearModel(classes=1))
    found = aha.explain(binary, images, "var(input_x_gradient)")
    assert [sorted(d.classes) for d in found.distribution] == [[0, 1]] * 4
    base = aha.explain(binary, images, "input_x_gradient").maps
    kept = found.maps != 0
    assert (kept == (base > 0)).all(), "a place is won by the side it speaks for"


def test_a_single_value_has_no_rivals(images: Tensor) -> None:
    with pytest.raises(CapabilityError, match=r"var compares classes; .* has one output only"):
        aha.explain(load_model(LinearModel(classes=1), score="regression"), images, "var(gradient)")


@pytest.mark.parametrize(
    "text",
    [
        "var(gradient, classes='top')",
        "var(gradient, classes='top1')",
        "var(gradient, classes=[3])",
        "var(gradient, classes=[3, 3])",
        "var(gradient, temperatures=[])",
        "var(gradient, temperatures=[1, 0])",
        "var(gradient, threshold=1.5)",
        "var(gradient, competition='none')",
        "var",
    ],
)
def test_bad_parameters(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_method(text)
    assert str(caught.value).startswith("var") and "\n" not in str(caught.value)


def test_classes_that_do_not_exist(model: TargetModel, images: Tensor) -> None:
    with pytest.raises(TargetError, match="class 77"):
        aha.explain(model, images, "var(gradient, classes=[1, 77])")


# What it costs


@pytest.mark.parametrize("text", ["gradient", "grad_cam", "smooth(gradient, n=3)", "integrated_gradients(steps=4)"])
def test_classes_share_forward_passes(model: TargetModel, images: Tensor, text: str) -> None:
    model.structure((SIZE, SIZE))
    model.cam_stage((SIZE, SIZE))
    classes = torch.tensor([0, 1, 2, 4])
    model.passes.clear()
    load_method(text).seeded(0)(model, images, classes)
    once = model.passes.copy()
    model.passes.clear()
    load_method(f"var({text})").seeded(0)(model, images, classes)
    assert model.passes["forward"] == once["forward"] + len(images), "and one to find the rivals"
    assert model.passes["backward"] == CLASSES * once["backward"]


def test_perturbed_images_are_shown_once(model: TargetModel, images: Tensor) -> None:
    classes = torch.tensor([0, 1, 2, 4])
    expected = [Masked()(model, images, torch.full_like(classes, c)) for c in range(CLASSES)]
    model.passes.clear()
    found = Var(Masked()).distributions(model, images, classes)
    assert model.passes == {"forward": 9 * len(images)}
    for row, distribution in enumerate(found):
        for index, c in enumerate(distribution.classes):
            assert torch.allclose(distribution.maps[index], expected[c][row], atol=1e-6)


def test_several_explained_classes_share_all_maps(model: TargetModel, images: Tensor) -> None:
    model.passes.clear()
    found = aha.explain(model, images, "var(gradient)", target="top5")
    assert model.passes == {"forward": len(images), "backward": CLASSES * len(images)}
    assert len(found) == 5 * len(images)


def test_many_rows_are_taken_in_turns(images: Tensor) -> None:
    small = load_model(randomised(TinyCNN()), batch_size=6)
    large = load_model(randomised(TinyCNN()))
    classes = torch.tensor([0, 1, 2, 4])
    seen: list[int] = []
    small.module.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    first = load_method("var(gradient)")(small, images, classes)
    assert torch.allclose(first, load_method("var(gradient)")(large, images, classes), atol=1e-6)
    assert max(seen) <= 4


# Sharing, on its own


def test_outputs_are_remembered_inside_the_block_only(model: TargetModel, images: Tensor) -> None:
    expected = model.outputs(images)
    model.passes.clear()
    with model.caching():
        again = torch.cat([model.outputs(images[[1, 0, 1]]), model.outputs(images)])
        assert model.passes["forward"] == 4
        with pytest.raises(RuntimeError, match="stop"), model.caching():
            raise RuntimeError("stop")
        model.outputs(images)
        assert model.passes["forward"] == 4, "a nested block does not forget"
    assert torch.allclose(again, expected[[1, 0, 1, 0, 1, 2, 3]], atol=1e-6)
    model.outputs(images)
    assert model.passes["forward"] == 8


def test_changed_models_are_not_mistaken_for_the_unchanged(model: TargetModel, images: Tensor) -> None:
    factors = torch.tensor([1.0, 2.0, 3.0])
    with model.caching():
        plain = model.outputs(images[:1])
        with model.patched({"head": lambda outputs: outputs * factors.to(outputs)[:, None]}):
            patched = model.outputs(images[[0, 0, 0]])  # equal images, told apart by the patch
        with model.rules({"relu": lambda x, **_: x}):
            ruled = model.outputs(images[:1])
        assert torch.allclose(patched, plain * factors[:, None], atol=1e-5)
        assert not torch.allclose(ruled, plain)
        assert torch.equal(model.outputs(images[:1]), plain)


def test_memory_for_outputs_is_bounded(model: TargetModel, images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aha.models.running.forward_cache._MOST_KNOWN", 2 * CLASSES)
    expected = model.outputs(images)
    with model.caching():
        for row in (0, 1, 2, 0, 3, 3):
            assert torch.allclose(model.outputs(images[[row]])[0], expected[row], atol=1e-6)
            assert model._cache.known is not None and len(model._cache.known) <= 2


def test_derivatives_outside_the_trace_are_refused(images: Tensor) -> None:
    model = load_model(randomised(TinyCNN()))
    with model.caching():
        trace = model.trace(images[[0, 0]], features=[-1])
        with pytest.raises(aha.AhaError, match="tensors that the trace holds"):
            trace.gradients(torch.tensor([0, 1]), trace.features[-1].clone())
        assert not trace.features[-1].requires_grad, "torch's own gradients fail loudly instead of being wrong"


# The distribution as a result


def test_an_explanation_holds_the_distribution(model: TargetModel, images: Tensor) -> None:
    found = aha.explain(model, images, "var(grad_cam, classes='top3')", target="top2", batch_size=3)
    assert len(found.distribution) == len(found) == 8
    for index, distribution in enumerate(found.distribution):
        assert distribution.shares.shape == distribution.maps.shape == (3, SIZE, SIZE)
        assert torch.allclose(distribution.shares.sum(dim=0), torch.tensor(1.0), atol=1e-5)
        assert distribution.classes[distribution.target] == found.targets[index]
        assert distribution.labels == tuple(NAMES[c] for c in distribution.classes)
    assert found.composite(0).height > found.composite(0, caption=False).height
    assert found.shared(0).width == found.overlay(0).width


def test_other_methods_have_none(model: TargetModel, images: Tensor) -> None:
    found = aha.explain(model, images, "gradient")
    assert len(found.distribution) == 0
    with pytest.raises(OutputError, match=r"var\(gradient\)"):
        found.composite()


def test_the_composite_shows_who_wins_where() -> None:
    """Two classes, each with one half of the picture; the middle column belongs to both."""
    maps = torch.zeros(2, 5, 9)
    maps[0, :, :5] = 1.0
    maps[1, :, 4:] = 1.0
    distribution = Distribution((0, 1), 0, maps, class_shares(maps, (100,)), ("left", "right"))
    from aha.drawing.render import class_colours, composite

    grey = Image.new("RGB", (9, 5), (128, 128, 128))
    pixels = np.asarray(composite(grey, maps.numpy(), distribution.shares.numpy(), opacity=1.0)).astype(int)
    left, right = (np.array(colour) for colour in class_colours(2))
    assert np.abs(pixels[:, :4] - left).max() <= 1
    assert np.abs(pixels[:, 5:] - right).max() <= 1
    assert np.abs(pixels[:, 4] - 128).max() <= 1, "what is shared has nobody's colour"
    assert distribution.shared()[:, 4].min() == 1 and distribution.shared()[:, [0, 8]].max() < 1e-6


def test_saved_with_the_maps(model: TargetModel, images: Tensor, tmp_path: Path) -> None:
    found = aha.explain(model, images[:1], "var(grad_cam)")
    found.save(tmp_path)
    (item,) = json.loads((tmp_path / "manifest.json").read_text())["items"]
    with Image.open(tmp_path / item["composite"]) as drawn:
        assert drawn.size == found.composite().size
    with np.load(tmp_path / item["map"]) as arrays:
        np.testing.assert_array_equal(arrays["shares"], found.distribution[0].shares.numpy())
        assert tuple(arrays["classes"]) == found.distribution[0].classes


def test_joined_like_everything_else(model: TargetModel, images: Tensor) -> None:
    parts = [aha.explain(model, images[[i]], "var(gradient)") for i in range(2)]
    assert len(Explanation.join(parts).distribution) == 2


# Classes that are explained together


def test_grid_compares_the_classes_of_a_mosaic(model: TargetModel, images: Tensor) -> None:
    wanted = [[0, 3], [1, 2, 4], [3, 0], [2, 1]]
    found = aha.explain(model, images, "var(input_x_gradient, classes='grid')", target=wanted)
    assert found.method == "var(input_x_gradient, classes='grid')"
    for row, classes in enumerate(wanted):
        alone = aha.explain(model, images[[row]], f"var(input_x_gradient, classes={sorted(classes)})", target=[classes])
        offset = sum(map(len, wanted[:row]))
        assert torch.allclose(found.maps[offset : offset + len(classes)], alone.maps, atol=1e-6)


def test_grid_inside_wrappers_and_metrics(model: TargetModel) -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8))
    half = SIZE // 2
    cells = {c: (y, x, y + half, x + half) for c, (y, x) in enumerate([(0, 0), (0, half), (half, 0), (half, half)])}
    mosaic = Mosaic(picture, cells, None, (0, 1, 2, 3))
    method = "smooth(var(grad_cam(layer=-2), classes='grid'), n=2)"
    scores = aha.evaluate(model, [mosaic], [method], ["grid_pointing", "class_sensitivity"])
    assert scores.failures == []
    assert {row.metric for row in scores.rows} == {"grid_pointing", "class_sensitivity"}


def test_grid_needs_company(model: TargetModel, images: Tensor) -> None:
    with pytest.raises(SpecError, match="explain at least two"):
        aha.explain(model, images, "var(gradient, classes='grid')")
    with pytest.raises(SpecError, match=r"use aha\.explain"):
        load_method("var(gradient, classes='grid')")(model, images, torch.zeros(4, dtype=torch.long))


# From the command line


def test_contrast_on_the_command_line(tmp_path: Path) -> None:
    file, names, out = picture(tmp_path / "a.png"), tmp_path / "names.txt", tmp_path / "out"
    names.write_text("".join(f"thing {i}\n" if i != 2 else "lynx, wild\n" for i in range(1000)))
    args = ("explain", file, *MODEL, "--class-names", names)
    result = run(*args, "--contrast", "lynx, wild, 5,thing 7", "--method", "gradient", "--out", out)
    assert result.exit_code == 0, result.output
    assert [item["target"] for item in items(out)] == [2, 5, 7]
    assert {item["method"] for item in items(out)} == {"var(gradient, classes=(2, 5, 7))"}
    assert all((out / item["composite"]).is_file() for item in items(out))
    again = run(*args, "--contrast", "lynx, wild, 5,thing 7", "--method", "gradient", "--out", out)
    assert "1 already done" in again.stdout
    one = run(*args, "--contrast", "5, 7", "--target", "thing 9", "--out", tmp_path / "other")
    assert one.exit_code == 0, one.output
    assert [item["target"] for item in items(tmp_path / "other")] == [9]
    assert_refused(run(*args, "--contrast", "5", "--out", out), "at least two")
    assert_refused(run(*args, "--contrast", "5, thingy 7", "--out", out), "thing 7")


def test_rules_of_sharing_hold_for_user_models() -> None:
    """A module that counts: five classes of three images are three images to it."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, CLASSES))
    seen: list[int] = []
    module.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    images = torch.randn(3, 3, SIZE, SIZE)
    Var(load_method("gradient")).distributions(load_model(module), images, torch.tensor([0, 1, 2]))
    assert sum(seen) == 6

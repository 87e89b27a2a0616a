"""What methods say they will cost, beside what they do cost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from aha.errors import SpecError
from aha.methods import load_method
from aha.methods.cost import Cost
from aha.models import TargetModel, load_model
from aha.web.policy import BUDGET, check_budget
from fakes import SIZE, TinyCNN, randomised, tiny_vit

WHOLE = (SIZE, SIZE)


@pytest.fixture(scope="module")
def model() -> TargetModel:
    return load_model(tiny_vit(), input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)


def passes_of(model: TargetModel, method: str, images: Tensor) -> int:
    model.structure((3, *WHOLE))
    before = model.passes.total()
    load_method(method).seeded(0)(model, images[:1], torch.tensor([0]))
    return model.passes.total() - before


@pytest.mark.parametrize(
    "method",
    [
        "rise(n=40)",
        "lime(n=40, parts=patches(grid=4))",
        "kernel_shap(n=40, parts=patches(grid=4))",
        "kernel_shap(parts=patches(grid=2))",
        "shapley_sampling(orders=2, parts=patches(grid=4))",
        "occlusion(window=8, stride=4)",
        "extremal_perturbation(areas=(0.1, 0.3), steps=4, reference=black)",
        "simple_insertion(grid=4)",
        "integrated_gradients(steps=12)",
        "gradient_shap(n=6)",
        "attention_ig(steps=6)",
        "smooth(integrated_gradients(steps=3), n=5)",
        "tis(masks=12)",
        "mda(grid=4)",
        "search(parts=patches(grid=4), budget=300)",
        "mda(grid=4, screen=2)",
        "mutex",
        "caap",
        "caap(neighbourhood='none')",
        "caap(form='patchwise')",
        "finer_cam(rivals=8)",
        "bidirectional(steps=6)",
        "transition_attention(steps=6)",
        "gradient",
        "grad_cam",
        "var(gradient, classes='top3')",
    ],
)
def test_passes_are_foretold(model: TargetModel, method: str, images: Tensor) -> None:
    measured, foretold = passes_of(model, method, images), load_method(method).cost(model, WHOLE).passes
    assert measured / 2 <= foretold <= 3 * measured + 3


@pytest.mark.parametrize(
    ("method", "gigabytes"),
    [
        ("kernel_shap(parts=patches(grid=200))", 26),
        ("rise(n=5000, cells=500)", 5),
        ("lime(n=5000, parts=patches(grid=200))", 4),
        ("simple_insertion(grid=200)", 1.6),
        ("smooth(kernel_shap(parts=patches(grid=200)), n=2)", 26),
        ("integrated_gradients(steps=20000)", 6),
    ],
)
def test_memory_is_foretold(model: TargetModel, method: str, gigabytes: float) -> None:
    assert load_method(method).cost(model, (224, 224)).bytes > gigabytes * 1e9


@pytest.mark.parametrize(
    "method", ["rise(n=5000)", "kernel_shap", "lime", "extremal_perturbation", "shapley_sampling", "score_cam"]
)
def test_the_explorer_allows_what_is_usual(model: TargetModel, method: str) -> None:
    check_budget(load_method(method), model, (224, 224))


@pytest.mark.parametrize(
    "method",
    [
        "kernel_shap(parts=patches(grid=200))",
        "rise(cells=5000)",
        "smooth(smooth(gradient, n=5000), n=5000)",
        "var(smooth(integrated_gradients(steps=500), n=100), classes='top20')",
        "occlusion(window=1, stride=1)",
    ],
)
def test_the_explorer_refuses_products_of_modest_numbers(model: TargetModel, method: str) -> None:
    with pytest.raises(SpecError, match=r"needs about [\d,]+ passes and .* [GM]B.*allows [\d,]+ passes"):
        check_budget(load_method(method), model, (224, 224))
    assert not load_method(method).cost(model, (224, 224)).within(BUDGET)


@pytest.mark.parametrize("method", ["caap", "caap(last=1)", "caap(last=1, neighbourhood='none')"])
def test_caap_of_a_convolutional_network_takes_at_most_a_pass_for_each_place(method: str, images: Tensor) -> None:
    network = load_model(randomised(TinyCNN()), input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    measured, foretold = passes_of(network, method, images), load_method(method).cost(network, WHOLE).passes
    places = load_method(method)(network, images[:1], torch.tensor([0])).numel()
    assert measured <= foretold == places + 2


def test_costs_add_up() -> None:
    assert Cost(2, 100).times(3).then(Cost(5, 50)) == Cost(11, 100)
    assert str(Cost(26048, 26 * 2**30)) == "26,048 passes and 26.0 GB"

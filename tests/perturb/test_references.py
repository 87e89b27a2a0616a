"""References are one thing for every method: one field, one rule for modules that state no normalisation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import aha
from aha.errors import CapabilityError, SpecError
from aha.methods import METHODS
from aha.perturb.references import load_reference, reference_inputs
from fakes import SIZE, TinyCNN, randomised, tiny_vit

CLASSES = torch.tensor([0, 1])
FEW = {
    "occlusion": "window=8, stride=8",
    "rise": "n=4",
    "lime": "n=8",
    "kernel_shap": "n=40, parts=patches(grid=4)",
    "shapley_sampling": "orders=1",
    "simple_insertion": "grid=4",
    "simple_deletion": "grid=4",
    "extremal_perturbation": "areas=(0.2,), steps=2",
    "caap": "",
    "integrated_gradients": "steps=2",
    "gradient_shap": "n=2",
}


def text(name: str, reference: str) -> str:
    return f"{name}({', '.join(filter(None, [FEW[name], f'reference={reference}']))})"


def test_every_method_with_one_reference_calls_it_so() -> None:
    found = {name for name in METHODS if METHODS[name].family != "wrapper" and METHODS[name]().references}
    # Two of mda: what pixels are put into, and what they leave behind. That of gradient_shap is drawn unless named.
    # Several of search, whose answers are averaged.
    assert found - {"mda", "search"} == FEW.keys() - {"gradient_shap"}


@pytest.mark.parametrize("name", FEW)
def test_pixels_are_refused_where_their_normalisation_is_not_stated(name: str) -> None:
    """Inputs may be normalised in any way: that 0 is black must not be guessed."""
    module = tiny_vit() if name == "caap" else randomised(TinyCNN())
    with pytest.raises(SpecError, match=r"reference black is made of pixels; state .* mean and std .*, or use"):
        aha.explain(module, torch.randn(1, 3, SIZE, SIZE), text(name, "black"))


@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("reference", ["zeros_normalised", "blur(kernel=5, sigma=2.0)"])
def test_what_is_the_same_in_any_normalisation_needs_none(name: str, reference: str) -> None:
    module = (tiny_vit() if name == "caap" else randomised(TinyCNN())).double()
    inputs = torch.randn(1, 3, SIZE, SIZE, dtype=torch.float64)
    stated = aha.load_model(module, input_size=SIZE, mean=(0.3, 0.5, 0.7), std=(0.2, 0.4, 0.6))
    found, expected = (aha.explain(model, inputs, text(name, reference), target=1).maps for model in (module, stated))
    assert torch.allclose(found, expected, atol=1e-6)


def test_a_method_that_would_be_refused_is_not_offered() -> None:
    module = tiny_vit()
    stated = aha.load_model(module, input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert {"caap", "rise"} <= set(aha.list_methods(stated))
    with pytest.raises(CapabilityError) as caught:  # names those that would do
        aha.explain(aha.load_model(randomised(TinyCNN())), torch.randn(1, 3, SIZE, SIZE), "rollout")
    assert " rise" in str(caught.value) and "caap" not in str(caught.value)


@pytest.mark.parametrize("name", ["black", "white", "mean", "noise", "blurred_noise", "rise_blur(kernel=5)"])
def test_stated_references_are_pixels_brought_to_inputs(name: str) -> None:
    model = aha.load_model(randomised(TinyCNN()), input_size=SIZE, mean=(0.3, 0.5, 0.7), std=(0.2, 0.4, 0.6))
    inputs = model.to_inputs(torch.rand(2, 3, SIZE, SIZE))
    chosen = load_reference(name)
    direct: Tensor = chosen(model, model.to_pixels(inputs), CLASSES)
    assert torch.allclose(model.to_pixels(reference_inputs(chosen, model, inputs, CLASSES)), direct, atol=1e-6)

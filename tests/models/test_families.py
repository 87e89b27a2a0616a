"""Every method on the model families that people use: random weights, small pictures, no network.

A method must give a map or be refused before anything is computed. Families are cut down to a few narrow blocks where
their constructors allow it: what they are made of, and in which order, stays the same.

Minutes rather than seconds: run with `pytest -m slow tests/test_families.py`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

import aha
from aha.errors import AhaError, CapabilityError, MapWarning
from aha.learned.explainer import Explainer
from aha.learned.library import remember
from aha.learned.settings import Design
from aha.methods import METHODS, Method, check_fit, load_method
from aha.methods.cam.base import features_and_gradients
from aha.models import TargetModel, load_model
from fakes import changes, snapshot, surroundings
from families import CLASSES, TIMM, awake, built

pytestmark = pytest.mark.slow

TORCHVISION = {
    "vit_b_32": (64, True),
    "swin_t": (56, False),
    "swin_v2_t": (64, False),
    "maxvit_t": (224, False),
    "resnet18": (64, False),
    "convnext_tiny": (64, False),
    "efficientnet_v2_s": (64, False),
    "mobilenet_v3_small": (64, False),
    "squeezenet1_1": (64, False),
    "shufflenet_v2_x0_5": (64, False),
    "googlenet": (64, False),
    "alexnet": (96, False),
}


def transformers_models() -> dict[str, tuple[Callable[[], nn.Module], bool]]:
    import transformers as hf

    vit: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 64}
    vit |= {"intermediate_size": 64, "patch_size": 16, "num_labels": 7}
    return {
        "vit": (lambda: hf.ViTForImageClassification(hf.ViTConfig(**vit)), True),
        "deit": (lambda: hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**vit)), True),
        "beit": (lambda: hf.BeitForImageClassification(hf.BeitConfig(**vit)), True),
        "dinov2": (lambda: hf.Dinov2ForImageClassification(hf.Dinov2Config(**vit)), True),
        "dinov2 with registers": (
            lambda: hf.Dinov2WithRegistersForImageClassification(hf.Dinov2WithRegistersConfig(**vit)),
            True,
        ),
        "siglip": (lambda: hf.SiglipForImageClassification(hf.SiglipConfig(vision_config=vit, num_labels=7)), True),
        "clip": (lambda: hf.CLIPForImageClassification(hf.CLIPConfig(vision_config=vit, num_labels=7)), True),
        "swin": (
            lambda: hf.SwinForImageClassification(
                hf.SwinConfig(embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, image_size=64, num_labels=7)
            ),
            False,
        ),
        "convnext": (
            lambda: hf.ConvNextForImageClassification(
                hf.ConvNextConfig(num_stages=3, hidden_sizes=[16, 24, 32], depths=[1, 1, 1], num_labels=7)
            ),
            False,
        ),
        "resnet": (
            lambda: hf.ResNetForImageClassification(
                hf.ResNetConfig(embedding_size=8, hidden_sizes=[16, 24, 32], depths=[1, 1, 1], num_labels=7)
            ),
            False,
        ),
    }


# Parameters that make slow methods cheap. What is not listed runs with its defaults.
CHEAP = {
    "integrated_gradients": "integrated_gradients(steps=2)",
    "gradient_shap": "gradient_shap(n=2)",
    "attention_ig": "attention_ig(steps=2)",
    "transition_attention": "transition_attention(steps=2)",
    "bidirectional": "bidirectional(steps=2)",
    "smooth": "smooth(gradient, n=2)",
    "var": "var(gradient)",
    "occlusion": "occlusion(window={half}, stride={half})",
    "rise": "rise(n=8)",
    "lime": "lime(n=8, parts=patches(grid=2))",
    "kernel_shap": "kernel_shap(n=8, parts=patches(grid=2))",
    "shapley_sampling": "shapley_sampling(orders=1, parts=patches(grid=2))",
    "simple_insertion": "simple_insertion(grid=3)",
    "simple_deletion": "simple_deletion(grid=3)",
    "extremal_perturbation": "extremal_perturbation(areas=(0.3,), steps=2)",
    "tis": "tis(masks=4)",
    "vit_cx": "vit_cx(threshold=0.9)",
    "mda": "mda(gradient, grid=2, window=2)",
}
ONE_IMAGE = {"score_cam", "ablation_cam", "caap", "vit_cx", "mutex", "mda"}  # a pass for each channel or place


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AHA_DATA", str(tmp_path))  # explainers for `aha`


def check(module: nn.Module, size: int, has_attention: bool) -> None:
    inputs = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5))
    classes = torch.tensor([1, 2])
    # Logits: large random weights make probabilities that are exactly 0 or 1, whatever is hidden.
    model = load_model(module, batch_size=32, input_size=size, mean=(0.5,) * 3, std=(0.5,) * 3, score="logit")
    before = (snapshot(module), surroundings())
    capabilities = model.capabilities
    assert capabilities >= {"gradients", "features"}
    assert ("attention" in capabilities) == has_attention
    plain = model.outputs(inputs)
    trace = model.trace(inputs, features=[-1], attention=has_attention)
    assert (trace.outputs - plain).abs().max() <= 1e-4 * plain.abs().max(), "looking changes nothing"
    features, slopes = features_and_gradients(model, inputs, classes, -1)
    product = (features * slopes).detach()
    assert product.sum(dim=1).abs().max() > 1e-4 * product.abs().sum(dim=1).max(), "a map of rounding noise"
    assert explained(model, inputs, "gradient", classes).abs().amax(dim=(1, 2)).min() > 0
    remember(Explainer.for_target(model, Design(width=16, stride=8), seed=1))
    problems = {name: problem for name in METHODS if (problem := tried(model, inputs, name))}
    assert problems == {}
    assert changes(before[0], snapshot(module)) == []
    assert changes(before[1], surroundings()) == []


def tried(model: TargetModel, inputs: Tensor, name: str) -> str:
    """What is wrong with a method on a model, if anything."""
    method = load_method(CHEAP.get(name, name).format(half=inputs.shape[-1] // 2))
    try:
        check_fit(method, model)
    except CapabilityError as refusal:
        return (
            ""
            if re.search(r"\(.+\)\. Try: |does not fit .+: .+", str(refusal))
            else f"refused without a reason: {refusal}"
        )
    inputs = inputs[:1] if name in ONE_IMAGE else inputs
    for first in range(CLASSES - 1):  # random weights may have no positive evidence for some of the classes
        try:
            maps = explained(model, inputs, method, torch.arange(first, first + len(inputs)))
        except (
            AhaError,
            RuntimeError,
            ValueError,
            TypeError,
            IndexError,
            AssertionError,
            NotImplementedError,
        ) as error:
            return f"{type(error).__name__}: {error}"
        if maps.shape != (len(inputs), *inputs.shape[2:]):
            return f"maps of shape {tuple(maps.shape)}"
        if not maps.isfinite().all():
            return "not finite"
        if (maps.amax(dim=(1, 2)) > maps.amin(dim=(1, 2))).any():
            return ""
    return "flat for every class"


def explained(model: TargetModel, inputs: Tensor, method: str | Method, classes: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MapWarning)
        return aha.explain(model, inputs, method, classes).maps


@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str) -> None:
    size, has_attention, _ = TIMM[name]
    check(awake(built(name)), size, has_attention)


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name: str) -> None:
    size, has_attention = TORCHVISION[name]
    torch.manual_seed(0)
    module = load_model(f"torchvision:{name}", pretrained=False, input_size=size).module
    check(awake(module), size, has_attention)


@pytest.mark.parametrize("name", transformers_models())
def test_transformers(name: str) -> None:
    build, has_attention = transformers_models()[name]
    torch.manual_seed(0)
    check(awake(build()), 64, has_attention)


def test_the_names_exist() -> None:
    assert set(TIMM) <= set(timm.list_models())
    assert set(TORCHVISION) <= set(torchvision.models.list_models())

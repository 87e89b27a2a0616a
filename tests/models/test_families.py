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
from aha.methods.grad_cam import features_and_gradients
from aha.models import TargetModel, load_model
from fakes import changes, snapshot, surroundings

pytestmark = pytest.mark.slow

# How constructors are told to build little.
NARROW = {"depth": 3, "embed_dim": 48, "num_heads": 3}
SHALLOW = {"depths": (1, 1, 1, 1)}
FEW_LAYERS = {"layers": (1, 1, 1, 1)}

# timm model -> (input size, can the attention of all blocks be read, how it is cut down)
TIMM: dict[str, tuple[int, bool, dict[str, Any]]] = {
    # Plain transformers, with every kind of prefix and readout
    "vit_tiny_patch16_224": (64, True, NARROW),
    "deit_tiny_distilled_patch16_224": (64, True, NARROW),
    "deit3_small_patch16_224": (32, True, NARROW),
    "vit_small_patch14_reg4_dinov2": (56, True, NARROW),
    "vit_small_patch16_dinov3": (64, True, NARROW),
    "eva02_tiny_patch14_224": (56, True, NARROW),
    "beit_base_patch16_224": (32, True, NARROW),
    "vit_base_patch32_clip_224": (64, True, NARROW),
    "vit_base_patch16_siglip_224": (32, True, NARROW),
    "vit_small_patch16_rope_224": (64, True, NARROW),
    "flexivit_small": (64, True, NARROW),
    "cait_xxs24_224": (64, True, NARROW),
    # Transformers with windows, pyramids and attention of other kinds
    "swin_tiny_patch4_window7_224": (56, False, SHALLOW),
    "swinv2_cr_tiny_ns_224": (224, False, SHALLOW),
    "maxvit_rmlp_pico_rw_256": (256, False, SHALLOW),
    "coatnet_nano_rw_224": (224, False, SHALLOW),
    "xcit_nano_12_p16_224": (96, False, NARROW),  # at 64, as many tokens as channels: its attention looks like any
    "pvt_v2_b0": (64, False, SHALLOW),
    "mvitv2_tiny": (224, False, {}),
    "levit_128s": (224, False, {}),
    "hiera_tiny_224": (224, False, {}),
    "volo_d1_224": (224, False, {}),
    "twins_svt_small": (224, False, SHALLOW),
    "convit_tiny": (224, False, NARROW),
    "tnt_s_legacy_patch16_224": (224, False, {}),
    "crossvit_9_240": (240, False, {}),
    "pit_ti_224": (224, False, {}),
    "gcvit_xxtiny": (224, False, {}),
    "davit_tiny": (224, False, SHALLOW),
    "efficientformerv2_s0": (224, False, SHALLOW),
    "edgenext_xx_small": (64, False, SHALLOW),
    "mobilevit_xxs": (64, False, {}),
    "fastvit_t8": (64, False, FEW_LAYERS),
    "efficientvit_b0": (64, False, SHALLOW),
    # Mixers and poolers
    "mixer_s32_224": (224, False, {}),
    "resmlp_12_224": (224, False, {}),
    "poolformer_s12": (64, False, FEW_LAYERS),
    # Convolutional networks
    "convnext_atto": (64, False, SHALLOW),
    "convnextv2_atto": (64, False, SHALLOW),
    "resnet18": (64, False, FEW_LAYERS),
    "resnet50": (64, False, FEW_LAYERS),
    "resnetv2_50": (64, False, FEW_LAYERS),
    "efficientnet_b0": (64, False, {}),
    "vgg11_bn": (64, False, {}),
    "densenet121": (64, False, {}),
    "inception_v3": (160, False, {}),
    "mobilenetv3_small_050": (64, False, {}),
    "mobilenetv4_conv_small_050": (64, False, {}),
    "regnetx_002": (64, False, {}),
    "hrnet_w18_small": (64, False, {}),
    "dm_nfnet_f0": (64, False, SHALLOW),
    "repvgg_a0": (64, False, {}),
    "ghostnet_050": (64, False, {}),
    "mambaout_femto": (64, False, SHALLOW),
}

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
CLASSES = 7


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AHA_CACHE", str(tmp_path))  # explainers for `aha`


def awake(module: nn.Module, gain: float = 1.5) -> nn.Module:
    """The module with large random weights: a freshly initialised one is nearly linear, and parts of it do nothing."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:  # biases, norms, and scales that start next to zero
                parameter.add_(0.1 * noise)
            else:
                parameter.copy_(noise * gain / parameter[0].numel() ** 0.5)
    return module.eval()


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
    size, has_attention, cut = TIMM[name]
    torch.manual_seed(0)
    try:
        module = timm.create_model(name, img_size=size, num_classes=CLASSES, **cut)
    except TypeError:  # it takes any size
        module = timm.create_model(name, num_classes=CLASSES, **cut)
    check(awake(module), size, has_attention)


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

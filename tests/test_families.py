"""Every applicable method on the model families that people use: random weights, small pictures, no network.

Minutes rather than seconds: run with `pytest -m slow tests/test_families.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor, nn

import aha
from aha.errors import MapWarning
from aha.methods import METHODS, load_method
from aha.methods.grad_cam import features_and_gradients
from aha.models import load_model
from fakes import changes, snapshot, surroundings

pytestmark = pytest.mark.slow

# timm model -> (input size, where the attention of all blocks can be read)
TIMM = {
    # Plain transformers, with every kind of prefix and readout
    "vit_tiny_patch16_224": (64, True),
    "deit_tiny_distilled_patch16_224": (64, True),
    "deit3_small_patch16_224": (32, True),
    "vit_small_patch14_reg4_dinov2": (56, True),
    "vit_small_patch16_dinov3": (64, True),
    "eva02_tiny_patch14_224": (56, True),
    "beit_base_patch16_224": (32, True),
    "vit_base_patch32_clip_224": (64, True),
    "vit_base_patch16_siglip_224": (32, True),
    "vit_small_patch16_rope_224": (64, True),
    "flexivit_small": (64, True),
    "cait_xxs24_224": (64, True),
    # Transformers with windows, pyramids and attention of other kinds
    "swin_tiny_patch4_window7_224": (56, False),
    "swinv2_cr_tiny_ns_224": (224, False),
    "maxvit_rmlp_pico_rw_256": (256, False),
    "coatnet_nano_rw_224": (224, False),
    "xcit_nano_12_p16_224": (64, False),
    "pvt_v2_b0": (64, False),
    "mvitv2_tiny": (224, False),
    "levit_128s": (224, False),
    "hiera_tiny_224": (224, False),
    "volo_d1_224": (224, False),
    "twins_svt_small": (224, False),
    "convit_tiny": (224, False),
    "tnt_s_legacy_patch16_224": (224, False),
    "crossvit_9_240": (240, False),
    "pit_ti_224": (224, False),
    "gcvit_xxtiny": (224, False),
    "davit_tiny": (224, False),
    "efficientformerv2_s0": (224, False),
    "edgenext_xx_small": (64, False),
    "mobilevit_xxs": (64, False),
    "fastvit_t8": (64, False),
    "efficientvit_b0": (64, False),
    # Mixers and poolers
    "mixer_s32_224": (224, False),
    "resmlp_12_224": (224, False),
    "poolformer_s12": (64, False),
    # Convolutional networks
    "convnext_atto": (64, False),
    "convnextv2_atto": (64, False),
    "resnet18": (64, False),
    "resnet50": (64, False),
    "resnetv2_50": (64, False),
    "efficientnet_b0": (64, False),
    "vgg11_bn": (64, False),
    "densenet121": (64, False),
    "inception_v3": (160, False),
    "mobilenetv3_small_050": (64, False),
    "mobilenetv4_conv_small_050": (64, False),
    "regnetx_002": (64, False),
    "hrnet_w18_small": (64, False),
    "dm_nfnet_f0": (64, False),
    "repvgg_a0": (64, False),
    "ghostnet_050": (64, False),
    "mambaout_femto": (64, False),
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


CHEAP = {
    "integrated_gradients": "integrated_gradients(steps=2)",
    "gradient_shap": "gradient_shap(n=2)",
    "attention_ig": "attention_ig(steps=2)",
    "transition_attention": "transition_attention(steps=2)",
    "bidirectional": "bidirectional(steps=2)",
    "smooth": "smooth(gradient, n=2)",
}


def awake(module: nn.Module) -> nn.Module:
    """The module without parameters that are zero at the start of training: they would hide what lies behind them."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.any():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)
    return module.eval()


def check(module: nn.Module, size: int, has_attention: bool) -> None:
    inputs = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5))
    classes = torch.tensor([1, 2])
    model = load_model(module, batch_size=4)
    before = (snapshot(module), surroundings())
    capabilities = model.structure((size, size)).capabilities
    assert capabilities >= {"gradients", "features"}
    assert ("attention" in capabilities) == has_attention
    plain = model.outputs(inputs)
    trace = model.trace(inputs, features=[-1], attention=has_attention)
    assert (trace.outputs - plain).abs().max() <= 1e-4 * plain.abs().max(), "looking changes nothing"
    features, slopes = features_and_gradients(model, inputs, classes, -1)
    product = (features * slopes).detach()
    assert product.sum(dim=1).abs().max() > 1e-4 * product.abs().sum(dim=1).max(), "a map of rounding noise"
    for name in METHODS:
        method = load_method(CHEAP.get(name, name))
        if method.needs <= capabilities:
            maps = explained(model, inputs, method, classes)
            assert maps.shape == (2, size, size), name
            assert maps.isfinite().all(), name
    assert explained(model, inputs, "gradient", classes).abs().amax(dim=(1, 2)).min() > 0
    assert changes(before[0], snapshot(module)) == []
    assert changes(before[1], surroundings()) == []


def explained(model: Any, inputs: Tensor, method: Any, classes: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MapWarning)  # random weights may have no positive evidence for a class
        return aha.explain(model, inputs, method, classes).maps


@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str) -> None:
    size, has_attention = TIMM[name]
    module = load_model(f"timm:{name}", pretrained=False, input_size=size).module
    check(awake(module), size, has_attention)


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name: str) -> None:
    size, has_attention = TORCHVISION[name]
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

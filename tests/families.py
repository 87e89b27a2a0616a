"""Model families that people use, cut down to a few narrow blocks where their constructors allow it."""

from __future__ import annotations

from typing import Any

import timm
import torch
from torch import nn

CLASSES = 7

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
    "poolformer_s12": (64, False, {}),
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


def built(name: str) -> nn.Module:
    """A family of timm with the random weights of a seed."""
    size, _, cut = TIMM[name]
    torch.manual_seed(0)
    module: nn.Module
    try:
        module = timm.create_model(name, img_size=size, num_classes=CLASSES, **cut)
    except TypeError:  # it takes any size
        module = timm.create_model(name, num_classes=CLASSES, **cut)
    return module


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

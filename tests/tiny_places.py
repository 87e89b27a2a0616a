"""Miniature detectors and segmentation networks of transformers, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

CLASSES = 4
SIDE = 64


def detr() -> nn.Module:
    import transformers as t

    body = t.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = t.DetrConfig(
        use_timm_backbone=False, backbone_config=body, backbone=None, use_pretrained_backbone=False, d_model=16,
        encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
        decoder_ffn_dim=32, num_queries=6, num_labels=CLASSES,
    )  # fmt: skip
    return t.DetrForObjectDetection(config)


def rt_detr() -> nn.Module:
    import transformers as t

    body = t.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1] * 4, layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = t.RTDetrConfig(
        backbone_config=body, encoder_hidden_dim=16, encoder_in_channels=[16, 24, 32], encoder_ffn_dim=32,
        encoder_attention_heads=2, d_model=16, num_queries=12, decoder_in_channels=[16] * 3, decoder_ffn_dim=32,
        decoder_layers=2, decoder_attention_heads=2, num_labels=CLASSES, hidden_expansion=0.5,
    )  # fmt: skip
    return t.RTDetrForObjectDetection(config)


def segformer() -> nn.Module:
    import transformers as t

    config = t.SegformerConfig(
        depths=[1] * 4, hidden_sizes=[8, 16, 16, 16], num_attention_heads=[1, 2, 2, 2], decoder_hidden_size=16,
        num_labels=CLASSES,
    )  # fmt: skip
    return t.SegformerForSemanticSegmentation(config)


def _swin() -> Any:
    import transformers as t

    stages = ["stage1", "stage2", "stage3", "stage4"]
    return t.SwinConfig(
        image_size=SIDE, embed_dim=8, depths=[1] * 4, num_heads=[1, 1, 2, 2], window_size=2, out_features=stages
    )


_QUERIES = {
    "hidden_dim": 32,
    "encoder_feedforward_dim": 32,
    "dim_feedforward": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "num_attention_heads": 2,
    "num_queries": 6,
    "num_labels": CLASSES,
}


def mask2former() -> nn.Module:
    import transformers as t

    config = t.Mask2FormerConfig(backbone_config=_swin(), feature_size=32, mask_feature_size=32, **_QUERIES)
    return t.Mask2FormerForUniversalSegmentation(config)


class WithTask(nn.Module):
    """A OneFormer that is always given the same task."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Any:
        return self.network(images, torch.zeros(len(images), 5, dtype=torch.long))


def oneformer() -> nn.Module:
    import transformers as t

    config = t.OneFormerConfig(
        backbone_config=_swin(), is_training=False, conv_dim=32, mask_dim=32, task_seq_len=5, query_dec_layers=1,
        text_encoder_width=32, text_encoder_num_layers=1, text_encoder_vocab_size=10, text_encoder_context_length=5,
        **_QUERIES,
    )  # fmt: skip
    return WithTask(t.OneFormerForUniversalSegmentation(config))


DETECTORS: dict[str, Callable[[], nn.Module]] = {"detr": detr, "rt_detr": rt_detr}
SEGMENTERS: dict[str, Callable[[], nn.Module]] = {
    "segformer": segformer,
    "mask2former": mask2former,
    "oneformer": oneformer,
}

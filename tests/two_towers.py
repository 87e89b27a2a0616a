"""Miniature models of transformers and open_clip with random weights; a real tokenizer that knows single letters."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from fakes import CLASSES, SIZE, randomised

VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": SIZE,
    "patch_size": 8,
}
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 514,
    "max_position_embeddings": 24,
    "bos_token_id": 512,
    "eos_token_id": 513,
    "pad_token_id": 513,
}


def tiny_clip() -> nn.Module:
    """A CLIP of transformers: class token, projections, one scale."""
    from transformers import CLIPConfig, CLIPModel

    module = randomised(CLIPModel(CLIPConfig(vision_config=VISION, text_config=TEXT, projection_dim=24)))
    return with_scale(module, 2.0)


def tiny_siglip() -> nn.Module:
    """A SigLIP of transformers: attention pooling, no class token, a scale and a shift."""
    from transformers import SiglipConfig, SiglipModel

    module = with_scale(randomised(SiglipModel(SiglipConfig(vision_config=VISION, text_config=TEXT))), 2.0)
    with torch.no_grad():
        module.logit_bias.fill_(-1.5)
    return module


def tiny_classifier() -> nn.Module:
    """A ViT of transformers that knows the names of its classes."""
    from transformers import ViTConfig, ViTForImageClassification

    names = {index: f"kind {index}" for index in range(CLASSES)}
    return randomised(ViTForImageClassification(ViTConfig(**VISION, id2label=names)))


def with_scale(module: Any, value: float) -> Any:
    with torch.no_grad():
        module.logit_scale.fill_(value)
    return module


def tiny_open_clip() -> nn.Module:
    """A CLIP of open_clip."""
    from open_clip.model import CLIP

    vision = {"image_size": SIZE, "patch_size": 8, "width": 32, "layers": 3, "head_width": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
    return with_scale(randomised(CLIP(embed_dim=24, vision_cfg=vision, text_cfg=text)), 2.0)


def tiny_processor() -> Any:
    """CLIP's processor with a tokenizer for single letters, as pictures of 32 pixels need it."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import CLIPImageProcessor, CLIPProcessor, CLIPTokenizer

    letters = sorted(ByteLevel.alphabet())
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    with TemporaryDirectory() as folder:  # files are what tokenizers of all versions of transformers read
        vocabulary, merges = Path(folder) / "vocab.json", Path(folder) / "merges.txt"
        vocabulary.write_text(json.dumps({word: index for index, word in enumerate(words)}))
        merges.write_text("#version: 0.2\n")
        tokenizer = CLIPTokenizer(str(vocabulary), str(merges))
    pictures = CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size={"height": SIZE, "width": SIZE})
    return CLIPProcessor(image_processor=pictures, tokenizer=tokenizer)

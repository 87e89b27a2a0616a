"""Answers of other origin to compare methods with, and how to compare.

Tolerances are shares of the largest value of the expected map.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from aha.methods import load_method
from aha.models import load_model

CHOSEN = torch.tensor([0, 1, 2, 4])


def agrees(ours: Tensor, theirs: Tensor, tolerance: float = 1e-4) -> None:
    assert ours.shape == theirs.shape
    worst = float((ours.double() - theirs.detach().double()).abs().max() / theirs.detach().abs().max())
    assert worst < tolerance, f"off by {worst:.2g} of the largest value"


def native(module: nn.Module, images: Tensor, method: str, classes: Tensor = CHOSEN) -> Tensor:
    """The map at the method's own resolution."""
    return load_method(method)(load_model(module), images, classes).detach()


class Seen:
    """A timm ViT's attention and block outputs, from hooks on its own unfused code."""

    def __init__(self, module: nn.Module, images: Tensor) -> None:
        self.attention: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self.inputs: list[Tensor] = []
        self.normed: list[Tensor] = []
        self.attention_outputs: list[Tensor] = []
        handles = []
        for block in module.blocks:
            block.attn.fused_attn = False
            handles.append(block.attn.attn_drop.register_forward_hook(lambda *call: self.attention.append(call[2])))
            handles.append(block.register_forward_pre_hook(lambda *call: self.inputs.append(call[1][0])))
            handles.append(block.ls1.register_forward_hook(lambda *call: self.attention_outputs.append(call[2])))
            handles.append(block.norm1.register_forward_hook(lambda *call: self.normed.append(call[2])))
            handles.append(block.register_forward_hook(lambda *call: self.outputs.append(call[2])))
        self.logits = module(images)
        for handle in handles:
            handle.remove()
        for block in module.blocks:
            block.attn.fused_attn = True
        self.score = self.logits.gather(1, CHOSEN[:, None]).sum()

    def slope(self, tensor: Tensor) -> Tensor:
        return torch.autograd.grad(self.score, tensor, retain_graph=True)[0]

    def slope_of_last(self) -> Tensor:
        return self.slope(self.attention[-1])


POOLS: dict[str, tuple[dict[str, Any], slice, int]] = {
    "class token": ({}, slice(0, 1), 1),
    "registers": ({"reg_tokens": 3}, slice(0, 1), 4),
    "mean of patches": ({"global_pool": "avg"}, slice(1, None), 1),
}

Vit = tuple[nn.Module, Tensor, Seen, slice, int]


def grid(values: Tensor, prefix: int) -> Tensor:
    return values[:, prefix:].reshape(len(values), 4, 4)

"""Miniature models with known habits, and a way to see whether anything was left behind in them.

Weights are random but large: freshly initialised networks are so nearly linear that wrong code passes unnoticed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

SIZE, CLASSES = 32, 5


def randomised(module: nn.Module, seed: int = 0, gain: float = 1.5) -> nn.Module:
    """The module in evaluation mode with weights and running statistics drawn from a seed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            if not value.is_floating_point():
                continue
            noise = torch.randn(value.shape, generator=generator).to(value)
            if name.endswith("running_var"):
                value.copy_(noise.abs() + 0.5)
            elif value.dim() < 2:  # biases, and norm weights around one
                value.copy_(0.1 * noise + (value.float().mean().round() == 1))
            else:
                value.copy_(noise * gain / value[0].numel() ** 0.5)
    return module.eval()


class Boom(Exception):
    """What a `Fuse` throws."""


class Fuse(nn.Module):
    """Passes its input on, counts, and throws at the n-th call when set."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.blows_at = 0, 0

    def set(self, blows_at: int = 0) -> None:
        self.calls, self.blows_at = 0, blows_at

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.blows_at:
            raise Boom(f"call {self.calls}")
        return x


# Transformers


def tiny_vit(seed: int = 0, **options: Any) -> VisionTransformer:
    """timm's ViT at 32 px: 16 patches, two blocks, two heads."""
    settings = {"img_size": SIZE, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    return randomised(VisionTransformer(**{**settings, "num_classes": CLASSES, **options}), seed)


class Embedding(nn.Module):
    """Patches by convolution, a class token in front, positions added."""

    def __init__(self, width: int = 32, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (SIZE // patch) ** 2 + 1, width))

    def forward(self, x: Tensor) -> Tensor:
        tokens = rearrange(self.patches(x), "b c h w -> b (h w) c")
        return torch.cat([self.token.expand(len(x), -1, -1), tokens], dim=1) + self.positions


class EncoderViT(nn.Module):
    """A home-made ViT around `nn.TransformerEncoder`, which has a fused fast path of its own."""

    def __init__(self, depth: int = 2) -> None:
        super().__init__()
        self.embedding = Embedding()
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, depth)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x))[:, 0])


class SharedBlockViT(nn.Module):
    """One block, applied three times."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding()
        self.block = tiny_vit().blocks[0]
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for _ in range(3):
            x = self.block(x)
        return self.head(x[:, 0])


class PlainAttention(nn.Module):
    """Attention as people write it by hand."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.softmax = nn.Softmax(dim=-1)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rearrange(self.qkv(self.norm(x)), "b t (three h d) -> three b h t d", three=3, h=self.heads)
        weights = self.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5)
        return self.out(rearrange(weights @ v, "b h t d -> b t (h d)"))


class LinearPatchViT(nn.Module):
    """Patches by a linear layer, residual connections outside all modules: no convolution ever shows the grid."""

    def __init__(self, width: int = 32, patch: int = 8, depth: int = 2) -> None:
        super().__init__()
        self.patch = patch
        self.patches = nn.Linear(3 * patch * patch, width)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    PlainAttention(width, 2),
                    nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)),
                ]
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=self.patch, q=self.patch)
        x = torch.cat([self.token.expand(len(x), -1, -1), self.patches(x)], dim=1)
        for attention, mlp in self.layers:
            x = x + attention(x)
            x = x + mlp(x)
        return self.head(x[:, 0])


class InPlaceBlock(nn.Module):
    """Writes into the tokens it was given."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(1, 17, width))
        self.attention = PlainAttention(width, 2)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        x += self.positions
        x = x + self.attention(x)
        return x + self.mlp(x)


class InPlaceViT(nn.Module):
    """A transformer whose blocks begin by changing what the block before has returned."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding()
        self.blocks = nn.Sequential(InPlaceBlock(), InPlaceBlock())
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(x))[:, 0])


# Convolutional networks


class TinyCNN(nn.Module):
    """Two strided stages with batch norm and in-place ReLU, average pooling, one linear layer."""

    def __init__(self, channels: int = 3, classes: int = CLASSES) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.body = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pool(self.body(self.stem(x))).flatten(1))


class FunctionalCNN(nn.Module):
    """The same kind of network with nothing but functional calls around its convolutions."""

    def __init__(self, act: Callable[[Tensor], Tensor] = F.relu) -> None:
        super().__init__()
        self.act = act
        self.first = nn.Conv2d(3, 8, 3, 2, 1)
        self.second = nn.Conv2d(8, 16, 3, 2, 1)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.second(self.act(self.first(x)))).mean(dim=(2, 3)))


class ReusedReluCNN(nn.Module):
    """One ReLU module serves two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, 2, 1)
        self.second = nn.Conv2d(8, 16, 3, 2, 1)
        self.relu = nn.ReLU()
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.second(self.relu(self.first(x)))).mean(dim=(2, 3)))


class FrozenBackboneCNN(TinyCNN):
    """Runs its backbone without gradients, as linear probes do."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.body(self.stem(x))
        return self.head(self.pool(features).flatten(1))


class GreedyCNN(TinyCNN):
    """Normalises its input in place: the caller's tensor, unless somebody takes care."""

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.5).div_(0.25)
        return super().forward(x)


class QueryPoolCNN(nn.Module):
    """Pools by attention, through the functional call and with keywords only, as CLIP's ResNets do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.ReLU())
        self.project = nn.Linear(16, 48)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.body(x).flatten(2).permute(2, 0, 1)  # (T, B, C)
        pooled, _ = F.multi_head_attention_forward(
            query=tokens.mean(dim=0, keepdim=True),
            key=tokens,
            value=tokens,
            embed_dim_to_check=16,
            num_heads=2,
            in_proj_weight=self.project.weight,
            in_proj_bias=self.project.bias,
            bias_k=None,
            bias_v=None,
            add_zero_attn=False,
            dropout_p=0.0,
            out_proj_weight=torch.eye(16),
            out_proj_bias=None,
            training=self.training,
            need_weights=False,
        )
        return self.out(pooled[0])


# Neither


def plain_module() -> nn.Sequential:
    """A perceptron: nothing in it has a spatial layout."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, CLASSES)
    )


class LinearModel(nn.Module):
    """`W x + b`: every gradient is known."""

    def __init__(self, classes: int = CLASSES, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * SIZE * SIZE, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(1))


class Returns(nn.Module):
    """A model whose outputs come in some wrapping."""

    def __init__(self, module: nn.Module, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.module, self.wrap = module, wrap

    def forward(self, x: Tensor) -> Any:
        return self.wrap(self.module(x))


class Hungry(nn.Module):
    """Runs out of memory above a certain batch size."""

    def __init__(self, module: nn.Module, most: int) -> None:
        super().__init__()
        self.module, self.most = module, most
        self.batches: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(len(x))
        if len(x) > self.most:
            raise torch.OutOfMemoryError(f"{len(x)} images do not fit")
        return self.module(x)


# One of each, with a fuse inside


def vit_with_fuse() -> tuple[nn.Module, Fuse]:
    """The tiny ViT with a fuse inside its last block."""
    model, fuse = tiny_vit(), Fuse()
    model.blocks[-1].ls2 = fuse
    return model, fuse


def cnn_with_fuse() -> tuple[nn.Module, Fuse]:
    """The tiny CNN with a fuse inside its last stage."""
    model, fuse = randomised(TinyCNN()), Fuse()
    model.body.insert(1, fuse)
    return model, fuse


def plain_with_fuse() -> tuple[nn.Module, Fuse]:
    """The perceptron with a fuse between its layers."""
    model, fuse = randomised(plain_module()), Fuse()
    model.insert(2, fuse)
    return model, fuse


BUILDERS: dict[str, Callable[[], tuple[nn.Module, Fuse]]] = {
    "vit": vit_with_fuse,
    "cnn": cnn_with_fuse,
    "plain": plain_with_fuse,
}


# Leaving no trace


def snapshot(module: nn.Module) -> dict[str, object]:
    """Everything about a module that a visitor could change, as plain comparable values."""
    seen: dict[str, object] = {}
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        seen[f"{name} value"] = _content(value)
        seen[f"{name} grad"] = None if value.grad is None else _content(value.grad)
        seen[f"{name} flags"] = (value.requires_grad, value.dtype, str(value.device), value._version)
    for name, part in module.named_modules():
        seen[f"{name} training"] = part.training
        seen[f"{name} attributes"] = sorted(part.__dict__)
        seen[f"{name} class"] = type(part)
        for attribute, value in part.__dict__.items():
            if "hook" in attribute:
                seen[f"{name} {attribute}"] = list(value) if hasattr(value, "__iter__") else value
            elif isinstance(value, bool):  # fused_attn and other switches
                seen[f"{name} {attribute}"] = value
    return seen


def surroundings() -> dict[str, object]:
    """The global state that a call must leave alone."""
    return {
        "torch random state": _content(torch.get_rng_state()),
        "numpy random state": str(np.random.get_state()),
        "python random state": random.getstate(),
        "gradients enabled": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "default dtype": torch.get_default_dtype(),
        "function modes": torch._C._len_torch_function_stack(),
        "autocast": torch.is_autocast_enabled("cpu"),
    }


def tensor_state(tensor: Tensor) -> dict[str, object]:
    """What a caller could notice about a tensor."""
    return {
        "value": _content(tensor),
        "requires_grad": tensor.requires_grad,
        "is_leaf": tensor.is_leaf,
        "grad": None if tensor.grad is None else _content(tensor.grad),
    }


def changes(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Names of what differs: an assertion on it reads well."""
    return [key for key in {**before, **after} if before.get(key, KeyError) != after.get(key, KeyError)]


def _content(tensor: Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous().clone()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()

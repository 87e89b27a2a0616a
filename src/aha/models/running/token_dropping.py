"""Running a transformer on some of its patch tokens, as if the others did not exist.

A token acts on others through attention alone. So it is gone if every block's attention to it is zero, what remains
being scaled to sum to one again, which is exactly the softmax over the rest, and if what follows the last block never
sees it. Positions stay what they were, however the model encodes them: no sequence gets shorter before the last block.

Shapes: kept (B, T), true for the tokens that stay, the same number of them for every image.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from aha.models.introspection.attention import AttentionTap
from aha.models.introspection.structure import Structure
from aha.models.running.hooks import at_call, hooked


@contextmanager
def only_tokens(module: nn.Module, structure: Structure, kept: Tensor) -> Iterator[None]:
    """One forward pass of `module` in which only the kept tokens take part."""
    attention_calls = 0
    last = structure.blocks[-1]
    count = int(kept[0].sum())

    def mask(weights: Tensor) -> Tensor:
        nonlocal attention_calls
        attention_calls += 1
        if attention_calls - 1 not in structure.attention:
            return weights
        split = weights.view(len(kept), -1, *weights.shape[-2:])  # heads may be merged into the batch
        split = split * kept[:, None, None, :]
        total = split.sum(dim=-1, keepdim=True)
        return (split / total.clamp(min=torch.finfo(split.dtype).tiny)).view(weights.shape)

    def drop(tokens: Tensor) -> Tensor:
        return tokens[kept].view(len(kept), count, tokens.shape[-1])

    with hooked([(module.get_submodule(last.name), at_call(last.call, drop))]), AttentionTap(mask):
        yield

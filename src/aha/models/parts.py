"""A classifier whose parts can be run on other things than they are used to: tokens, feature maps.

Shapes: images (B, C, H, W) model inputs; tokens (B, T, D); outputs (B, K).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from aha.errors import CapabilityError
from aha.models.blocks import Block, BlockLimits, BlockStates, Step, find_limits, stepped
from aha.models.hooks import autograd, first_tensor, hooked, with_first_tensor
from aha.models.runnable import RunnableModel
from aha.models.structure import Structure


class PartedModel(RunnableModel):
    """A model with a known structure."""

    @abstractmethod
    def structure(self, size: Sequence[int] | None = None) -> Structure:
        """Stages, blocks and attention for inputs of this size."""

    @cached_property
    def _block_limits(self) -> dict[tuple[int, ...], BlockLimits]:
        return {}

    def outputs_by_blocks(self, images: Tensor, step: Step) -> Tensor:
        """Outputs (R, K) when `step(number, tokens, block)` stands in for every transformer block; without a graph.

        The images show the model what comes before and after the blocks. Steps may return other numbers of rows and
        tokens, as long as the head can read them; `block_limits` says what the blocks allow. The cost is counted in
        images' worth of tokens that go through blocks.
        """
        structure, images = self.structure(images.shape[1:]), images.to(self.device)
        with self.undisturbed(), autograd(False), self._autocast(), stepped(self.module, structure, step) as blocks:
            outputs = self._answer(images)
        layout = structure.blocks[0].layout
        one_image = len(structure.blocks) * (layout.prefix + layout.grid[0] * layout.grid[1])
        self.passes["forward"] += -(-sum(block.tokens_seen for block in blocks) // one_image)
        return outputs

    def block_states(self, images: Tensor, *, attention: bool = False) -> BlockStates:
        """Tokens between all blocks and, if asked for, their queries, keys and values, in one pass without a graph."""
        states = BlockStates()
        states.outputs = self.outputs_by_blocks(images, states.record_attention if attention else states.record)
        return states

    def block_limits(self, size: Sequence[int] | None = None) -> BlockLimits:
        """Whether the blocks can be run on any tokens in any order, and with another attention; tried out once."""
        shape = self._input_shape(size)
        if shape not in self._block_limits:
            noise = torch.randn((1, *shape), generator=torch.Generator().manual_seed(2)).to(self.device)
            with self._uncounted():
                found = find_limits(lambda step: self.outputs_by_blocks(noise, step), self.structure(shape))
            self._block_limits[shape] = found
        return self._block_limits[shape]

    def outputs_of_tokens(self, image: Tensor, tokens: Tensor) -> Tensor:
        """Outputs (R, K) when the first block reads `tokens` (R, T', D): some of an image's, say; in chunks.

        Only these go through the blocks, so that half of the tokens take half of the time. A model whose blocks know
        the places of their tokens is refused.
        """
        refusal = self.block_limits(image.shape[1:]).tokens
        if refusal:
            raise CapabilityError(f"{self.spec} cannot be run on some of its tokens: {refusal}")

        def run(part: slice) -> Tensor:
            def step(index: int, before: Tensor, block: Block) -> Tensor:
                return block(tokens[part] if index == 0 else before)

            return self.outputs_by_blocks(image[:1], step)

        return torch.cat(self.chunks.run(run, len(tokens)))

    def outputs_from_features(self, images: Tensor, stage: int, features: Tensor) -> Tensor:
        """Outputs (B, K) when a stage gives `features` (B, C, h, w) instead of its own for these images; no graph."""
        site = self.structure(images.shape[1:]).stages[stage]
        calls = 0

        def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
            nonlocal calls
            calls += 1
            raw = first_tensor(output)
            if calls - 1 != site.call or raw is None:
                return None
            return with_first_tensor(output, site.layout.from_map(features.to(raw), raw))

        part = dict(self.module.named_modules())[site.name]
        self.passes["forward"] += len(images)
        with self.undisturbed(), autograd(False), self._autocast(), hooked([(part, hook)]):
            return self._forward(images.to(self.device))

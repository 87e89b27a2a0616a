"""A classifier whose parts can be run on other things than they are used to: tokens, feature maps.

Shapes: images (B, C, H, W) model inputs; tokens (B, T, D); outputs (B, K).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.errors import CapabilityError, ModelError
from aha.models.blocks import Block, BlockLimits, BlockStates, Step, find_limits, stepped
from aha.models.dropping import only_tokens
from aha.models.hooks import autograd
from aha.models.memory import is_out_of_memory
from aha.models.runnable import RunnableModel
from aha.models.structure import Structure
from aha.models.tracing import replaced_features


class PartedModel(RunnableModel):
    """A model with a known structure."""

    @abstractmethod
    def structure(self, size: Sequence[int] | None = None) -> Structure:
        """Stages, blocks and attention for inputs of this size."""

    @abstractmethod
    def features(self, images: Tensor, stages: Sequence[int]) -> tuple[list[Tensor], Tensor]:
        """Maps (B, C, h, w) of the given stages and the outputs (B, K), in one pass without a graph."""

    @cached_property
    def _restarts(self) -> dict[tuple[int, ...], bool]:
        return {}

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
            with self._probing():
                found = find_limits(
                    lambda step: self.outputs_by_blocks(noise, step), self.structure(shape), self._rounding
                )
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

    def outputs_of_kept_tokens(self, images: Tensor, kept: Tensor) -> Tensor:
        """Outputs (B, K) with the patch tokens outside `kept` (B, N) dropped before the first block; without a graph.

        Prefix tokens, such as the class token, always stay.
        """
        structure = self.structure(images.shape[1:])
        prefix = structure.blocks[0].layout.prefix
        kept = F.pad(kept.to(self.device), (prefix, 0), value=True)  # (B, T)
        images, counts = images.to(self.device), kept.sum(dim=1)
        self.passes["forward"] += len(images)
        outputs: Tensor | None = None
        with self.undisturbed(), autograd(False), self._autocast():
            for count in sorted(set(counts.tolist())):
                alike = (counts == count).nonzero()[:, 0]

                def run(part: slice, alike: Tensor = alike) -> Tensor:
                    with only_tokens(self.module, structure, kept[alike[part]]):
                        return self._forward(images[alike[part]])

                found = torch.cat(self.chunks.run(run, len(alike)))
                outputs = found.new_zeros(len(images), found.shape[1]) if outputs is None else outputs
                outputs[alike] = found
        assert outputs is not None
        return outputs

    def outputs_from_features(self, image: Tensor, stage: int, maps: Tensor) -> Tensor:
        """Outputs (m, K) for one image (C, H, W) when the stage returns each of `maps` (m, C, h, w) instead of its own.

        What lies before the stage is run once for all of them, wherever the model's later part takes the larger batch.
        """
        key = (*image.shape, stage)
        if key not in self._restarts:
            self._restarts[key] = self._can_restart(image.shape, stage)
        copies = 1 if self._restarts[key] else len(maps)
        self.passes["forward"] += copies
        return self._outputs_from_features(image.expand(copies, *image.shape), stage, maps)

    def _outputs_from_features(self, images: Tensor, stage: int, maps: Tensor) -> Tensor:
        site = self.structure(images.shape[1:]).stages[stage]
        with (
            self.undisturbed(),
            autograd(False),
            self._autocast(),
            replaced_features(self.module, site, maps),
        ):
            return self._forward(images.to(self.device), rows=len(maps))

    def _can_restart(self, shape: Sequence[int], stage: int) -> bool:
        """Does one image whose stage returns a batch of maps give the same outputs as a batch of images does?"""
        noise = torch.randn((3, *shape), generator=torch.Generator().manual_seed(2)).to(self.device)
        with self._probing():
            (maps,), _ = self.features(noise, [stage])
            expected = self._outputs_from_features(noise[:1].expand_as(noise), stage, maps)
            try:
                found = self._outputs_from_features(noise[:1], stage, maps)
            except (RuntimeError, ValueError, IndexError, ModelError) as error:
                if is_out_of_memory(error):
                    raise
                return False
        return bool((found - expected).abs().max() <= self._rounding * expected.abs().max())

"""Running parts of a model on other things than they are used to: tokens, feature maps.

Shapes: images (B, C, H, W) model inputs; tokens (B, T, D); outputs (B, K).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.errors import CapabilityError, ModelError
from aha.models.introspection.anatomy import InspectedModel
from aha.models.introspection.structure import Structure
from aha.models.running.blocks import Block, BlockLimits, BlockStates, Step, find_limits, stepped
from aha.models.running.hooks import autograd
from aha.models.running.memory import is_out_of_memory
from aha.models.running.passes import features_of, outputs_from_tokens
from aha.models.running.runnable import RunnableModel
from aha.models.running.token_dropping import only_tokens
from aha.models.tracing import replaced_features


class Toll:
    """Counts tokens that go through a model's blocks as images: one as soon as its worth of tokens is begun."""

    def __init__(self, model: RunnableModel, tokens: int) -> None:
        """`tokens` make up an image: its sequence, once for every block."""
        self._model, self._tokens, self._seen = model, tokens, 0

    def __call__(self, tokens: int) -> None:
        """So many are about to go through a block."""
        paid, self._seen = -(-self._seen // self._tokens), self._seen + tokens
        due = -(-self._seen // self._tokens) - paid
        if due:
            self._model.spend("forward", due)


class DivisibleModel(InspectedModel):
    """A model of which parts can be run. What they can do is tried out once for each input shape (C, H, W)."""

    def outputs_from_tokens(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Outputs (B, K) when the last block returns `tokens` (B, T, D); differentiable in them."""
        return outputs_from_tokens(self, self.structure(images.shape[1:]), images, tokens)

    def mean_output_of_tokens(self, images: Tensor, tokens: Tensor) -> Tensor:
        """The mean (B, K) over tokens (B, T, D) of the outputs that the model's norm and head give to each alone.

        Differentiable in the tokens. For a linear head this is the head of the mean of normalised tokens.
        """
        shape = tuple(images.shape[1:])
        if shape not in self._findings.reads_few_tokens:
            self._findings.reads_few_tokens[shape] = self._can_read_few_tokens(images[:1], tokens[:1, :2].detach())
        return self._mean_output_of_tokens(images, tokens, in_short=self._findings.reads_few_tokens[shape])

    def _mean_output_of_tokens(self, images: Tensor, tokens: Tensor, *, in_short: bool) -> Tensor:
        """By sequences of one token again and again: in short ones for one image, or as long as the model's own."""
        structure, (count, width) = self.structure(images.shape[1:]), tokens.shape[1:]
        layout = structure.blocks[0].layout
        length = layout.prefix + (1 if in_short else prod(layout.grid))
        alike = tokens.reshape(-1, 1, width).expand(-1, length, -1)  # (B T, length, D)
        shown = images.to(self.device)
        shown = shown if in_short else shown.repeat_interleave(count, dim=0)

        def hand_in(index: int, before: Tensor, _block: object) -> Tensor:
            return alike if index == 0 else before

        with self.undisturbed(), autograd(tokens.requires_grad), stepped(self.module, structure, hand_in):
            outputs = self.forward(shown, rows=len(alike))
        return outputs.view(-1, count, *outputs.shape[1:]).mean(dim=1)

    def _can_read_few_tokens(self, image: Tensor, tokens: Tensor) -> bool:
        with self.probing():
            expected = self._mean_output_of_tokens(image, tokens, in_short=False)
            return self._gives(expected, lambda: self._mean_output_of_tokens(image, tokens, in_short=True))

    def _gives(self, expected: Tensor, attempt: Callable[[], Tensor]) -> bool:
        """Does another way to the same outputs work?"""
        try:
            return self.are_alike(attempt(), expected)
        except (RuntimeError, ValueError, IndexError, ModelError) as error:
            if is_out_of_memory(error):
                raise
            return False

    def toll(self, size: Sequence[int]) -> Toll:
        """Of images (C, H, W) of this size; handed to several passes, it counts what they come to together."""
        structure = self.structure(size)
        layout = structure.blocks[0].layout
        return Toll(self, len(structure.blocks) * (layout.prefix + prod(layout.grid)))

    def outputs_by_blocks(self, images: Tensor, step: Step, toll: Toll | None = None) -> Tensor:
        """Outputs (R, K) when `step(number, tokens, block)` stands in for every transformer block; without a graph.

        The images show the model what comes before and after the blocks. Steps may return other numbers of rows and
        tokens, as long as the head can read them; `block_limits` says what the blocks allow. The cost is counted in
        images' worth of tokens that go through blocks: by `toll`, for those who ask in chunks.
        """
        structure, images = self.structure(images.shape[1:]), images.to(self.device)
        pay = toll or self.toll(images.shape[1:])
        with self.without_graph(), stepped(self.module, structure, step, pay):
            return self.answer(images)

    def block_states(self, images: Tensor, *, attention: bool = False) -> BlockStates:
        """Tokens between all blocks and, if asked for, their queries, keys and values, in one pass without a graph."""
        states = BlockStates()
        states.outputs = self.outputs_by_blocks(images, states.record_attention if attention else states.record)
        return states

    def block_limits(self, size: Sequence[int] | None = None) -> BlockLimits:
        """Whether the blocks can be run on any tokens in any order, and with another attention; tried out once."""
        return self._once(self._findings.block_limits, size, self._find_block_limits)

    def _find_block_limits(self, shape: tuple[int, ...]) -> BlockLimits:
        noise = torch.randn((1, *shape), generator=torch.Generator().manual_seed(2)).to(self.device)
        with self.probing():
            return find_limits(lambda step: self.outputs_by_blocks(noise, step), self.structure(shape), self.are_alike)

    def outputs_of_tokens(self, image: Tensor, tokens: Tensor) -> Tensor:
        """Outputs (R, K) when the first block reads `tokens` (R, T', D): some of an image's, say; in chunks.

        Only these go through the blocks, so that half of the tokens take half of the time. A model whose blocks know
        the places of their tokens is refused.
        """
        refusal = self.block_limits(image.shape[1:]).tokens
        if refusal:
            raise CapabilityError(f"{self.spec} cannot be run on some of its tokens: {refusal}")
        toll = self.toll(image.shape[1:])

        def run(part: slice) -> Tensor:
            def step(index: int, before: Tensor, block: Block) -> Tensor:
                return block(tokens[part] if index == 0 else before)

            return self.outputs_by_blocks(image[:1], step, toll)

        return torch.cat(self.chunks.run(run, len(tokens)))

    def outputs_of_kept_tokens(self, images: Tensor, kept: Tensor) -> Tensor:
        """Outputs (B, K) with the patch tokens outside `kept` (B, N) dropped before the first block; without a graph.

        Prefix tokens, such as the class token, always stay. Where blocks can be run on any tokens, the others are left
        out, and cost nothing; elsewhere attention does not see them.
        """
        structure = self.structure(images.shape[1:])
        prefix = structure.blocks[0].layout.prefix
        kept = F.pad(kept.to(self.device), (prefix, 0), value=True)  # (B, T)
        images, counts = images.to(self.device), kept.sum(dim=1)
        run = self._masked_run(structure, images, kept)
        if not self.block_limits(images.shape[1:]).tokens:
            run = self._shortened_run(images, kept)
        outputs: Tensor | None = None
        for count in sorted(set(counts.tolist())):
            alike = (counts == count).nonzero()[:, 0]

            def some(part: slice, alike: Tensor = alike) -> Tensor:
                return run(alike[part])

            found = torch.cat(self.chunks.run(some, len(alike)))
            outputs = found.new_zeros(len(images), found.shape[1]) if outputs is None else outputs
            outputs[alike] = found
        assert outputs is not None
        return outputs

    def _shortened_run(self, images: Tensor, kept: Tensor) -> Callable[[Tensor], Tensor]:
        """Outputs of some rows, of which all keep as many tokens, by sequences of these alone."""
        toll = self.toll(images.shape[1:])

        def run(rows: Tensor) -> Tensor:
            def step(index: int, before: Tensor, block: Block) -> Tensor:
                return block(before[kept[rows]].view(len(rows), -1, before.shape[-1]) if index == 0 else before)

            return self.outputs_by_blocks(images[rows], step, toll)

        return run

    def _masked_run(self, structure: Structure, images: Tensor, kept: Tensor) -> Callable[[Tensor], Tensor]:
        """The same by whole sequences, in which no token attends to those that are not kept."""

        def run(rows: Tensor) -> Tensor:
            self.spend("forward", len(rows))
            with self.without_graph(), only_tokens(self.module, structure, kept[rows]):
                return self.forward(images[rows])

        return run

    def outputs_from_features(self, image: Tensor, stage: int, maps: Tensor) -> Tensor:
        """Outputs (m, K) for one image (C, H, W) when the stage returns each of `maps` (m, C, h, w) instead of its own.

        What lies before the stage is run once for all of them, wherever the model's later part takes the larger batch.
        """
        key = (*image.shape, stage)
        if key not in self._findings.restarts:
            self._findings.restarts[key] = self._can_restart(image.shape, stage)
        copies = 1 if self._findings.restarts[key] else len(maps)
        self.spend("forward", copies)
        return self._outputs_from_features(image.expand(copies, *image.shape), stage, maps)

    def _outputs_from_features(self, images: Tensor, stage: int, maps: Tensor) -> Tensor:
        site = self.structure(images.shape[1:]).site(stage)
        with self.without_graph(), replaced_features(self.module, site, maps):
            return self.forward(images.to(self.device), rows=len(maps))

    def _can_restart(self, shape: Sequence[int], stage: int) -> bool:
        """Does one image whose stage returns a batch of maps give the same outputs as a batch of images does?"""
        noise = torch.randn((3, *shape), generator=torch.Generator().manual_seed(2)).to(self.device)
        with self.probing():
            (maps,), _ = features_of(self, self.structure(shape), noise, [stage])
            expected = self._outputs_from_features(noise[:1].expand_as(noise), stage, maps)
            return self._gives(expected, lambda: self._outputs_from_features(noise[:1], stage, maps))

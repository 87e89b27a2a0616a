"""Transformer blocks run on other tokens than the model's own: fewer, replaced, or with another attention.

While `stepped` is active, the model's own forward pass still does all that comes before and after the blocks; in place
of each block a `Step` is called, which may run the block's own forward on whatever tokens it likes.

Shapes: tokens (B, T, D); queries, keys and values (B, h, T, d), the queries already scaled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from aha.errors import CapabilityError, ModelError
from aha.models.introspection.attention import Attend, AttentionSwap
from aha.models.introspection.structure import Structure
from aha.models.running.hooks import first_tensor, swapped_forward
from aha.models.running.memory import is_out_of_memory


class Block:
    """One block of the running model, with whatever else the model hands to it besides tokens."""

    def __init__(self, forward: Callable[[Tensor], Any], announce: Callable[[int], None]) -> None:
        self._forward, self._announce = forward, announce

    def __call__(self, tokens: Tensor, attend: Attend | None = None) -> Tensor:
        """What the block makes of tokens (B, T, D); `attend` does the mixing in place of its own attention."""
        self._announce(tokens.shape[0] * tokens.shape[1])
        with nullcontext() if attend is None else AttentionSwap(attend):
            result = first_tensor(self._forward(tokens.clone()))  # a copy: a block may work in place
        assert result is not None
        return result


Step = Callable[[int, Tensor, Block], Tensor]
"""The number of the block, from 0, the tokens that reach it and the block itself -> the tokens that leave."""


@dataclass
class BlockStates:
    """All that blocks hand on during a forward pass.

    Attributes:
        tokens: the input of every block, then the output of the last, each (B, T, D).
        queries, keys, values: what the attention of every block mixes, each (B, h, T, d), if asked for.
        outputs: of the model (B, K).
    """

    tokens: list[Tensor] = field(default_factory=list)
    queries: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    outputs: Tensor = field(default_factory=lambda: torch.empty(0))

    def record(self, index: int, tokens: Tensor, block: Block) -> Tensor:
        """The step that changes nothing and keeps the tokens."""
        return self._keep(index, tokens, block(tokens))

    def record_attention(self, index: int, tokens: Tensor, block: Block) -> Tensor:
        """The step that changes nothing and keeps the tokens and what attention mixes."""

        def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self.queries.append(queries)
            self.keys.append(keys)
            self.values.append(values)
            return (queries @ keys.transpose(-2, -1)).softmax(dim=-1) @ values

        return self._keep(index, tokens, block(tokens, attend))

    def _keep(self, index: int, before: Tensor, after: Tensor) -> Tensor:
        if index == 0:
            self.tokens.append(before)
        self.tokens.append(after)
        return after


@contextmanager
def stepped(
    module: nn.Module, structure: Structure, step: Step, announce: Callable[[int], None] = lambda tokens: None
) -> Iterator[None]:
    """Calls `step` in place of every block, for the duration of one forward pass.

    `announce` is told how many tokens are about to go through a block.
    """
    parts = dict(module.named_modules())
    numbers = count()

    def stand_in(original: Callable[..., Any], in_tuple: bool) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if args:
                tokens, block = args[0], Block(lambda x: original(x, *args[1:], **kwargs), announce)
            else:
                name, tokens = next((name, value) for name, value in kwargs.items() if isinstance(value, Tensor))
                block = Block(lambda x: original(**{**kwargs, name: x}), announce)
            result = step(next(numbers), tokens, block)
            return (result,) if in_tuple else result

        return forward

    sites = {site.name: site for site in structure.blocks}  # one entry for a block that is used again and again
    forwards = {parts[name]: stand_in(parts[name].forward, site.in_tuple) for name, site in sites.items()}
    with swapped_forward(forwards):
        yield


@dataclass(frozen=True)
class BlockLimits:
    """Why the blocks cannot be run on any tokens in any order, or with another attention; empty where they can."""

    tokens: str = ""
    attention: str = ""


def find_limits(
    run: Callable[[Step], Tensor], structure: Structure, are_alike: Callable[[Tensor, Tensor], bool]
) -> BlockLimits:
    """Tries it out: `run` is a forward pass of one image with a step in place of its blocks."""

    def same(found: Tensor, expected: Tensor) -> bool:
        return found.shape == expected.shape and are_alike(found, expected)

    plain = BlockStates()
    run(plain.record)
    layout = structure.blocks[0].layout
    whole = torch.arange(layout.prefix + layout.grid[0] * layout.grid[1])
    shuffled = torch.cat([whole[: layout.prefix], whole[layout.prefix :].flip(0)])
    places = "its blocks know the places of their tokens (rotary or relative positions)"

    def in_order(order: Tensor) -> Step:
        def step(index: int, tokens: Tensor, block: Block) -> Tensor:
            if index == 0:  # two rows for one image, as many tokens as the order names
                tokens = tokens[:, order].repeat(2, 1, 1)
            kept.tokens.append(block(tokens))
            return kept.tokens[-1]

        return step

    kept = BlockStates()
    why_tokens = _refusal(lambda: run(in_order(shuffled)), "its blocks or its head expect all tokens of one image")
    if not why_tokens:
        why_tokens = "" if same(kept.tokens[-1][:1], plain.tokens[-1][:, shuffled]) else places
    why_tokens = why_tokens or _refusal(
        lambda: run(in_order(whole[: layout.prefix + 2])), "its blocks or its head expect all tokens of one image"
    )
    opened = BlockStates()
    why_attention = _refusal(lambda: run(opened.record_attention), "its attention cannot be replaced")
    if not why_attention and not same(opened.tokens[-1], plain.tokens[-1]):
        why_attention = "its attention does more than to mix values"
    return BlockLimits(why_tokens, why_tokens or why_attention)


def _refusal(attempt: Callable[[], object], reason: str) -> str:
    try:
        attempt()
    except CapabilityError as error:
        return str(error)
    except (ModelError, RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
        if is_out_of_memory(error):
            raise
        return reason
    return ""

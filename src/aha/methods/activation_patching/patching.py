"""Activation patching in a transformer: a few tokens of one image in the run of another.

For each of N copies, the tokens of one neighbourhood come from a source run, all others from a blank run, and the
tokens that the head reads ("readers", as a rule the class token) find out what follows.

Symbols: L blocks; h^l, l = 0 ... L, the tokens (T, D) before block l + 1; S(i) the places of copy i's neighbourhood, at
most s of them; R readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aha.models import Block, BlockStates, TargetModel

Neighbourhood = Literal["none", "3x3", "5x5", "manhattan"]


def neighbours(grid: tuple[int, int], kind: Neighbourhood) -> Tensor:
    """Which patches (N, N) belong to the neighbourhood of each patch, cut at the border."""
    rows, columns = torch.meshgrid(*(torch.arange(side) for side in grid), indexing="ij")
    down, across = (
        (place.flatten()[:, None] - place.flatten()[None]).abs() for place in (rows, columns)
    )  # (N, N) each
    if kind == "manhattan":
        return down + across <= 1
    return torch.maximum(down, across) <= {"none": 0, "3x3": 1, "5x5": 2}[kind]


@dataclass(frozen=True)
class Patching:
    """Who is replaced, and from where to where.

    Attributes:
        inside: tokens (N, T) of each copy's neighbourhood, S(i).
        readers: tokens (R,) that are followed through every block.
        prefix: how many tokens stand for no place.
        first, last: states h^first ... h^last of the neighbourhood come from the source.
        live: after `last`, the neighbourhood follows from the copy itself; else it stays that of the source.
        all_live: after `last`, all tokens do, because the head reads places too.
    """

    inside: Tensor
    readers: Tensor
    prefix: int
    first: int
    last: int
    live: bool
    all_live: bool = False

    @property
    def places(self) -> Tensor:
        """Indices (N, s) of the tokens of S(i), filled up with any where there are fewer."""
        return self.inside.int().sort(dim=1, descending=True, stable=True).indices[:, : self._most]

    @property
    def exists(self) -> Tensor:
        """Which of the `places` (N, s) are meant."""
        return torch.arange(self._most, device=self.inside.device) < self.inside.sum(dim=1, keepdim=True)

    @property
    def _most(self) -> int:
        return int(self.inside.sum(dim=1).max())


def patchwise(model: TargetModel, image: Tensor, source: BlockStates, blank: BlockStates, patching: Patching) -> Tensor:
    """Outputs (N, K) with whole sequences of tokens, one for each copy: slow, and right by construction."""
    depth = len(source.tokens) - 1
    readers = patching.readers[patching.readers < patching.prefix] if patching.all_live else patching.readers
    toll = model.toll(image.shape[1:])

    def run(part: slice) -> Tensor:
        inside = patching.inside[part, :, None]  # (n, T, 1)

        def mixed(level: int, tokens: Tensor) -> Tensor:
            """The states h^level, from those that the blocks would give."""
            result = blank.tokens[level].expand(len(inside), -1, -1).clone()
            result[:, readers] = tokens[:, readers]
            if patching.all_live and level > patching.last:
                result = tokens
            follows = patching.live and level > patching.last
            return torch.where(inside, tokens if follows else source.tokens[level], result)

        def step(index: int, tokens: Tensor, block: Block) -> Tensor:
            # Without a followed token, nothing before `last` depends on what came before it.
            start = patching.first if len(readers) else min(patching.last, depth - 1)
            if index < start:
                return tokens
            if index == start:
                tokens = blank.tokens[index].expand(len(inside), -1, -1)
            after = block(mixed(index, tokens))
            return mixed(depth, after) if index + 1 == depth == patching.last else after

        return model.outputs_by_blocks(image, step, toll)

    return torch.cat(model.chunks.run(run, len(patching.inside)))

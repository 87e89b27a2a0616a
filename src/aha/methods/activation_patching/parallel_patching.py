"""Activation patching of all places in one pass: the followed tokens of every copy, and keys and values known before.

Symbols as in `patching`; each of the n copies is a group of g tokens, E tokens are not followed, h heads of width d.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from einops import rearrange
from torch import Tensor

from aha.methods.activation_patching.patching import Patching
from aha.models import Block, BlockStates, TargetModel

Prototype = Literal["attended", "mean"]
"""The one value of all blank tokens: as the blank run's query weighs them, or their plain mean."""


@dataclass(frozen=True)
class Summary:
    """What E-CAAP knows of the blank run (eq. 8-9).

    Attributes:
        totals: per block, the log of the sum over all blank keys, for every query (h, T).
        prototypes: per block, the one blank value, for every query (h, T, d).
        is_weighted: whether it is as the query weighs the values, so that those of a neighbourhood can be taken out.
    """

    totals: list[Tensor]
    prototypes: list[Tensor]
    is_weighted: bool

    @classmethod
    def of(cls, blank: BlockStates, others: Tensor, prototype: Prototype) -> Summary:
        """Sums over the tokens `others` (E,) of the blank run."""
        totals, prototypes = [], []
        for queries, keys, values in zip(blank.queries, blank.keys, blank.values, strict=True):
            logits = queries[0] @ keys[0, :, others].transpose(-2, -1)  # (h, T, E)
            weights = logits.softmax(dim=-1) if prototype == "attended" else torch.full_like(logits, 1 / len(others))
            totals.append(logits.logsumexp(dim=-1))
            prototypes.append(weights @ values[0, :, others])
        return cls(totals, prototypes, prototype == "attended")


def parallel(
    model: TargetModel,
    image: Tensor,
    source: BlockStates,
    blank: BlockStates,
    patching: Patching,
    *,
    prototype: Prototype | None = None,
) -> Tensor:
    """Outputs (N, K) with the readers of all copies in one sequence, and keys and values that are already known.

    With a `prototype`, all blank tokens together are one key and one value (E-CAAP).
    """
    num_tokens = source.tokens[0].shape[1]
    everything = torch.arange(num_tokens, device=image.device)
    others = everything[~torch.isin(everything, patching.readers)]  # (E,): tokens that are not followed
    summary = None if prototype is None else Summary.of(blank, others, prototype)
    places, exists = patching.places, patching.exists  # (N, s)
    # A copy has few tokens: as many of them as make up an image count as one image.
    bundle = max(1, num_tokens // (len(patching.readers) + places.shape[1]))
    toll = model.toll(image.shape[1:])

    def run(part: slice) -> Tensor:
        chosen = slice(part.start * bundle, part.stop * bundle)
        hidden = patching.inside[chosen][:, others]
        copies = Copies(source, blank, patching, places[chosen], exists[chosen], others, hidden, summary)
        return model.outputs_by_blocks(image, copies.step, toll)

    return torch.cat(model.chunks.run(run, -(-len(places) // bundle)))


@dataclass(frozen=True)
class Copies:
    """Some of the copies, n of them, as one sequence: each is a group of g tokens, its readers and perhaps its S(i).

    Attributes:
        near, real: places of S(i) (n, s), and which of them are meant.
        others: tokens (E,) that are not followed.
        hidden: which of the others (n, E) lie in S(i), so that their blank form is not seen.
        summary: for E-CAAP.
    """

    source: BlockStates
    blank: BlockStates
    patching: Patching
    near: Tensor
    real: Tensor
    others: Tensor
    hidden: Tensor
    summary: Summary | None

    def step(self, index: int, tokens: Tensor, block: Block) -> Tensor:
        """What stands in for block `index`."""
        count, readers = len(self.near), self.patching.readers
        if index < self.patching.first:
            return tokens
        if index == self.patching.first:
            tokens = self.blank.tokens[index][:, readers].repeat(1, count, 1)  # (1, n R, D)
        if self.patching.live and index == self.patching.last:
            groups = tokens.view(count, len(readers), -1)
            tokens = torch.cat([groups, self.source.tokens[index][0, self.near]], dim=1).flatten(0, 1)[None]
        after = block(tokens, partial(self._attend, index))  # (1, n g, D)
        return after if index + 2 < len(self.blank.tokens) else self._ending(after)

    def _ending(self, tokens: Tensor) -> Tensor:
        """For the head, one row for each copy: the tokens without a place, the readers among them (n, P, D)."""
        count, readers = len(self.near), self.patching.readers
        result = self.blank.tokens[-1][:, : self.patching.prefix].repeat(count, 1, 1)
        result[:, readers] = tokens.view(count, -1, tokens.shape[-1])[:, : len(readers)]
        return result

    def _attend(self, index: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of each group to itself, to the source inside S(i) unless it is in the group, to blank outside."""
        q, k, v = (rearrange(x, "1 h (n g) d -> h n g d", n=len(self.near)) for x in (queries, keys, values))
        is_inside_group = self.patching.live and index >= self.patching.last
        if not is_inside_group:
            k = torch.cat([k, self.source.keys[index][0, :, self.near]], dim=2)  # (h, n, R + s, d)
            v = torch.cat([v, self.source.values[index][0, :, self.near]], dim=2)
        followed = self.patching.readers.expand(len(self.near), -1)  # (n, R)
        is_key = torch.cat([torch.ones_like(followed, dtype=torch.bool), self.real], dim=1)  # (n, R + s)
        logits = (q @ k.transpose(-2, -1)).masked_fill(~is_key[:, None], -torch.inf)  # (h, n, g, R + s)
        if self.summary is None:
            far = self._to_blank(index, q)  # (h, n, g, E)
        else:
            asking = torch.cat([followed, self.near], dim=1) if is_inside_group else followed  # (n, g)
            far, seen = self._to_summary(self.summary, index, asking)  # (h, n, g, 1), (h, n, g, d)
        weights = torch.cat([logits, far], dim=-1).softmax(dim=-1)
        inner, outer = weights[..., : k.shape[2]], weights[..., k.shape[2] :]
        if self.summary is None:
            rest = (outer.flatten(1, 2) @ self.blank.values[index][0, :, self.others]).view_as(q)
        else:
            rest = outer * seen
        mixed: Tensor = rearrange(inner @ v + rest, "h n g d -> 1 h (n g) d")
        return mixed

    def _to_blank(self, index: int, q: Tensor) -> Tensor:
        """Logits (h, n, g, E) of the queries (h, n, g, d) towards the blank tokens that are seen."""
        logits = q.flatten(1, 2) @ self.blank.keys[index][0, :, self.others].transpose(-2, -1)  # (h, n g, E)
        return logits.view(*q.shape[:3], -1).masked_fill(self.hidden[:, None], -torch.inf)

    def _to_summary(self, summary: Summary, index: int, asking: Tensor) -> tuple[Tensor, Tensor]:
        """Log Z_0 (h, n, g, 1) and value (h, n, g, d) of the blank tokens that are seen.

        Both by the blank run's queries at `asking` (n, g). Eq. 8 sums over j outside S(i), yet calls the sum fixed: it
        is the fixed sum over all minus those inside.
        """
        total = summary.totals[index][:, asking]  # (h, n, g)
        keys = self.blank.keys[index][0, :, self.near]  # (h, n, s, d)
        inside = self.blank.queries[index][0, :, asking] @ keys.transpose(-2, -1)  # (h, n, g, s)
        shares = (inside - total[..., None]).exp().masked_fill(~self.real[:, None], 0)  # (h, n, g, s)
        left = (1 - shares.sum(dim=-1)).clamp(min=1e-6)  # (h, n, g)
        value = summary.prototypes[index][:, asking]  # (h, n, g, d)
        if summary.is_weighted:
            value = (value - shares @ self.blank.values[index][0, :, self.near]) / left[..., None]
        return (total + left.log())[..., None], value

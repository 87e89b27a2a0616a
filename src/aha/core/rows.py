"""Which rows of a tensor are the same: what has been computed for one of them need not be computed for the others."""

from __future__ import annotations

import torch
from torch import Tensor

_SEED = 20260731
_GLANCE = 64  # values of a row that are looked at first


def fingerprints(values: Tensor) -> Tensor:
    """Two whole numbers (B, 2) per row of (B, ...) that almost surely differ unless the rows are bitwise equal.

    Random sums of the bits, modulo 2^64, taken where the tensor lives: no copy to the CPU, no sorting of long rows.
    """
    flat = values.detach().reshape(len(values), -1).contiguous()
    bits = flat.view(torch.int16 if flat.element_size() == 2 else torch.int32).long()  # (B, n)
    generator = torch.Generator().manual_seed(_SEED)
    low, high = -(2**63), 2**63 - 1
    weights = torch.randint(low, high, (bits.shape[1], 2), generator=generator).to(bits.device)
    return torch.stack([(bits * weights[:, side]).sum(dim=1) for side in (0, 1)], dim=1)


def distinct_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """Positions (U,) of the first row of each kind, in order, and which of them (B,) each row equals."""
    few = values.detach().flatten(1)[:, :: max(1, values[0].numel() // _GLANCE)]  # rows that differ here differ
    if len(values) == 1 or len(torch.unique(few, dim=0)) == len(values):
        every = torch.arange(len(values), device=values.device)
        return every, every
    firsts: dict[tuple[int, ...], int] = {}
    owners = [firsts.setdefault(tuple(key), row) for row, key in enumerate(fingerprints(values).tolist())]
    kinds = {row: kind for kind, row in enumerate(firsts.values())}
    where = torch.tensor([kinds[owner] for owner in owners], device=values.device)
    return torch.tensor(list(kinds), device=values.device), where


def matching_rows(values: Tensor, known: Tensor) -> Tensor:
    """For each row (B, ...) the row of `known` (U, ...) that it equals, or -1; as a tensor (B,)."""
    if values.shape[1:] != known.shape[1:] or values.dtype != known.dtype:
        return torch.full((len(values),), -1, device=values.device)
    if len(values) == len(known) and (values.is_set_to(known) or torch.equal(values, known)):
        return torch.arange(len(values), device=values.device)
    stride = max(1, values[0].numel() // _GLANCE)
    ours, theirs = (tensor.flatten(1)[:, ::stride] for tensor in (values, known))
    alike = (ours[:, None] == theirs[None]).all(dim=-1)  # (B, U)
    found = [-1] * len(values)
    for row, kind in alike.nonzero().tolist():
        if found[row] < 0 and torch.equal(values[row], known[kind]):
            found[row] = kind
    return torch.tensor(found, device=values.device)


def occurrences(where: Tensor) -> list[Tensor]:
    """Row positions in rounds: the first row of each kind, then the second of each that has one, and so on."""
    seen: dict[int, int] = {}
    rounds: list[list[int]] = []
    for row, kind in enumerate(where.tolist()):
        turn = seen.get(kind, 0)
        seen[kind] = turn + 1
        if turn == len(rounds):
            rounds.append([])
        rounds[turn].append(row)
    return [torch.tensor(rows, device=where.device) for rows in rounds]

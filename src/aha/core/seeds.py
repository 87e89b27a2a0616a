"""Generators of one's own, from any whole number."""

from __future__ import annotations

import torch


def generator_of(seed: int) -> torch.Generator:
    """A generator on the CPU, so that every device draws the same numbers; seeds beyond 63 bits wrap around."""
    return torch.Generator().manual_seed(seed % 2**63)

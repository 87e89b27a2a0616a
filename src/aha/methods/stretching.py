"""Maps whose values mean nothing but for their differences, from 0 to 1."""

from __future__ import annotations

import torch
from torch import Tensor


def stretched(maps: Tensor) -> Tensor:
    """Each map (N, H, W) from 0 to 1; flat ones are 0."""
    low, high = (getattr(maps, end)(dim=(1, 2), keepdim=True) for end in ("amin", "amax"))
    return torch.where(high > low, (maps - low) / (high - low).clamp(min=1e-12), 0)

"""Random choices that follow from numbers alone, whatever was drawn before and by whichever process."""

from __future__ import annotations

import numpy as np
import torch

# What is drawn: the first number after the run's own seed keeps the streams apart.
ORDER, STEP, IMAGE, HOLD_OUT, CROP, TURN, LEVELS, REFERENCE = range(8)


def generator_for(*numbers: int) -> torch.Generator:
    """A generator of its own for each tuple of numbers, on the CPU, so that every device sees the same draws."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(seed >> 1)

"""Precisions of forward passes without gradients."""

from __future__ import annotations

from typing import get_args

import torch

from aha.core.model_options import Precision
from aha.errors import ModelError

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def check_precision(precision: str) -> None:
    """Refuses a precision that does not exist."""
    if precision not in get_args(Precision):
        raise ModelError(f"unknown precision {precision!r}; known: {', '.join(get_args(Precision))}")

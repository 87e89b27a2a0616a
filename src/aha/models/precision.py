"""Precisions of forward passes without gradients."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from aha.errors import ModelError

Precision = Literal["float32", "bfloat16", "float16"]

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def check_precision(precision: str) -> None:
    """Refuses a precision that does not exist."""
    if precision not in get_args(Precision):
        raise ModelError(f"unknown precision {precision!r}; known: {', '.join(get_args(Precision))}")

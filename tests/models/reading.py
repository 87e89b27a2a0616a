"""What the tests of the model layer share."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn


def one_line(caught: pytest.ExceptionInfo[Exception]) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


def plain_outputs(module: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return module(images.clone())

"""Shared fixtures: everything runs offline, on one thread, from fixed seeds."""

from __future__ import annotations

import os

# Before any hub library is imported: a test that reaches for the network must fail at once, not wait.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import pytest
import torch
from torch import Tensor

from agreement import POOLS, Seen, Vit
from fakes import SIZE, tiny_vit
from skips import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]  # of pytest: the line about skipped tests


@pytest.fixture(autouse=True)
def _one_thread_and_seed() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(1234)


@pytest.fixture
def images() -> Tensor:
    """Four model inputs of different contrast."""
    generator = torch.Generator().manual_seed(7)
    contrast = torch.tensor([0.5, 1.0, 1.5, 2.0]).view(4, 1, 1, 1)
    return torch.randn(4, 3, SIZE, SIZE, generator=generator) * contrast


@pytest.fixture(params=POOLS)
def vit(request: pytest.FixtureRequest, images: Tensor) -> Vit:
    """A ViT with three blocks in double precision, images, what hooks saw, the rows read, and the prefix length."""
    options, rows, prefix = POOLS[request.param]
    module = tiny_vit(depth=3, **options).double()
    return module, images.double(), Seen(module, images.double()), rows, prefix

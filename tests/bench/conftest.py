"""A tiny world to benchmark: six noisy pictures with labels and masks, and a network of a few weights."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from worlds import make_data

from aha.bench.plan import Plan


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_data(tmp_path / "data", 6)


@pytest.fixture
def plan(data: Path) -> Plan:
    return Plan(
        model="module:TinyCNN",
        data=f"csv:{data / 'list.csv'}",
        methods=("gradient", "random_map"),
        metrics=("ins_del(steps=3, references=(black,))", "deletion(steps=3, references=(black, mean))"),
        batch_size=2,
    )


@pytest.fixture
def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8))

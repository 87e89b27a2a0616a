"""Fixtures of the small world with a known answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from colour_world import SIDE, ColourNet, square_image
from PIL import Image

from aha.models import TargetModel, load_model


@pytest.fixture
def target() -> TargetModel:
    return load_model(ColourNet().eval(), input_size=SIDE, mean=[0.5] * 3, std=[0.5] * 3, fit="squash")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty pictures of the first six colours and a CSV that labels them: the last two are never seen."""
    place = tmp_path / "data"
    place.mkdir()
    lines = ["file,label"]
    for index in range(40):
        pixels, _ = square_image(index % 6, index)
        Image.fromarray((pixels * 255).round().byte().permute(1, 2, 0).numpy()).save(place / f"{index:02d}.png")
        lines.append(f"{index:02d}.png,{index % 6}")
    (place / "labels.csv").write_text("\n".join(lines))
    return place

"""Several methods in one call are one figure, and figures show themselves in a notebook."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import aha
from aha.errors import OutputError
from aha.models import load_model
from aha.results.explanations import Explanations
from aha.results.score_table import Row, Scores
from fakes import SIZE, TinyCNN, randomised

METHODS = ["input_x_gradient", "gradient", "center_map"]


def photo(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture(scope="module")
def found() -> Explanations:
    model = load_model(randomised(TinyCNN()), input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3)
    return aha.explain(model, [photo(96, 48), photo(400, 900)], METHODS, "top2")


def test_several_methods_are_a_grid_of_methods_and_classes(found: Explanations, tmp_path: Path) -> None:
    assert list(found) == METHODS and len(found["gradient"]) == 4, "still a mapping"
    drawn = found.figure(width=60)
    assert drawn.width > 4 * 60 and drawn.height > 4 * 60, "two pictures with two classes each; three methods"
    assert found.figure(width=60, most=1).height < drawn.height / 2
    (shown,) = pictures(found._repr_html_())
    assert shown.width > 4 * 224
    with Image.open(found.save(tmp_path / "new" / "all.jpg")) as saved:
        assert saved.format == "JPEG" and saved.size == found.figure().size
    with pytest.raises(OutputError, match=r"use \.png or \.jpg"):
        found.save(tmp_path / "folder")


def test_many_rows_are_cut_short_in_a_notebook(found: Explanations) -> None:
    one = found["gradient"]
    many = Explanations({"gradient": type(one).join([one] * 4)})
    assert "and 4 more" in many._repr_html_() and "more" not in found._repr_html_()


def test_photograph_and_overlay_are_aligned_in_a_notebook(found: Explanations) -> None:
    """Their captions differ in height: on a common base line, or scaled by it, the pictures would not match."""
    text = found["gradient"]._repr_html_()
    shown = pictures(text)
    assert len(shown) == 8 and text.count("vertical-align:top") == 8
    for left, right in zip(shown[::2], shown[1::2], strict=True):
        assert left.width == right.width


def test_a_plot_shows_itself_in_a_notebook() -> None:
    scores = Scores([Row(f"{i}.png", "gradient", "ins_del", "quick", 0, "average", i / 4) for i in range(3)], model="m")
    assert scores.plot("bars")._repr_png_().startswith(b"\x89PNG")
    formatters = pytest.importorskip("IPython.core.formatters")
    shown, _ = formatters.DisplayFormatter().format(scores.plot("bars"))
    assert "image/png" in shown


def pictures(text: str) -> list[Image.Image]:
    data = re.findall(r"data:image/png;base64,([A-Za-z0-9+/=]+)", text)
    return [Image.open(io.BytesIO(base64.b64decode(part))) for part in data]

"""Arguments that nobody should give: each is refused in one line that names it, never by an error of Python's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aha
from aha.errors import AhaError
from aha.models import TargetModel, load_model
from fakes import SIZE, TinyCNN, randomised

PICTURE = np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)
STATED: dict[str, Any] = {"input_size": SIZE, "mean": (0.5,) * 3, "std": (0.5,) * 3}


@pytest.fixture(scope="module")
def model() -> TargetModel:
    return load_model(randomised(TinyCNN()), **STATED)


@pytest.mark.parametrize(
    "wrong",
    [
        {"images": "x" * 5000},
        {"images": "a\0b"},
        {"images": {}},
        {"images": [None]},
        {"method": 3},
        {"method": 3},
        {"method": ["gradient", None]},
        {"target": b"1"},
        {"target": 3.5},
        {"target": [[]]},
        {"target": "label", "labels": ["a"]},
        {"batch_size": 0},
        {"seed": "a", "method": "random_map"},
    ],
    ids=str,
)
def test_explain(wrong: dict[str, Any], model: TargetModel) -> None:
    with pytest.raises(AhaError) as caught:
        aha.explain(model, **{"images": PICTURE, "method": "gradient", **wrong})
    assert len(str(caught.value)) < 1500 and "\n" not in str(caught.value)


def test_an_address_is_named_as_it_was_written(model: TargetModel) -> None:
    """Paths make `https:/` of `https://`."""
    for images in ("https://example.org/cat.jpg", ["https://example.org/cat.jpg"]):
        with pytest.raises(AhaError, match=r"^https://example.org/cat.jpg is an address, not a file"):
            aha.explain(model, images, "gradient")


def test_no_command_is_advised_for_what_no_command_can_load(model: TargetModel) -> None:
    with pytest.raises(AhaError, match=r"aha\.list_methods\(model\) shows all that fit") as caught:
        aha.explain(model, PICTURE, "legrad")
    assert "--model" not in str(caught.value)
    assert "grad_cam" in aha.list_methods(model) and "legrad" not in aha.list_methods(model)


@pytest.mark.parametrize(
    "wrong",
    [
        {"metrics": "energy_in_box", "boxes": [3]},
        {"metrics": "energy_in_box", "boxes": [[1, 2, 3]]},
        {"metrics": "energy_in_box", "boxes": [[(1, 2, "a", 4)]]},
        {"metrics": "segmentation", "masks": [np.array(["a"])]},
        {"maps_or_methods": {"a": [[[1, 2], [3]]]}},
        {"maps_or_methods": {"a": None}},
        {"metrics": [None]},
    ],
    ids=str,
)
def test_evaluate(wrong: dict[str, Any], model: TargetModel) -> None:
    with pytest.raises(AhaError):
        aha.evaluate(model, **{"images": [PICTURE], "maps_or_methods": "center_map", "metrics": "sparseness", **wrong})


@pytest.mark.parametrize(
    "wrong",
    [
        {"input_size": 1.5},
        {"input_size": 10**9},
        {"input_size": {}},
        {"texts": 3},
        {"device": "meta"},
        {"class_names": 3},
    ],
    ids=str,
)
def test_load_model(wrong: dict[str, Any]) -> None:
    with pytest.raises(AhaError):
        load_model(randomised(TinyCNN()), **{**STATED, **wrong})


def test_results(model: TargetModel, tmp_path: Path) -> None:
    found = aha.explain(model, PICTURE, "gradient")
    for place in (None, 3, "", f"{tmp_path}/a\0b"):
        for write in (found.save, found.to_html):
            with pytest.raises(AhaError, match="not a path"):
                write(place)  # type: ignore[arg-type]
    for ask in (found.overlay, found.heatmap, found.item):
        with pytest.raises(IndexError, match="there is no map 99; this explanation has 1"):
            ask(99)
        with pytest.raises(TypeError, match="by its number"):
            ask("x")  # type: ignore[arg-type]
    scores = aha.evaluate(model, [PICTURE], "center_map", "sparseness")
    for place in (3, ""):
        with pytest.raises(AhaError, match="not a path"):
            scores.to_csv(place)  # type: ignore[arg-type]
    with pytest.raises(AhaError, match="scores"):
        scores.extend(3)  # type: ignore[arg-type]
    with pytest.raises(AhaError, match="methods="):
        aha.recommend(model, [PICTURE], methods=3)  # type: ignore[arg-type]

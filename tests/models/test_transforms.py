"""A caller's own transform: its inputs as they are, its colours and its window found by trying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from reading import one_line
from torch import Tensor
from torchvision import transforms as T
from torchvision.transforms import v2

import aha
from aha.errors import ImageError, ModelError
from aha.models import load_model
from aha.models.loading.transforms import Transformed
from fakes import TinyCNN, randomised

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (100, 150, 3), dtype=np.uint8))
COLOURS = T.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
SIDE = 100 * 32 / 40  # of the picture that a crop of 32 leaves when the short side becomes 40

WINDOWS: dict[str, tuple[Callable[[Image.Image], Any], tuple[float, ...] | None]] = {
    "crop": (
        T.Compose([T.Resize(40), T.CenterCrop(32), T.ToTensor(), COLOURS]),
        (50 - SIDE / 2, 75 - SIDE / 2, 50 + SIDE / 2, 75 + SIDE / 2),
    ),
    "squash": (T.Compose([T.Resize((32, 32)), T.ToTensor(), COLOURS]), (0, 0, 100, 150)),
    "version 2": (
        v2.Compose(
            [v2.ToImage(), v2.Resize((32, 48)), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5], [0.5])]
        ),
        (0, 0, 100, 150),
    ),
    "corner": (T.Compose([lambda p: p.crop((10, 20, 74, 84)), T.Resize((32, 32)), T.ToTensor()]), (20, 10, 84, 74)),
    "mirrored": (T.Compose([ImageOps.mirror, T.Resize((32, 32)), T.ToTensor()]), None),
    "turned": (T.Compose([lambda p: p.rotate(30), T.Resize((32, 32)), T.ToTensor()]), None),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_window(name: str) -> None:
    transform, expected = WINDOWS[name]
    found = Transformed.by(transform, None, None)
    inputs, geometry = found(PICTURE)
    assert torch.equal(inputs, transform(PICTURE).float())
    if expected is None:
        assert geometry.original == geometry.model == tuple(inputs.shape[-2:])
        assert found.drawn_on(PICTURE, inputs).size == inputs.shape[:0:-1]
    else:
        assert geometry.original == (100, 150)
        assert np.allclose(geometry.box, expected, atol=0.5)
        assert found.drawn_on(PICTURE, inputs) is PICTURE


def test_colours() -> None:
    found = Transformed.by(WINDOWS["crop"][0], None, None)
    assert found.mean == pytest.approx((0.5, 0.4, 0.3), abs=1e-5)
    assert found.std == pytest.approx((0.2, 0.3, 0.4), abs=1e-5)
    pixels = torch.rand(3, 32, 32)
    assert torch.allclose(found.denormalise(found.normalise(pixels)), pixels, atol=1e-5)


def test_explained_and_measured() -> None:
    """The map lands where the transform looked, and metrics know what black is."""
    transform, _ = WINDOWS["crop"]
    model = load_model(randomised(TinyCNN()), transform=transform)
    found = aha.explain(model, PICTURE, "gradient")
    assert found.original_map().shape == (100, 150)
    assert bool(found.original_map()[:, :30].isnan().all())  # never seen
    scores = aha.evaluate(model, [PICTURE], "gradient", "deletion(steps=4)")
    assert len(scores.values("gradient", "deletion")) == 1
    assert str(model.preprocessing) == str(load_model(randomised(TinyCNN()), transform=transform).preprocessing)


def test_the_models_view_is_drawn_where_nothing_leads_back() -> None:
    found = aha.explain(load_model(randomised(TinyCNN()), transform=WINDOWS["mirrored"][0]), PICTURE, "gradient")
    assert found.subjects[0].image.size == (32, 32)
    expected = np.asarray(ImageOps.mirror(PICTURE).resize((32, 32), Image.Resampling.BILINEAR), dtype=float)
    assert np.abs(np.asarray(found.subjects[0].image, dtype=float) - expected).mean() < 3


def as_dict(picture: Image.Image) -> dict[str, Tensor]:
    return {"pixel_values": T.ToTensor()(picture.resize((32, 32)))[None]}


@pytest.mark.parametrize("transform", [as_dict, lambda p: np.asarray(T.ToTensor()(p.resize((32, 32))))])
def test_other_shapes_of_answers(transform: Callable[[Image.Image], Any]) -> None:
    assert (
        aha.explain(load_model(randomised(TinyCNN()), transform=transform), PICTURE, "gradient").maps.isfinite().all()
    )


@pytest.mark.parametrize(
    ("transform", "says"),
    [
        (T.Compose([T.RandomCrop(32), T.ToTensor()]), "without augmentation"),
        (lambda p: p, "must turn an image into a float tensor"),
        (lambda p: torch.zeros(3, 32, 32), "makes black as bright as white"),
        (lambda p: 1 / 0, "fails on an RGB image: ZeroDivisionError"),
    ],
)
def test_what_is_refused(transform: Callable[[Image.Image], Any], says: str) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        load_model(randomised(TinyCNN()), transform=transform)
    one_line(caught)


def test_sizes_that_depend_on_the_picture() -> None:
    model = load_model(randomised(TinyCNN()), transform=T.Compose([T.Resize(32), T.ToTensor()]))
    with pytest.raises(ImageError, match="gives 32x48 for an image of 150x100, 32x32 for a square one"):
        aha.explain(model, PICTURE, "gradient")

"""The detector of printed text: it finds drawn words, and takes textures for none."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from aha.demo import photographs
from aha.metrics import Case, Sample, load_metric
from aha.metrics.localisation.text_like import text_like
from aha.models import load_model

SIDE = 224
PETS = Path(os.environ.get("AHA_PETS", "nowhere"))  # images/, with_artifact/ and artifact_masks/ of tagged photographs


def photograph(index: int) -> Image.Image:
    with Image.open(list(photographs())[index]) as image:
        return image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def pixels_of(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).float() / 255


def labelled(image: Image.Image, text: str, size: int, at: tuple[int, int], ink: str, paper: str) -> Tensor:
    """Writes on a label; gives where (H, W) the letters are."""
    paint, font = ImageDraw.Draw(image), ImageFont.load_default(size)
    x0, y0, x1, y1 = map(round, paint.textbbox(at, text, font=font))
    paint.rectangle((x0 - 4, y0 - 4, x1 + 4, y1 + 4), fill=paper)
    paint.text(at, text, font=font, fill=ink)
    where = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    where[y0:y1, x0:x1] = True
    return where


@pytest.mark.parametrize("size", [10, 16, 24])
@pytest.mark.parametrize(("ink", "paper"), [("black", "white"), ("white", "black"), ("darkblue", "khaki")])
def test_words_on_a_photograph_are_found(size: int, ink: str, paper: str) -> None:
    for index, text in enumerate(["Hospital 12", "SALE", "Copyright 2026"]):
        image = photograph(index)
        where = labelled(image, text, size, (20, 30 + 40 * index), ink, paper)
        found = text_like(pixels_of(image))
        assert float(found[where].float().mean()) > 0.6, text
        assert float(found[~where].float().mean()) < 0.05, text


def test_photographs_without_words_have_none() -> None:
    shares = [float(text_like(pixels_of(photograph(index))).float().mean()) for index in range(6)]
    assert max(shares) < 0.01


@pytest.mark.parametrize("name", ["grass", "brick", "camera", "moon"])
@pytest.mark.parametrize("side", [SIDE, 384])
def test_textures_are_no_text(name: str, side: int) -> None:
    data = pytest.importorskip("skimage.data")
    image = Image.fromarray(getattr(data, name)()).resize((side, side), Image.Resampling.BICUBIC)
    assert float(text_like(pixels_of(image)).float().mean()) < 0.01


@pytest.mark.parametrize("make", [torch.zeros, torch.rand, torch.ones])
@pytest.mark.parametrize("shape", [(3, 224, 224), (1, 40, 64), (3, 8, 8)])
def test_what_shows_nothing_has_no_text(make: object, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    found = text_like(make(shape))  # type: ignore[operator]
    assert found.shape == shape[1:] and float(found.float().mean()) < 0.01


def test_the_metric_tells_where_the_mass_is() -> None:
    image = photograph(0)
    where = labelled(image, "Hospital 12", 16, (30, 60), "black", "white")
    model = load_model(
        nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE**2, 2)), input_size=SIDE, mean=[0.0] * 3, std=[1.0] * 3
    )
    sample = Sample(model, "image", pixels_of(image))
    found = {
        name: {value.column: value.value for value in load_metric("text_mass")(Case(sample, 0, values))}
        for name, values in {
            "on it": where.float(),
            "elsewhere": (~where).float(),
            "all": torch.ones(where.shape),
        }.items()
    }
    assert found["on it"]["text_mass"] > 0.6 and found["elsewhere"]["text_mass"] < 0.1
    assert found["all"]["text_mass"] == pytest.approx(found["all"]["text_share"]) and found["all"]["text_share"] > 0.01


@pytest.mark.skipif(not (PETS / "artifact_masks").is_dir(), reason="needs AHA_PETS, photographs with planted tags")
def test_planted_tags_are_found() -> None:
    names = sorted(path.stem for path in (PETS / "with_artifact").glob("*.jpg"))[:120:3]
    hits, false = [], []
    for name in names:
        tagged, plain, mask = (
            Image.open(PETS / folder / f"{name}{suffix}").resize((SIDE, SIDE), resample)
            for folder, suffix, resample in (
                ("with_artifact", ".jpg", Image.Resampling.BICUBIC),
                ("images", ".jpg", Image.Resampling.BICUBIC),
                ("artifact_masks", ".png", Image.Resampling.NEAREST),
            )
        )
        where = torch.from_numpy(np.array(mask)) > 0
        hits.append(bool(text_like(pixels_of(tagged))[where].any()))
        false.append(float(text_like(pixels_of(plain)).float().mean()))
    assert len(hits) == 40 and sum(hits) >= 38 and sum(false) / 40 < 0.005

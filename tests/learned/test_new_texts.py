"""An explainer of CLIP draws maps for texts that it never saw: their embeddings are its class vectors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import aha
from aha.learned import library
from aha.learned.explainer import Explainer
from aha.models import TargetModel, load_model
from fakes import SIZE
from two_towers import tiny_clip, tiny_processor


def clip_with(texts: list[str]) -> TargetModel:
    return load_model(tiny_clip(), texts=texts, processor=tiny_processor())


def test_new_texts_need_no_training(images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AHA_DATA", str(tmp_path))
    known = clip_with(["a cat", "a dog", "a boat"])
    explainer = Explainer.for_target(known)
    assert explainer.config.conditioning == "head"
    with torch.no_grad():  # a fresh explainer hardly looks at the class; this one does
        for value in explainer.parameters():
            value.add_(0.2 * torch.randn(value.shape, generator=torch.Generator().manual_seed(value.numel())))
    library.remember(explainer)
    other = clip_with(["a cat", "seven red houses"])
    found = aha.explain(
        other, images[:1], "aha", target=[["a cat", "seven red houses"]]
    )  # found by the tower's weights
    assert found.maps.shape == (2, SIZE, SIZE)
    assert not torch.allclose(found.maps[0], found.maps[1], atol=1e-3)
    folder = tmp_path / "explainers" / known.digest
    by_name = aha.explain(other, images[:1], f"aha({str(folder)!r})", target="seven red houses")  # two texts, not three
    assert torch.allclose(by_name.maps[0], found.maps[1], atol=1e-4)

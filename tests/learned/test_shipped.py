"""The explainers that come with the package: small, readable, found by their models, and better than Grad-CAM."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import aha
from aha.data.images import read_image
from aha.demo import MODEL, photographs
from aha.learned.explainer import Explainer
from aha.learned.library import SHIPPED, UNIVERSAL, explainer_of
from aha.learned.training.validation import areas, hard_curves
from aha.models import TargetModel, load_model
from aha.perturb.references import Black, Blur


@pytest.fixture(scope="module")
def model() -> TargetModel:
    return load_model(MODEL, device="cpu", batch_size=8)


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AHA_DATA", str(tmp_path))


FOLDERS = sorted(path.parent for path in SHIPPED.glob("*/config.json"))
UNIVERSAL_FOLDERS = sorted(path.parent for path in (SHIPPED / UNIVERSAL).glob("*/config.json"))


def test_there_is_one_for_each_of_three_models() -> None:
    targets = {Explainer.from_pretrained(folder).config.target for folder in FOLDERS}
    assert targets == {"demo:efficientnet_lite0", "timm:resnet18", "timm:vit_tiny_patch16_224"}


def test_the_universal_one_has_both_forms() -> None:
    configs = [Explainer.from_pretrained(folder).config for folder in UNIVERSAL_FOLDERS]
    assert [config.form for config in configs] == [folder.name for folder in UNIVERSAL_FOLDERS] == ["stages", "tokens"]
    assert all(config.is_for_all and config.name == "universal" for config in configs)


@pytest.mark.parametrize("folder", [*FOLDERS, *UNIVERSAL_FOLDERS], ids=lambda folder: folder.name[:8])
def test_it_is_small_in_half_precision_and_measured(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2e6
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert {weights.get_tensor(name).dtype for name in weights.keys()} == {torch.float16}  # noqa: SIM118
    checksum = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert json.loads((folder / "config.json").read_text())["weights_sha256"] == checksum
    config = Explainer.from_pretrained(folder).config
    assert config.target_digest == ("" if folder in UNIVERSAL_FOLDERS else folder.name)
    assert config.scores["ins_del"] > 0 and abs(sum(config.response) - 1) < 1e-3


def test_it_belongs_to_the_demo_model(model: TargetModel) -> None:
    explainer = explainer_of(model)
    assert explainer.config.target_digest == model.digest and explainer.config.num_classes == 1000
    assert explainer.config.encoder == "target" and explainer.config.conditioning == "head"


def test_its_maps_are_more_faithful_than_grad_cam(model: TargetModel) -> None:
    """On the demo's photographs, none of which it was trained on."""
    prepare = model.stated_preprocessing()
    inputs = torch.stack([prepare(read_image(path))[0] for path in photographs()[:6]])
    classes = model.outputs(inputs).argmax(dim=1)
    scores = {}
    for method in ("aha", "aha(refine=2, steps=4)", "grad_cam"):
        maps = aha.explain(model, inputs, method).maps
        curves = hard_curves(model, inputs, classes, maps, [Black(), Blur()], 6)
        scores[method] = float(areas(curves, maps[0].numel())["ins_del"].mean())
    assert scores["aha(refine=2, steps=4)"] > scores["aha"] > scores["grad_cam"]

"""Models of timm, torchvision and transformers, with the preprocessing of those libraries."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from reading import one_line

import aha
from aha.errors import ModelError
from aha.models import load_model
from fakes import (
    CLASSES,
    plain_module,
    randomised,
)

# Preprocessing is that of the libraries


@pytest.fixture
def photo() -> Image.Image:
    """A wide picture with structure at all scales."""
    rows, columns = np.mgrid[0:271, 0:390]
    waves = [127 + 120 * np.sin(rows / (3 + k) + columns / (19 - 5 * k) + (rows * columns) / 4000) for k in range(3)]
    return Image.fromarray(np.stack(waves, axis=-1).astype(np.uint8))


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b3", "vit_l_16", "swin_t", "inception_v3"])
def test_torchvision_preprocessing(name: str, photo: Image.Image, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torchvision.models.get_model_weights(name).DEFAULT
    stand_in = plain_module()
    monkeypatch.setattr(torchvision.models, "get_model", lambda *_, **__: stand_in)  # only the settings matter here
    model = load_model(f"torchvision:{name}", pretrained=False)
    found, _ = model.stated_preprocessing()(photo)
    assert torch.allclose(found, weights.transforms()(photo), atol=1e-6)
    assert model.class_names is not None and list(model.class_names) == weights.meta["categories"]


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "beit_base_patch16_224", "vit_base_patch16_siglip_224"])
def test_timm_preprocessing(name: str, photo: Image.Image, monkeypatch: pytest.MonkeyPatch) -> None:
    config = timm.get_pretrained_cfg(name)
    transform = timm.data.create_transform(
        **timm.data.resolve_data_config({}, pretrained_cfg=config.to_dict()), is_training=False
    )
    stand_in = plain_module()
    stand_in.pretrained_cfg, stand_in.num_classes = config.to_dict(), CLASSES
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: stand_in)
    found, _ = load_model(f"timm:{name}", pretrained=False).stated_preprocessing()(photo)
    assert torch.allclose(found, transform(photo), atol=1e-6)


# transformers


def hf_settings() -> dict[str, tuple[Any, Any, dict[str, Any]]]:
    """Model class, tiny configuration, and the image processor its family is published with."""
    import transformers as hf

    vit = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    vit |= {"image_size": 64, "patch_size": 16, "num_labels": 4}
    stages = {"hidden_sizes": [16, 24], "depths": [1, 1], "num_labels": 4}
    swin = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "image_size": 64}
    size = {"height": 64, "width": 64}
    return {
        "vit": (hf.ViTForImageClassification, hf.ViTConfig(**vit), hf.ViTImageProcessor(size=size)),
        "deit": (
            hf.DeiTForImageClassification,
            hf.DeiTConfig(**vit),
            hf.DeiTImageProcessor(size={"height": 73, "width": 73}, crop_size=size),
        ),
        "deit distilled": (
            hf.DeiTForImageClassificationWithTeacher,
            hf.DeiTConfig(**vit),
            hf.DeiTImageProcessor(size={"height": 73, "width": 73}, crop_size=size),
        ),
        "dinov2": (
            hf.Dinov2ForImageClassification,
            hf.Dinov2Config(**(vit | {"mlp_ratio": 2})),
            hf.BitImageProcessor(size={"shortest_edge": 72}, crop_size=size),
        ),
        "swin": (
            hf.SwinForImageClassification,
            hf.SwinConfig(patch_size=4, num_labels=4, **swin),
            hf.ViTImageProcessor(size=size, resample=3),
        ),
        "convnext": (
            hf.ConvNextForImageClassification,
            hf.ConvNextConfig(num_stages=2, **stages),
            hf.ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.875),
        ),
        "convnext large": (
            hf.ConvNextForImageClassification,
            hf.ConvNextConfig(num_stages=2, **stages),
            hf.ConvNextImageProcessor(size={"shortest_edge": 384}, crop_pct=0.875),
        ),
        "resnet": (
            hf.ResNetForImageClassification,
            hf.ResNetConfig(embedding_size=8, layer_type="basic", **stages),
            hf.ConvNextImageProcessor(size={"shortest_edge": 64}, crop_pct=0.9, resample=2),
        ),
    }


@pytest.mark.parametrize("family", hf_settings())
def test_transformers_models(family: str, photo: Image.Image, tmp_path: Path) -> None:
    build, config, processor = hf_settings()[family]
    config.id2label = dict(enumerate(["ant", "bee", "cow", "dog"]))
    original = randomised(build(config))
    original.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    model = load_model(f"hf:{tmp_path}")
    assert model.class_names == ("ant", "bee", "cow", "dog")
    expected = processor(photo, return_tensors="pt")["pixel_values"]
    found, geometry = model.stated_preprocessing()(photo)
    assert found.shape == expected.shape[1:]
    assert geometry.original == (271, 390)
    # transformers resizes tensors, we resize pictures: values round differently, by a grey level here and there.
    assert (found - expected[0]).abs().mean() < 0.01
    assert (found - expected[0]).abs().max() < 0.12
    with torch.no_grad():
        logits = original(expected).logits
    assert torch.allclose(model.outputs(expected), logits, atol=1e-5)
    maps = aha.explain(model, photo, "grad_cam", target="bee")
    assert maps.labels == ["bee"]
    assert maps.maps.isfinite().all()


def test_transformers_folders_without_safetensors_are_refused(tmp_path: Path) -> None:
    build, config, processor = hf_settings()["resnet"]
    original = build(config)
    config.architectures = [build.__name__]
    config.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    torch.save(original.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot load hf:") as caught:
        load_model(f"hf:{tmp_path}")
    one_line(caught)
    assert load_model(f"hf:{tmp_path}", pretrained=False).num_classes == 4


def test_transformers_folders_that_lack_something(tmp_path: Path) -> None:
    build, config, _ = hf_settings()["resnet"]
    with pytest.raises(ModelError, match="cannot load hf:"):
        load_model(f"hf:{tmp_path}")
    build(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"preprocessor_config\.json") as caught:
        load_model(f"hf:{tmp_path}")
    one_line(caught)
    with pytest.raises(ModelError, match="carry their own weights"):
        load_model(f"hf:{tmp_path}", weights="w.pth")


def test_transformers_processors_that_cannot_be_followed_are_refused(tmp_path: Path) -> None:
    import transformers as hf

    build, config, processor = hf_settings()["resnet"]
    build(config).save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "preprocessor_config.json").read_text())
    for change in ({"do_flip_channel_order": True}, {"image_processor_type": "MobileViTImageProcessor"}):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings | change))
        with pytest.raises(ModelError, match="blue before red"):
            load_model(f"hf:{tmp_path}")
    assert hf.MobileViTImageProcessor().do_flip_channel_order  # that is why


@pytest.mark.parametrize("change", [{"do_normalize": False}, {"do_rescale": True, "rescale_factor": 1 / 127.5}])
def test_transformers_processors_with_other_arithmetic(
    change: dict[str, Any], photo: Image.Image, tmp_path: Path
) -> None:
    build, config, _ = hf_settings()["vit"]
    import transformers as hf

    processor = hf.ViTImageProcessor(size={"height": 64, "width": 64}, **change)
    build(config).save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    found, _ = load_model(f"hf:{tmp_path}").stated_preprocessing()(photo)
    expected = processor(photo, return_tensors="pt")["pixel_values"][0]
    assert (found - expected).abs().mean() < 0.01


# The hubs, out of reach


def test_hub_failures_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for spec in ("timm:test_vit.r160_in1k", "torchvision:squeezenet1_1", "hf:nobody/nothing-of-the-sort"):
        with pytest.raises(ModelError, match=f"^cannot load {spec}: .*offline") as caught:
            load_model(spec)
        assert "pretrained=False" in one_line(caught)


def test_the_code_of_a_folder_is_never_run_nor_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers asks on the terminal, unless it is told not to trust."""
    _, config, processor = hf_settings()["resnet"]
    config.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings |= {
        "model_type": "strange",
        "auto_map": {
            "AutoConfig": "code.Strange",
            "AutoModelForImageClassification": "code.Net",
            "AutoModel": "code.Net",
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')\n")
    monkeypatch.setattr("builtins.input", lambda *question: "y")
    for text in (f"hf:{tmp_path}", f"clip:{tmp_path}[a; b]"):
        with pytest.raises(ModelError, match="cannot load"):
            load_model(text)
        with pytest.raises(ModelError, match="cannot load"):
            load_model(text, pretrained=False)
    assert not (tmp_path / "was-run").exists()

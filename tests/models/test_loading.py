"""Loading a model: what is refused, input sizes, and how a model is told from another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from reading import one_line
from safetensors.torch import save_file
from torch import Tensor, nn

import aha
from aha.errors import ModelError, SpecError, UnknownName, WeightsError
from aha.models import load_model
from aha.models.running.hooks import parts_of
from aha.models.running.inference import weight_versions
from fakes import (
    CLASSES,
    SIZE,
    LinearModel,
    TinyCNN,
    changes,
    randomised,
    surroundings,
)

NORMAL = {"input_size": SIZE, "mean": (0.5,) * 3, "std": (0.5,) * 3}


# Loading: what is refused, and how


@pytest.mark.parametrize(
    ("model", "options", "error", "says"),
    [
        (
            "resnet18",
            {},
            SpecError,
            "write SOURCE:NAME, such as timm:resnet50; sources are clip, demo, hf, python, timm, torchvision",
        ),
        ("timm:", {}, SpecError, "cannot read model"),
        ("tim:resnet18", {}, UnknownName, "unknown model source 'tim'; did you mean timm"),
        ("timm:resnet_18", {}, UnknownName, "unknown model timm:resnet_18; did you mean .*resnet18"),
        ("torchvision:resnet_18", {}, UnknownName, "did you mean resnet18"),
        ("demo:resnet18", {}, UnknownName, "unknown model demo:resnet18"),
        ("timm:test_vit", {"weights": "nowhere.pth"}, WeightsError, "no weights at nowhere.pth"),
        ("timm:test_vit", {"device": "cuda:7", "pretrained": False}, ModelError, "'cuda:7' is not available"),
        ("timm:test_vit", {"device": "gpu", "pretrained": False}, ModelError, "'gpu' is not available"),
        ("timm:test_vit", {"input_size": -1}, ModelError, "input size -1"),
        ("timm:test_vit", {"input_size": (1, 2, 3, 4)}, ModelError, "input size .* of volumes; state mean and std"),
        ("timm:test_vit", {"input_size": (1, 2, 3, 4, 5)}, ModelError, "input size"),
        ("timm:test_vit", {"input_size": "big"}, ModelError, "input size 'big'"),
        ("timm:test_vit", {"score": "softmx"}, UnknownName, "did you mean .*softmax"),
        ("timm:test_vit", {"precision": "int8", "pretrained": False}, ModelError, "precision"),
        (
            "timm:test_vit",
            {"batch_size": 0, "pretrained": False},
            ModelError,
            "batch size must be a whole number of at least 1",
        ),
        (3, {}, SpecError, "cannot read model 3"),
        (None, {}, SpecError, "cannot read model None"),
        (LinearModel(), {"input_size": 32}, ModelError, "needs input_size, mean and std together"),
        (LinearModel(), {"mean": (0.5,) * 3}, ModelError, "needs input_size, mean and std together"),
        (LinearModel(), {**NORMAL, "std": (0.0,) * 3}, ModelError, "must be positive"),
        (LinearModel(), {**NORMAL, "mean": (0.0,) * 2}, ModelError, "channels"),
        (LinearModel(), {"fit": "stretch", **NORMAL}, ModelError, "unknown fit 'stretch'"),
        (LinearModel(), {"device": "meta"}, ModelError, "the module is on cpu; move it yourself"),
        (LinearModel(), {"weights": "w.pth"}, ModelError, "load_state_dict"),
    ],
)
def test_what_cannot_be_loaded(model: Any, options: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        load_model(model, **options)
    one_line(caught)


def test_a_loaded_model_passes_through() -> None:
    model = load_model(LinearModel())
    assert load_model(model) is model
    with pytest.raises(ModelError, match="already loaded"):
        load_model(model, score="logit")


def test_what_a_plain_module_did_not_state_is_asked_for(images: Tensor) -> None:
    model = load_model(randomised(TinyCNN()))
    with pytest.raises(ModelError, match="does not state its preprocessing"):
        aha.explain(model, Image.new("RGB", (40, 40)), "gradient")
    with pytest.raises(ModelError, match="number of classes is unknown"):
        _ = model.num_classes
    aha.explain(model, images, "gradient")
    assert model.num_classes == CLASSES


def test_the_demo_model_knows_its_classes() -> None:
    model = load_model("demo:efficientnet_lite0", pretrained=False)
    assert model.num_classes == 1000
    assert model.class_name(281) == "tabby"
    assert model.class_name(5000) == "class 5000"
    assert "demo:efficientnet_lite0" in repr(model)


def test_random_weights_are_the_same_each_time_and_disturb_nothing() -> None:
    before = surroundings()
    first = load_model("timm:test_vit", pretrained=False)
    assert changes(before, surroundings()) == []
    torch.manual_seed(99)
    again = load_model("timm:test_vit", pretrained=False)
    assert first.digest == again.digest
    assert not any(p.requires_grad for p in first.module.parameters())


def test_a_model_loaded_in_inference_mode_still_has_gradients() -> None:
    with torch.inference_mode():
        model = load_model("timm:test_vit", pretrained=False, input_size=64)
        explanation = aha.explain(model, torch.randn(1, 3, 64, 64), "gradient")
    assert explanation.maps.abs().sum() > 0


# Input sizes


def test_position_embeddings_follow_the_input_size(tmp_path: Path) -> None:
    module = randomised(timm.create_model("test_vit", num_classes=7, img_size=64))
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    model = load_model("timm:test_vit", weights=tmp_path / "w.safetensors", input_size=96)
    assert model.preprocessing is not None and model.preprocessing.size == (96, 96)
    own, resampled = module.state_dict(), model.module.state_dict()
    assert resampled["pos_embed"].shape[1] == own["pos_embed"].shape[1] // 16 * 36 + 1
    for key in own.keys() - {"pos_embed"}:
        assert torch.equal(own[key], resampled[key])
    expected = timm.layers.resample_abs_pos_embed(own["pos_embed"], (6, 6), num_prefix_tokens=1)
    assert torch.allclose(resampled["pos_embed"], expected)
    assert model.structure().blocks[0].layout.grid == (6, 6)


def test_sizes_may_be_given_in_any_form() -> None:
    for size in (64, (64, 64), [3, 64, 64]):
        model = load_model("timm:test_vit", pretrained=False, input_size=size)
        assert model.preprocessing is not None and model.preprocessing.size == (64, 64)
    oblong = load_model("timm:test_vit", pretrained=False, input_size=(64, 96))
    assert aha.explain(oblong, Image.new("RGB", (50, 50), "red"), "rollout").maps.shape == (1, 64, 96)
    network = load_model("timm:test_resnet", pretrained=False, input_size=(64, 96))
    assert network.outputs(torch.zeros(1, 3, 64, 96)).shape == (1, 1000)
    small = load_model("torchvision:vit_b_32", pretrained=False, input_size=64)
    assert small.structure().blocks[0].layout.grid == (2, 2)
    with pytest.raises(ModelError, match="square"):
        load_model("torchvision:vit_b_32", pretrained=False, input_size=(64, 96))


def test_greyscale_and_other_channels() -> None:
    grey = load_model(randomised(TinyCNN(channels=1)), input_size=SIZE, mean=(0.5,), std=(0.5,))
    assert aha.explain(grey, Image.linear_gradient("L"), "edge_map").maps.shape == (1, SIZE, SIZE)
    assert "features" in grey.capabilities
    for channels in (1, 4):  # nothing stated: the images say how many channels there are
        module = randomised(TinyCNN(channels=channels))
        inputs = torch.randn(2, channels, SIZE, SIZE)
        for method in ("gradient", "grad_cam", "hires_cam", "smooth(grad_cam, n=2)"):
            assert aha.explain(module, inputs, method).maps.shape == (2, SIZE, SIZE)


# Identity


def test_digest_follows_the_weights() -> None:
    one, two = randomised(TinyCNN(), seed=1), randomised(TinyCNN(), seed=1)
    digest = load_model(one).digest
    assert load_model(two).digest == digest
    with torch.no_grad():
        two.head.bias[0] += 1e-6
    assert load_model(two).digest != digest
    two = randomised(TinyCNN(), seed=1)
    two.stem[1].running_mean[0] += 1e-3  # buffers count
    assert load_model(two).digest != digest
    assert load_model(one.double()).digest != digest
    assert load_model(one.half()).digest != digest


def test_digest_of_a_model_that_goes_on_training() -> None:
    module = randomised(TinyCNN())
    model = load_model(module)
    digest = model.digest
    assert model.digest == digest
    with torch.no_grad():
        module.head.weight.mul_(1.5)
    assert model.digest != digest


class Nested(nn.Module):
    """Parts that are used twice, left out, or hidden in another."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        self.again, self.none = self.first, None
        self.register_module("missing", None)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def test_weights_are_watched_in_every_part() -> None:
    module = Nested()
    assert set(parts_of(module)) == set(module.modules()) and len(parts_of(module)) == 4
    versions = weight_versions(module)
    assert len(versions) == 7  # of the linear layer 2, of the norm 5
    module.scratch += 1  # not among the weights
    assert weight_versions(module) == versions
    module.first[1].running_var += 1
    assert weight_versions(module) != versions


def test_digest_of_half_precision_weights() -> None:
    assert load_model(randomised(TinyCNN()).bfloat16()).digest != load_model(randomised(TinyCNN())).digest


def test_a_model_without_parameters() -> None:
    model = load_model(nn.Sequential(nn.AvgPool2d(8), nn.Flatten()))
    assert (str(model.device), model.dtype) == ("cpu", torch.float32)
    assert model.outputs(torch.ones(1, 3, 8, 8)).tolist() == [[1.0, 1.0, 1.0]]
    assert len(model.digest) == 32

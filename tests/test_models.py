"""The model layer: whatever the model is and wherever it comes from, it is read right and left alone."""

from __future__ import annotations

import json
import pickle
import threading
import urllib.error
import urllib.request
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

import aha
from aha.errors import CapabilityError, MapWarning, ModelError, SpecError, UnknownName, WeightsError
from aha.models import TargetModel, load_model
from aha.models.blocks import BlockLimits
from aha.models.memory import Chunks
from aha.models.rules import OPERATIONS
from aha.scores import SCORES, load_score
from fakes import (
    CLASSES,
    SIZE,
    Boom,
    EncoderViT,
    FrozenBackboneCNN,
    FunctionalCNN,
    GreedyCNN,
    Hungry,
    InPlaceViT,
    LinearModel,
    LinearPatchViT,
    QueryPoolCNN,
    Returns,
    ReusedReluCNN,
    SharedBlockViT,
    TinyCNN,
    changes,
    plain_module,
    randomised,
    snapshot,
    surroundings,
    tiny_vit,
)

NORMAL = {"input_size": SIZE, "mean": (0.5,) * 3, "std": (0.5,) * 3}


def one_line(caught: pytest.ExceptionInfo[Exception]) -> str:
    text = str(caught.value)
    assert "\n" not in text
    return text


def plain_outputs(module: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return module(images.clone())


# What a model returns


@dataclass
class Answer:
    loss: Tensor | None
    logits: Tensor


Pair = namedtuple("Pair", ["logits", "extra"])

WRAPPINGS: dict[str, Callable[[Tensor], Any]] = {
    "tuple": lambda y: (y, "extra"),
    "list": lambda y: [y, y * 0],
    "named tuple": lambda y: Pair(y, y * 0),
    "named tuple, other order": lambda y: namedtuple("Swapped", ["extra", "logits"])(y * 0, y),
    "dict": lambda y: {"logits": y},
    "dict with a loss": lambda y: {"loss": torch.zeros(()), "logits": y},
    "dict with one unknown key": lambda y: OrderedDict(answer=y),
    "dict with features first": lambda y: {"features": y * 0, "pred": y},
    "object": lambda y: Answer(None, y),
    "tuple that starts with nothing": lambda y: (None, y),
    "nested": lambda y: ({"out": y},),
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_outputs_are_found_in_any_wrapping(wrapping: str, images: Tensor) -> None:
    module = randomised(TinyCNN())
    model = load_model(Returns(module, WRAPPINGS[wrapping]))
    assert torch.equal(model.outputs(images), plain_outputs(module, images))
    expected = aha.explain(module, images, "grad_cam").maps
    assert torch.allclose(aha.explain(model, images, "grad_cam").maps, expected, atol=1e-6)


@pytest.mark.parametrize(("reader", "factor"), [("b", 2), (1, 2), (lambda returned: returned["a"] * 3, 3)])
def test_the_caller_may_say_where_the_outputs_are(reader: Any, factor: int, images: Tensor) -> None:
    module = randomised(TinyCNN())
    wrapped = Returns(module, (lambda y: (y, 2 * y)) if reader == 1 else (lambda y: {"a": y, "b": 2 * y}))
    found = load_model(wrapped, output=reader).outputs(images)
    assert torch.allclose(found, factor * plain_outputs(module, images))


@pytest.mark.parametrize(
    ("wrap", "output", "says"),
    [
        (lambda y: "text", None, "returned str without recognisable class outputs; pass output='KEY'"),
        (lambda y: {}, None, "returned dict without recognisable class outputs"),
        (lambda y: None, None, "NoneType"),
        (lambda y: {"a": y}, "b", "the model's output has no entry 'b'"),
        (lambda y: (y,), 3, "no entry 3"),
        (lambda y: y[..., None, None], None, r"shape \(4, 5, 1, 1\), not \(batch, classes\)"),
        (lambda y: y[:1], None, "returned 1 rows for 4 images"),
        (lambda y: y.sum(), None, r"shape \(\)"),
    ],
)
def test_unusable_outputs_are_explained(wrap: Any, output: Any, says: str, images: Tensor) -> None:
    model = load_model(Returns(randomised(TinyCNN()), wrap), output=output)
    with pytest.raises(ModelError, match=says) as caught:
        model.outputs(images)
    one_line(caught)


def test_one_number_per_image_is_a_binary_classifier(images: Tensor) -> None:
    module = randomised(TinyCNN(classes=1))
    flat = load_model(Returns(module, lambda y: y[:, 0]))
    outputs = flat.outputs(images)
    assert outputs.shape == (4, 1)
    assert flat.num_classes == 2
    explanation = aha.explain(flat, images, "gradient(channels='sum')", target=[[0, 1]] * 4)
    maps = explanation.maps.unflatten(0, (4, 2))
    assert torch.allclose(maps[:, 0], -maps[:, 1])
    assert torch.allclose(explanation.scores.view(4, 2).sum(dim=1), torch.ones(4))
    predicted = aha.explain(flat, images, "gradient").targets
    assert predicted.tolist() == (outputs[:, 0] > 0).int().tolist()


# Scores


def test_scores_are_their_formulas() -> None:
    outputs = torch.randn(6, 4, dtype=torch.float64) * 3
    classes = torch.tensor([0, 1, 2, 3, 0, 2])
    picked = outputs[torch.arange(6), classes]
    softmax = outputs.exp() / outputs.exp().sum(dim=1, keepdim=True)
    expected = {
        "logit": picked,
        "softmax": softmax[torch.arange(6), classes],
        "log_softmax": softmax[torch.arange(6), classes].log(),
        "sigmoid": 1 / (1 + (-picked).exp()),
        "regression": picked,
    }
    assert set(expected) == set(SCORES)
    for name, values in expected.items():
        assert torch.allclose(SCORES[name](outputs, classes), values), name


def test_scores_of_a_single_output() -> None:
    outputs = torch.randn(6, 1, dtype=torch.float64) * 3
    ones, zeros = torch.ones(6, dtype=torch.long), torch.zeros(6, dtype=torch.long)
    z = outputs[:, 0]
    assert torch.equal(SCORES["logit"](outputs, ones), z)
    assert torch.equal(SCORES["logit"](outputs, zeros), -z)
    for name in ("softmax", "sigmoid"):
        assert torch.allclose(SCORES[name](outputs, ones), torch.sigmoid(z))
        assert torch.allclose(SCORES[name](outputs, zeros), 1 - torch.sigmoid(z))
    assert torch.allclose(SCORES["log_softmax"](outputs, zeros), torch.log(1 - torch.sigmoid(z)))
    assert torch.equal(SCORES["regression"](outputs, zeros), z)


def test_probabilities_are_explained_by_their_logit() -> None:
    for name in SCORES:
        score = SCORES[name]
        expected = "logit" if score.is_probability else name
        assert score.differentiated().name == expected


@pytest.mark.parametrize("name", list(SCORES))
def test_explained_gradient_is_that_of_the_score(name: str, images: Tensor) -> None:
    module = randomised(TinyCNN())
    leaf = images.clone().requires_grad_()
    score = SCORES[name].differentiated()
    (gradient,) = torch.autograd.grad(score(module(leaf), torch.tensor([1] * 4)).sum(), leaf)
    found = aha.explain(load_model(module, score=name), images, "gradient(channels='sum')", target=1)
    assert torch.allclose(found.maps, gradient.sum(dim=1), atol=1e-6)
    reported = SCORES[name](plain_outputs(module, images), torch.tensor([1] * 4))
    assert torch.allclose(found.scores, reported, atol=1e-6)


def test_a_multi_label_model_scores_each_class_alone(images: Tensor) -> None:
    module = randomised(TinyCNN())
    found = aha.explain(load_model(module, score="sigmoid"), images, "gradient", target="top5")
    assert torch.allclose(found.scores.view(4, 5), plain_outputs(module, images).sigmoid().sort(descending=True).values)


def test_a_regression_model_has_one_thing_to_explain(images: Tensor) -> None:
    module = randomised(TinyCNN(classes=1))
    with torch.no_grad():
        module.head.bias.fill_(100.0)  # a positive prediction is no second class
    model = load_model(module, score="regression")
    found = aha.explain(model, images, "gradient(channels='sum')")
    assert model.num_classes == 1
    assert found.targets.tolist() == [0] * 4
    assert torch.allclose(found.scores, plain_outputs(module, images)[:, 0])
    with pytest.raises(aha.AhaError, match="class 1 does not exist"):
        aha.explain(model, images, "gradient", target=1)


def test_a_callable_score(images: Tensor) -> None:
    def margin(outputs: Tensor, classes: Tensor) -> Tensor:
        best = outputs.gather(1, classes[:, None])[:, 0]
        return best - outputs.mean(dim=1)

    module = LinearModel()
    model = load_model(module, score=margin)
    found = aha.explain(model, images, "gradient(channels='sum')", target=2)
    weights = module.linear.weight.detach()
    expected = (weights[2] - weights.mean(dim=0)).view(3, SIZE, SIZE).sum(dim=0)
    assert torch.allclose(found.maps, expected.expand(4, -1, -1), atol=1e-6)
    assert found.settings["score"] == "margin"
    assert load_score(SCORES["logit"]) is SCORES["logit"]


# Loading: what is refused, and how


@pytest.mark.parametrize(
    ("model", "options", "error", "says"),
    [
        ("resnet18", {}, SpecError, "write SOURCE:NAME with a source of demo, hf, timm, torchvision"),
        ("timm:", {}, SpecError, "cannot read model"),
        ("tim:resnet18", {}, UnknownName, "unknown model source 'tim'; did you mean timm"),
        ("timm:resnet_18", {}, UnknownName, "unknown model timm:resnet_18; did you mean .*resnet18"),
        ("torchvision:resnet_18", {}, UnknownName, "did you mean resnet18"),
        ("demo:resnet18", {}, UnknownName, "unknown model demo:resnet18"),
        ("timm:test_vit", {"weights": "nowhere.pth"}, WeightsError, "no weights at nowhere.pth"),
        ("timm:test_vit", {"device": "cuda:7", "pretrained": False}, ModelError, "'cuda:7' is not available"),
        ("timm:test_vit", {"device": "gpu", "pretrained": False}, ModelError, "'gpu' is not available"),
        ("timm:test_vit", {"img_size": -1}, ModelError, "input size -1"),
        ("timm:test_vit", {"input_size": (1, 2, 3, 4)}, ModelError, "input size"),
        ("timm:test_vit", {"input_size": "big"}, ModelError, "input size 'big'"),
        ("timm:test_vit", {"score": "softmx"}, UnknownName, "did you mean .*softmax"),
        ("timm:test_vit", {"precision": "int8", "pretrained": False}, ModelError, "precision"),
        ("timm:test_vit", {"batch_size": 0, "pretrained": False}, ModelError, "batch size must be at least 1"),
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
    with pytest.raises(ModelError, match="state input_size, mean and std in load_model"):
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
        model = load_model("timm:test_vit", pretrained=False, img_size=64)
        explanation = aha.explain(model, torch.randn(1, 3, 64, 64), "gradient")
    assert explanation.maps.abs().sum() > 0


# Weights


@pytest.fixture
def small_vit() -> nn.Module:
    """A registered timm model with seven classes instead of its own thousand."""
    return randomised(timm.create_model("test_vit", num_classes=7, img_size=64))


def same(model: TargetModel, module: nn.Module) -> bool:
    state = module.state_dict()
    return all(torch.equal(value, state[key]) for key, value in model.module.state_dict().items())


SAVERS: dict[str, Callable[[dict[str, Tensor], Path], None]] = {
    "w.safetensors": save_file,
    "w.pth": torch.save,
    "w.pt": lambda state, path: torch.save({"epoch": 3, "state_dict": state, "best": 0.5}, path),
    "w.bin": lambda state, path: torch.save({"model": state, "optimizer": {"lr": 0.1}}, path),
    "w.ckpt": lambda state, path: torch.save({f"module.{k}": v for k, v in state.items()}, path),
    "w2.safetensors": lambda state, path: save_file({f"module.{k}": v for k, v in state.items()}, path),
    "w2.pth": lambda state, path: torch.save(
        {"model_state_dict": {f"module._orig_mod.{k}": v for k, v in state.items()}}, path
    ),
    "w3.pth": lambda state, path: torch.save(state, path, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("name", SAVERS)
def test_weights_are_read_from_any_honest_file(name: str, small_vit: nn.Module, tmp_path: Path) -> None:
    SAVERS[name](small_vit.state_dict(), tmp_path / name)
    model = load_model("timm:test_vit", weights=tmp_path / name, img_size=64)
    assert same(model, small_vit)
    assert model.num_classes == 7  # read off the head
    assert model.class_names is None
    assert model.preprocessing is not None and model.preprocessing.size == (64, 64)


@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenet_v3_small", "resnet18"])
@pytest.mark.parametrize("ending", ["pth", "safetensors"])
def test_torchvision_weights_with_other_classes(name: str, ending: str, tmp_path: Path) -> None:
    module = torchvision.models.get_model(name, num_classes=3)
    path = tmp_path / f"w.{ending}"
    {"pth": torch.save, "safetensors": save_file}[ending](module.state_dict(), path)
    model = load_model(f"torchvision:{name}", weights=path)
    assert same(model, module)
    assert model.num_classes == 3


def test_weights_of_the_demo_model(tmp_path: Path) -> None:
    module = randomised(timm.create_model("tf_efficientnet_lite0"))
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    assert same(load_model("demo:efficientnet_lite0", weights=tmp_path / "w.safetensors"), module)


def test_weights_that_do_not_fit_are_named(small_vit: nn.Module, tmp_path: Path) -> None:
    state = small_vit.state_dict()
    state["stray.weight"] = torch.zeros(1)
    del state["norm.bias"]
    state["blocks.0.mlp.fc1.bias"] = torch.zeros(3)
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(WeightsError) as caught:
        load_model("timm:test_vit", weights=tmp_path / "w.pth", img_size=64)
    text = one_line(caught)
    assert "missing: norm.bias" in text
    assert "unexpected: stray.weight" in text
    assert "wrong shape: blocks.0.mlp.fc1.bias (3,) instead of" in text


def test_many_mismatches_are_summed_up(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(1)}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"missing: .*, .*, .* and \d+ more; unexpected: a$") as caught:
        load_model("timm:test_vit", weights=tmp_path / "w.pth")
    assert len(one_line(caught)) < 400


class Malicious:
    """An object whose unpickling would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("how", ["torch", "torch in a dict", "old torch", "pickle"])
def test_pickled_objects_are_refused_and_never_run(how: str, tmp_path: Path) -> None:
    evil, path = Malicious(tmp_path / "hacked"), tmp_path / "w.pth"
    if how == "pickle":
        path.write_bytes(pickle.dumps(evil))
    elif how == "torch in a dict":
        torch.save({"state_dict": {}, "config": evil}, path)
    else:
        torch.save(evil, path, _use_new_zipfile_serialization=how == "torch")
    with pytest.raises(WeightsError, match=r"unpickled, which can run code; save its state_dict as") as caught:
        load_model("timm:test_vit", weights=path)
    one_line(caught)
    assert not (tmp_path / "hacked").exists()
    with path.open("rb") as file:  # the trap is a real one
        (torch.load(file, weights_only=False) if how != "pickle" else pickle.load(file))
    assert (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("w.pth", b"no weights at all"),
        ("w.pth", b""),
        ("w.pth", b"PK\x03\x04 cut short"),
        ("w.safetensors", b"\xff" * 64),
        ("w.safetensors", b""),
    ],
)
def test_damaged_files_are_one_line(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=name) as caught:
        load_model("timm:test_vit", weights=tmp_path / name)
    one_line(caught)


def test_files_without_a_state_dict_are_refused(tmp_path: Path) -> None:
    for index, content in enumerate([torch.zeros(3), [torch.zeros(3)], {"lr": 0.1}, {"a": {"b": 1}}]):
        torch.save(content, tmp_path / f"{index}.pth")
        with pytest.raises(WeightsError, match="not a state dict of named tensors"):
            load_model("timm:test_vit", weights=tmp_path / f"{index}.pth")


# Input sizes


def test_position_embeddings_follow_the_input_size(tmp_path: Path) -> None:
    module = randomised(timm.create_model("test_vit", num_classes=7, img_size=64))
    save_file(module.state_dict(), tmp_path / "w.safetensors")
    model = load_model("timm:test_vit", weights=tmp_path / "w.safetensors", img_size=96)
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
    oblong = load_model("timm:test_vit", pretrained=False, img_size=(64, 96))
    assert aha.explain(oblong, Image.new("RGB", (50, 50), "red"), "rollout").maps.shape == (1, 64, 96)
    network = load_model("timm:test_resnet", pretrained=False, img_size=(64, 96))
    assert network.outputs(torch.zeros(1, 3, 64, 96)).shape == (1, 1000)
    small = load_model("torchvision:vit_b_32", pretrained=False, img_size=64)
    assert small.structure().blocks[0].layout.grid == (2, 2)
    with pytest.raises(ModelError, match="square"):
        load_model("torchvision:vit_b_32", pretrained=False, img_size=(64, 96))


def test_greyscale_and_other_channels() -> None:
    grey = load_model(randomised(TinyCNN(channels=1)), input_size=SIZE, mean=(0.5,), std=(0.5,))
    assert aha.explain(grey, Image.linear_gradient("L"), "edge_map").maps.shape == (1, SIZE, SIZE)
    assert "features" in grey.capabilities
    for channels in (1, 4):  # nothing stated: the images say how many channels there are
        module = randomised(TinyCNN(channels=channels))
        inputs = torch.randn(2, channels, SIZE, SIZE)
        for method in ("gradient", "grad_cam", "hires_cam", "smooth(grad_cam, n=2)"):
            assert aha.explain(module, inputs, method).maps.shape == (2, SIZE, SIZE)


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


# Attention


def torchvision_vit() -> nn.Module:
    return torchvision.models.VisionTransformer(
        image_size=SIZE, patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=CLASSES
    )


TRANSFORMERS: dict[str, Callable[[], nn.Module]] = {
    "timm": tiny_vit,
    "timm with registers": lambda: tiny_vit(reg_tokens=4),
    "timm without class token": lambda: tiny_vit(class_token=False, global_pool="avg"),
    "timm with query norm and layer scale": lambda: tiny_vit(qk_norm=True, init_values=0.5),
    "timm with attention pooling": lambda: tiny_vit(class_token=False, global_pool="map"),
    "torchvision": torchvision_vit,
    "nn.TransformerEncoder": EncoderViT,
    "one shared block": SharedBlockViT,
    "residuals outside": LinearPatchViT,
    "residuals in place": InPlaceViT,
}


@pytest.fixture(params=TRANSFORMERS)
def transformer(request: pytest.FixtureRequest) -> nn.Module:
    return randomised(TRANSFORMERS[request.param]())


def attention_by_hooks(module: nn.Module, images: Tensor) -> list[Tensor]:
    """The attention of a timm ViT as its own code computes it when told not to fuse."""
    seen: list[Tensor] = []
    handles = []
    for block in module.blocks:
        block.attn.fused_attn = False
        handles.append(block.attn.attn_drop.register_forward_hook(lambda *call: seen.append(call[2])))
    outputs = module(images)
    for handle, block in zip(handles, module.blocks, strict=True):
        handle.remove()
        block.attn.fused_attn = True
    slopes = torch.autograd.grad(outputs[:, 1].sum(), seen)
    return [*seen, *slopes]


def test_attention_is_seen_and_changes_nothing(transformer: nn.Module, images: Tensor) -> None:
    model = load_model(transformer)
    trace = model.trace(images, attention=True)
    assert len(trace.attention) == (3 if isinstance(transformer, SharedBlockViT) else 2)
    assert (trace.outputs - plain_outputs(transformer, images)).abs().max() < 1e-5
    for matrix in trace.attention:
        batch, heads, queries, keys = matrix.shape
        assert (batch, heads, queries) == (4, 2, keys)
        assert (matrix.sum(dim=-1) - 1).abs().max() < 1e-5
        assert (matrix >= 0).all()
        (slope,) = trace.gradients(torch.tensor([1] * 4), matrix)
        assert slope.abs().sum() > 0


@pytest.mark.parametrize("options", [{}, {"reg_tokens": 4}, {"qk_norm": True, "init_values": 0.5}])
def test_attention_is_that_of_timm(options: dict[str, Any], images: Tensor) -> None:
    module = tiny_vit(**options)
    trace = load_model(module).trace(images, attention=True)
    found = [*trace.attention, *trace.gradients(torch.tensor([1] * 4), *trace.attention)]
    for ours, theirs in zip(found, attention_by_hooks(module, images), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6, rtol=1e-4)


def test_attention_is_that_of_multi_head_attention(images: Tensor) -> None:
    module = randomised(torchvision_vit())
    seen: list[tuple[Tensor, nn.MultiheadAttention]] = []
    for layer in module.encoder.layers:
        layer.self_attention.register_forward_pre_hook(lambda part, args: seen.append((args[0], part)))
    plain_outputs(module, images)
    inputs = seen[:]
    trace = load_model(module).trace(images, attention=True)
    with torch.no_grad():
        expected = [part(x, x, x, average_attn_weights=False)[1] for x, part in inputs]
    for ours, theirs in zip(trace.attention, expected, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_attention_of_the_transformer_encoder(images: Tensor) -> None:
    module = randomised(EncoderViT())
    trace = load_model(module).trace(images, attention=True)
    with torch.no_grad():
        x = module.embedding(images)
        for ours, layer in zip(trace.attention, module.encoder.layers, strict=True):
            assert torch.allclose(ours, layer.self_attn(x, x, x, average_attn_weights=False)[1], atol=1e-5)
            x = layer(x)


def test_attention_that_is_called_by_keywords_is_no_obstacle(images: Tensor) -> None:
    module = randomised(QueryPoolCNN())
    model = load_model(module)
    assert "attention only pools" in model.structure((SIZE, SIZE)).missing["attention"]
    assert torch.allclose(model.trace(images, features=[-1]).outputs, plain_outputs(module, images), atol=1e-5)
    with pytest.raises(CapabilityError, match="attention only pools"):
        aha.explain(model, images, "rollout")


class Masked(nn.Module):
    """Attention with every option that `scaled_dot_product_attention` has."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 16).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, **self.options).transpose(1, 2).flatten(2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.7},
        {"is_causal": True},
        {"attn_mask": torch.ones(17, 17, dtype=torch.bool).tril(2)},
        {"attn_mask": torch.linspace(-3, 3, 17 * 17).view(17, 17)},
    ],
    ids=["plain", "scale", "causal", "mask", "bias"],
)
def test_explicit_attention_equals_the_fused_one(options: dict[str, Any], images: Tensor) -> None:
    vit = tiny_vit()
    module = randomised(nn.Sequential(vit.patch_embed, nn.ZeroPad2d((0, 0, 0, 1)), Masked(**options)))
    module.append(nn.Flatten()).append(nn.Linear(17 * 32, CLASSES))
    trace = load_model(module).trace(images, attention=True)
    assert torch.allclose(trace.outputs, plain_outputs(module, images), atol=1e-5)


def test_grouped_queries_are_repeated() -> None:
    from aha.models.attention import explicit_attention

    q, k, v = torch.randn(2, 4, 5, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    assert torch.allclose(explicit_attention(q, k, v, enable_gqa=True, on_attention=lambda a: a), expected, atol=1e-6)


@pytest.mark.parametrize("name", ["test_convnext", "test_resnet", "test_efficientnet"])
def test_networks_without_attention_say_so(name: str) -> None:
    model = load_model(f"timm:{name}", pretrained=False, input_size=64)
    assert model.capabilities == {"gradients", "features"}
    with pytest.raises(CapabilityError, match=r"rollout needs attention.*no softmax attention is computed.*Try: "):
        aha.explain(model, torch.zeros(1, 3, 64, 64), "rollout")


# Tokens


def test_outputs_follow_from_the_last_tokens(transformer: nn.Module, images: Tensor) -> None:
    model = load_model(transformer)
    structure = model.structure((SIZE, SIZE))
    if isinstance(transformer, LinearPatchViT):
        assert "tokens" not in structure.capabilities
        assert "attention" in structure.capabilities
        with pytest.raises(CapabilityError, match=r"legrad needs tokens.*residual"):
            aha.explain(model, images, "legrad")
        return
    before = snapshot(transformer)
    trace = model.trace(images, tokens=True)
    assert len(trace.tokens) == len(structure.blocks) + 1
    outputs = model.outputs_from_tokens(images, trace.tokens[-1])
    assert torch.allclose(outputs, plain_outputs(transformer, images), atol=1e-5)
    assert outputs.requires_grad
    other = model.outputs_from_tokens(images, trace.tokens[0].detach())
    assert not torch.allclose(other, outputs, atol=1e-3)
    assert not other.requires_grad
    assert changes(before, snapshot(transformer)) == []


def test_tokens_are_the_inputs_and_outputs_of_the_blocks(images: Tensor) -> None:
    module = tiny_vit()
    seen: list[Tensor] = []
    handles = [block.register_forward_hook(lambda _, args, out: seen.extend((args[0], out))) for block in module.blocks]
    plain_outputs(module, images)
    for handle in handles:
        handle.remove()
    trace = load_model(module).trace(images, tokens=True)
    for ours, theirs in zip(trace.tokens, [seen[0], seen[1], seen[3]], strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def distilled() -> nn.Module:
    from timm.models.deit import VisionTransformerDistilled

    return VisionTransformerDistilled(
        img_size=SIZE, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=CLASSES
    )


READOUTS: dict[str, tuple[Callable[[], nn.Module], set[int], int]] = {
    "class token": (tiny_vit, {0}, 17),
    "registers": (lambda: tiny_vit(reg_tokens=4), {0}, 21),
    "mean of the patches": (lambda: tiny_vit(global_pool="avg"), set(range(1, 17)), 17),
    "no class token": (lambda: tiny_vit(class_token=False, global_pool="avg"), set(range(16)), 16),
    "distilled": (distilled, {0, 1}, 18),
    "attention pooling": (lambda: tiny_vit(class_token=False, global_pool="map"), set(range(16)), 16),
    "one shared block": (SharedBlockViT, {0}, 17),
    "residuals outside": (LinearPatchViT, {0}, 17),
}


@pytest.mark.parametrize("name", READOUTS)
def test_readout_is_what_the_head_reads(name: str, images: Tensor) -> None:
    build, read, count = READOUTS[name]
    model = load_model(randomised(build()))
    readout = model.readout((SIZE, SIZE))
    assert len(readout) == count
    assert set(readout.nonzero().flatten().tolist()) == read
    trace = model.trace(images, attention=True)
    matrix = trace.attention[0]
    assert torch.allclose(trace.read(matrix), matrix[:, :, sorted(read)].mean(dim=2))
    assert trace.to_grid(matrix[:, 0, 0]).shape == (4, 4, 4)
    assert torch.equal(trace.to_grid(matrix[:, 0, 0])[:, 0, 1], matrix[:, 0, 0, count - 16 + 1])


def test_an_untrained_head_is_read_as_usual() -> None:
    """As it is before fine-tuning; what is found out is forgotten, since training will change it."""
    module = tiny_vit(global_pool="avg")
    trained = module.head.weight.detach().clone()
    nn.init.zeros_(module.head.weight)
    model = load_model(module)
    assert model.readout((SIZE, SIZE)).nonzero().flatten().tolist() == [0]
    assert model.cam_stage((SIZE, SIZE)) == 2
    with pytest.warns(MapWarning, match="is flat at 0"):
        aha.explain(model, torch.randn(1, 3, SIZE, SIZE), "grad_cam(form='features')")
    with torch.no_grad():
        module.head.weight.copy_(trained)
    assert model.readout((SIZE, SIZE)).sum() == 16
    module = tiny_vit()
    trained = module.head.weight.detach().clone()
    nn.init.zeros_(module.head.weight)
    model = load_model(module)
    assert model.cam_stage((SIZE, SIZE)) == 2
    with torch.no_grad():
        module.head.weight.copy_(trained)
    assert model.cam_stage((SIZE, SIZE)) == 1


def test_class_activation_needs_places_that_are_read() -> None:
    """Behind a class token the last block's patches reach nothing; a pooled readout sees them."""
    expected = {
        "blocks.1.norm1": tiny_vit(),
        "blocks": tiny_vit(global_pool="avg"),
        "norm": tiny_vit(global_pool="avg", final_norm=True, fc_norm=False, class_token=False),
        "encoder.layers.0": randomised(EncoderViT()),
        "encoder.layers.encoder_layer_1.ln_1": randomised(torchvision_vit()),
        "layers.1.0.norm": randomised(LinearPatchViT()),
        "body": randomised(TinyCNN()),
    }
    for name, module in expected.items():
        model = load_model(module)
        assert model.structure((SIZE, SIZE)).stages[model.cam_stage((SIZE, SIZE))].name == name
    shared = load_model(randomised(SharedBlockViT()))
    site = shared.structure((SIZE, SIZE)).stages[shared.cam_stage((SIZE, SIZE))]
    assert (site.name, site.call) == ("block.norm1", 2)


STAGES = {
    "resnet26": ["act1", "layer1", "layer2", "layer3", "layer4"],  # not the first layers of the blocks that shrink
    "regnetx_002": ["stem", "s1", "s2", "s3", "s4"],
    "mobilenetv3_small_050": ["bn1", "blocks.0", "blocks.1", "blocks.3", "blocks"],
    "convnext_atto": [*(f"stages.{i}.downsample.0" for i in (1, 2, 3)), "stages"],  # behind the norm that reads them
    "vit_tiny_patch16_224": [*(f"blocks.{i}.norm1" for i in range(12)), "norm"],
    "cait_xxs24_224": [
        *(f"blocks.{i}.norm1" for i in range(24)),
        *(f"blocks_token_only.{i}.norm1" for i in (0, 1)),
        "norm",
    ],
}


@pytest.mark.parametrize("name", STAGES)
def test_stages_are_what_one_would_choose_by_hand(name: str) -> None:
    model = load_model(f"timm:{name}", pretrained=False, input_size=64)
    assert [site.name for site in model.structure().stages if site.name != "blocks" or name[:3] != "cai"] == STAGES[
        name
    ]


def test_no_stage_of_a_network_with_layer_norms_is_rounding_noise() -> None:
    module = load_model("timm:convnext_atto", pretrained=False, input_size=64).module
    inputs = torch.randn(1, 3, 64, 64)
    for layer in (-1, -2, -3):
        single = aha.explain(module.float(), inputs, f"hires_cam(layer={layer})", target=3).maps
        double = aha.explain(module.double(), inputs, f"hires_cam(layer={layer})", target=3).maps
        assert (single - double).abs().max() < 1e-2 * double.abs().max()


def test_class_activation_is_more_than_rounding_noise(transformer: nn.Module, images: Tensor) -> None:
    """Behind a layer norm, gradients are orthogonal to tokens: the product must be taken on the other side of it."""
    for layer in (-1, -2):
        if isinstance(transformer, EncoderViT) and layer == -2:
            continue  # its first tokens come before any block
        single = aha.explain(transformer.float(), images, f"hires_cam(layer={layer})").maps
        double = aha.explain(transformer.double(), images, f"hires_cam(layer={layer})").maps
        assert (single - double).abs().max() < 1e-3 * double.abs().max()


def test_layers_that_do_not_exist(images: Tensor) -> None:
    for model, method in [
        (TinyCNN(), "grad_cam(layer=-9)"),
        (TinyCNN(), "hires_cam(layer=-9)"),
        (tiny_vit(), "grad_cam(layer=-9)"),
        (tiny_vit(), "raw_attention(layer=-3)"),
        (tiny_vit(), "rollout(start_layer=2)"),
        (tiny_vit(), "legrad(layers=3)"),
    ]:
        with pytest.raises(SpecError, match=r"does not exist|there are 2 blocks"):
            aha.explain(randomised(model), images, method)


# Models with habits


def test_in_place_functional_and_reused_activations(images: Tensor) -> None:
    maps = []
    modules = [FunctionalCNN(), FunctionalCNN(F.relu_), FunctionalCNN(torch.relu), ReusedReluCNN()]
    modules.append(FunctionalCNN(lambda x: F.relu(x, inplace=True)))
    modules.append(FunctionalCNN(Tensor.relu_))
    for module in modules:
        randomised(module)
        maps.append([aha.explain(module, images, m).maps for m in ("gradient", "hires_cam(layer=-2)")])
    for other in maps[1:]:
        for one, two in zip(maps[0], other, strict=True):
            assert torch.allclose(one, two, atol=1e-6)


def test_features_are_not_overwritten_by_what_follows(images: Tensor) -> None:
    module = randomised(nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(64, 5)))
    convolution = module[0]
    model = load_model(module)
    with model.patched({"1": lambda x: x}):  # a hook on the activation changes nothing
        trace = model.trace(images, features=[0])
    assert torch.allclose(trace.outputs, plain_outputs(module, images), atol=1e-6)
    with torch.no_grad():
        assert torch.allclose(trace.features[0], convolution(images).relu(), atol=1e-6)


def test_a_backbone_without_gradients(images: Tensor) -> None:
    frozen, free = randomised(FrozenBackboneCNN()), randomised(TinyCNN())
    for method in ("grad_cam", "hires_cam", "grad_cam(layer=-2)"):
        assert torch.allclose(
            aha.explain(frozen, images, method).maps, aha.explain(free, images, method).maps, atol=1e-6
        )
    with pytest.raises(ModelError, match="no gradient reaches") as caught:
        aha.explain(frozen, images, "gradient")
    one_line(caught)


def test_a_model_that_works_in_place_on_its_input(images: Tensor) -> None:
    module, kept = randomised(GreedyCNN()), images.clone()
    model = load_model(module)
    outputs = model.outputs(images)
    for method in ("gradient", "grad_cam", "integrated_gradients(steps=3)", "edge_map"):
        aha.explain(model, images, method)
    assert torch.equal(images, kept)
    assert torch.equal(outputs, plain_outputs(module, images))


def test_wrapped_modules(images: Tensor) -> None:
    module = randomised(TinyCNN())
    expected = aha.explain(module, images, "grad_cam").maps
    for wrapped in (nn.DataParallel(module), nn.DataParallel(nn.DataParallel(module))):
        explanation = aha.explain(wrapped, images, "grad_cam")
        assert torch.equal(explanation.maps, expected)
        assert explanation.model == "module:TinyCNN"
        assert explanation.digest == load_model(module).digest


def test_double_precision(images: Tensor) -> None:
    for module in (randomised(TinyCNN()), tiny_vit()):
        single = {m: aha.explain(module, images, m).maps for m in METHODS_FOR_ALL}
        module.double()
        for method, expected in single.items():
            for inputs in (images, images.double()):
                found = aha.explain(module, inputs, method).maps
                assert found.dtype == torch.float32
                assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


METHODS_FOR_ALL = (
    "gradient",
    "input_x_gradient",
    "integrated_gradients(steps=4)",
    "grad_cam",
    "hires_cam",
    "smooth(gradient, n=2)",
    "edge_map",
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(images: Tensor, dtype: torch.dtype) -> None:
    for module in (randomised(TinyCNN()), tiny_vit()):
        single = {m: aha.explain(module, images, m, target=1).maps for m in METHODS_FOR_ALL}
        module.to(dtype)
        for method, expected in single.items():
            for inputs in (images, images.to(dtype)):
                found = aha.explain(module, inputs, method, target=1).maps
                assert found.dtype == torch.float32
                both = torch.stack([found.flatten(), expected.flatten()])
                assert torch.corrcoef(both)[0, 1] > 0.9, method


def test_autocast_is_for_outputs_only(images: Tensor) -> None:
    module = randomised(TinyCNN())
    full, half = load_model(module), load_model(module, precision="bfloat16")
    outputs = half.outputs(images)
    assert outputs.dtype == torch.float32
    assert not torch.equal(outputs, full.outputs(images))
    assert torch.allclose(outputs, full.outputs(images), atol=0.2)
    assert torch.equal(
        aha.explain(full, images, "grad_cam", target=0).maps, aha.explain(half, images, "grad_cam", target=0).maps
    )


def test_what_a_model_allows_does_not_depend_on_the_precision() -> None:
    full = load_model(tiny_vit())
    for half in (load_model(tiny_vit(), precision="bfloat16"), load_model(tiny_vit().bfloat16())):
        assert half.block_limits((SIZE, SIZE)) == full.block_limits((SIZE, SIZE)) == BlockLimits()
        assert half.structure((SIZE, SIZE)).missing == full.structure((SIZE, SIZE)).missing


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_every_way_of_reading_leaves_no_trace(mode: Callable[[], Any], images: Tensor) -> None:
    module, classes = tiny_vit(), torch.tensor([1] * 4)
    model = load_model(module)
    with mode():
        given = images.clone()
        before = (snapshot(module), surroundings())
        model.structure((SIZE, SIZE))
        model.cam_stage((SIZE, SIZE))
        model.readout((SIZE, SIZE))
        model.outputs(given)
        model.scores(given, classes)
        model.input_gradients(given, classes)
        trace = model.trace(given, features=[0], tokens=True, attention=True, inputs=True)
        trace.gradients(classes, trace.features[0], trace.tokens[0], trace.attention[0])
        model.outputs_from_tokens(given, trace.tokens[-1])
        assert changes(before[0], snapshot(module)) == []
        assert changes(before[1], surroundings()) == []


def test_passes_are_counted_without_our_own_curiosity(images: Tensor) -> None:
    model = load_model(tiny_vit())
    aha.explain(model, images, "grad_cam(form='features')", target=1)  # finds structure, readout and stage on the way
    assert model.passes == {"forward": 8, "backward": 4}
    model.passes.clear()
    aha.explain(model, images, "gradient", target=1)
    assert model.passes == {"forward": 8, "backward": 4}


def test_outputs_follow_the_callers_gradient_mode(images: Tensor) -> None:
    model = load_model(randomised(TinyCNN()))
    assert not model.outputs(images).requires_grad
    leaf = images.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.outputs(leaf)[:, 1].sum(), leaf)
    assert torch.allclose(gradient, model.input_gradients(images, torch.tensor([1] * 4)), atol=1e-6)
    with torch.no_grad():
        assert not model.outputs(leaf).requires_grad


def test_pixels_and_inputs_are_inverse(images: Tensor) -> None:
    model = load_model(randomised(TinyCNN()), input_size=SIZE, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert torch.allclose(model.to_inputs(model.to_pixels(images)), images, atol=1e-5)
    black = model.to_inputs(torch.zeros(1, 3, 1, 1)).flatten()
    assert torch.allclose(black, torch.tensor([-0.25, -0.4, -0.5]))


def test_threads_take_turns(images: Tensor) -> None:
    """Hooks are global to a module: two threads that explain the same one must not see each other."""
    module = tiny_vit()
    expected = {m: aha.explain(module, images, m).maps for m in ("legrad", "grad_cam", "rollout", "gradient")}
    wrong: list[str] = []

    def work(method: str) -> None:
        for _ in range(8):
            if not torch.equal(aha.explain(module, images, method).maps, expected[method]):
                wrong.append(method)

    threads = [threading.Thread(target=work, args=(method,)) for method in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# Changing a model for a moment


def test_patches_replace_outputs_and_are_undone(images: Tensor) -> None:
    module = randomised(TinyCNN())
    model = load_model(module)
    before, plain = snapshot(module), model.outputs(images)
    with model.patched({"body": torch.zeros_like, "head": lambda y: y + 1}):
        assert torch.allclose(model.outputs(images), module.head.bias.detach().expand(4, -1) + 1)
        with model.patched({"head": lambda y: y * 0}):
            assert model.outputs(images).abs().max() == 0
    assert torch.equal(model.outputs(images), plain)
    with pytest.raises(ZeroDivisionError), model.patched({"body": lambda y: y / (1 // 0)}):
        model.outputs(images)
    unknown = model.patched({"boddy": torch.zeros_like, "head": torch.zeros_like, "x": torch.zeros_like})
    with pytest.raises(ModelError, match=r"module:TinyCNN has no module 'boddy', 'x'"), unknown:
        pass
    assert changes(before, snapshot(module)) == []


class GuidedRelu(torch.autograd.Function):
    """Springenberg et al. (2015): only positive gradients pass, and only where the input was positive."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return slope.clamp(min=0) * (x > 0)


def guided(x: Tensor, inplace: bool = False) -> Tensor:
    return GuidedRelu.apply(x)


def test_guided_backpropagation_by_rules_equals_captum(images: Tensor) -> None:
    from captum.attr import GuidedBackprop

    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    module = randomised(nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, CLASSES)))
    classes = torch.tensor([0, 1, 2, 3])
    with pytest.warns(UserWarning, match="Setting backward hooks on ReLU"):
        expected = GuidedBackprop(module).attribute(images.clone().requires_grad_(), target=classes)
    model = load_model(module)
    plain = model.input_gradients(images, classes)
    before = (snapshot(module), surroundings())
    with model.rules({"relu": guided}):
        found = model.input_gradients(images, classes)
    assert torch.allclose(found, expected, atol=1e-6)
    assert not torch.allclose(found, plain, atol=1e-3)
    assert torch.equal(model.input_gradients(images, classes), plain)
    assert changes(before[0], snapshot(module)) == []
    assert changes(before[1], surroundings()) == []
    for spelling in (F.relu, F.relu_, torch.relu, Tensor.relu, Tensor.relu_, nn.ReLU(), nn.ReLU(inplace=True)):
        twin = FunctionalCNN(spelling)
        twin.load_state_dict(dict(zip(twin.state_dict(), module.state_dict().values(), strict=True)))
        with load_model(twin).rules({"relu": guided}):
            assert torch.allclose(load_model(twin).input_gradients(images, classes), expected, atol=1e-6)


def _increased(x: Tensor) -> Tensor:
    x = x.clone()
    x += 1
    return x


SPELLINGS: dict[str, list[Callable[[Tensor], Tensor]]] = {
    "relu": [nn.ReLU(), F.relu],
    "relu6": [nn.ReLU6(), F.relu6],
    "leaky_relu": [nn.LeakyReLU(), F.leaky_relu],
    "elu": [nn.ELU(), F.elu],
    "gelu": [nn.GELU(), F.gelu],
    "silu": [nn.SiLU(), F.silu],
    "hardswish": [nn.Hardswish(), F.hardswish],
    "mish": [nn.Mish(), F.mish],
    "selu": [nn.SELU(), F.selu, torch.selu],
    "softplus": [nn.Softplus(), F.softplus],
    "prelu": [nn.PReLU(), lambda x: F.prelu(x, torch.ones(1))],
    "tanh": [nn.Tanh(), torch.tanh, Tensor.tanh],
    "sigmoid": [nn.Sigmoid(), torch.sigmoid, Tensor.sigmoid],
    "softmax": [nn.Softmax(dim=-1), lambda x: x.softmax(-1), lambda x: torch.softmax(x, dim=1)],
    "layer_norm": [nn.LayerNorm(8)],
    "batch_norm": [nn.BatchNorm2d(3).eval()],
    "linear": [nn.Linear(8, 8), lambda x: F.linear(x, torch.eye(8))],
    "conv2d": [nn.Conv2d(3, 3, 1)],
    "matmul": [lambda x: x @ x, lambda x: torch.matmul(x, x), lambda x: x.matmul(x)],
    "scaled_dot_product_attention": [lambda x: F.scaled_dot_product_attention(x, x, x)],
    "max_pool2d": [nn.MaxPool2d(2), lambda x: F.max_pool2d(x, 2)],
    "hardsigmoid": [nn.Hardsigmoid(), F.hardsigmoid],
    "rms_norm": [lambda x: F.rms_norm(x, (8,))],
    "group_norm": [nn.GroupNorm(3, 3)],
    "avg_pool2d": [nn.AvgPool2d(2), lambda x: F.avg_pool2d(x, 2)],
    "adaptive_avg_pool2d": [nn.AdaptiveAvgPool2d(1), lambda x: F.adaptive_avg_pool2d(x, 1)],
    "mean": [lambda x: x.mean(dim=1), lambda x: torch.mean(x, dim=1)],
    "add": [lambda x: x + x, lambda x: 1 + x, lambda x: torch.add(x, 1), lambda x: x.clone().add_(x), _increased],
    "mul": [lambda x: x * x, lambda x: 2 * x, lambda x: torch.mul(x, 2), lambda x: x.clone().mul_(x)],
    "div": [lambda x: x / 2, lambda x: torch.div(x, x), lambda x: x.clone().div_(2)],
}


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_every_operation_can_be_replaced(name: str) -> None:
    model, x = load_model(LinearModel()), torch.randn(2, 3, 8, 8)
    for spelling in SPELLINGS[name]:
        with model.rules({name: lambda *_, **__: "replaced"}):
            assert spelling(x) == "replaced"
        assert isinstance(spelling(x), Tensor)


def test_rules_nest_reach_plain_operations_and_are_undone(images: Tensor) -> None:
    module = randomised(FunctionalCNN())
    model = load_model(module)
    plain, world = model.outputs(images), surroundings()
    with model.rules({"relu": lambda x, **_: F.relu(x) * 2}):  # inside a rule, relu is relu
        doubled = model.outputs(images)
        with model.rules({"linear": lambda x, w, b: x @ w.T}):
            assert not torch.allclose(model.outputs(images), doubled)
    assert not torch.allclose(doubled, plain)
    with pytest.raises(Boom), model.rules({"relu": _blow}):
        model.outputs(images)
    unknown = model.rules({"rellu": guided})
    with pytest.raises(SpecError, match=r"no rule can replace 'rellu'; known operations: .*relu"), unknown:
        pass
    assert changes(world, surroundings()) == []
    assert torch.equal(model.outputs(images), plain)


@pytest.mark.parametrize("build", [tiny_vit, lambda: randomised(EncoderViT())])
def test_rules_reach_the_parts_of_fused_attention(build: Callable[[], nn.Module], images: Tensor) -> None:
    model = load_model(build())
    plain, seen = model.outputs(images), []

    def note(x: Tensor, *args: Any, **options: Any) -> Tensor:
        seen.append(x.shape)
        return F.softmax(x, *args, **options)

    with model.rules({"softmax": note}):
        model.outputs(images)
    assert seen == []
    with model.rules({"softmax": note}, attention_in_parts=True):
        assert torch.allclose(model.outputs(images), plain, atol=1e-5)
    assert [shape[-2:] for shape in seen] == [(17, 17)] * 2


def _blow(*_: Any, **__: Any) -> Tensor:
    raise Boom


# Memory


@pytest.mark.parametrize("method", ["gradient", "grad_cam", "integrated_gradients(steps=3)", "smooth(hires_cam, n=2)"])
def test_batches_shrink_until_they_fit(method: str) -> None:
    inputs = torch.randn(13, 3, SIZE, SIZE)
    module = randomised(TinyCNN())
    expected = aha.explain(module, inputs, method, batch_size=1).maps
    hungry = Hungry(module, most=3)
    model = load_model(hungry, batch_size=16)
    assert torch.allclose(aha.explain(model, inputs, method).maps, expected, atol=1e-5)
    assert model.chunks.size <= 3
    hungry.batches.clear()
    aha.explain(model, inputs, method)
    assert max(hungry.batches) <= 3, "the size that fitted is remembered"


class HungryForGradients(Hungry):
    """Has room for many images as long as nothing is recorded."""

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(len(x))
        features = self.module.body(self.module.stem(x))
        if features.requires_grad and len(x) > self.most:
            raise RuntimeError("CUDA out of memory. Tried to allocate a lot")
        return self.module.head(self.module.pool(features).flatten(1))


def test_the_size_that_fits_a_backward_pass_is_remembered() -> None:
    inputs, module = torch.randn(9, 3, SIZE, SIZE), randomised(TinyCNN())
    hungry = HungryForGradients(module, most=2)
    model = load_model(hungry, batch_size=8)
    expected = aha.explain(module, inputs, "grad_cam").maps
    assert torch.allclose(aha.explain(model, inputs, "grad_cam").maps, expected, atol=1e-5)
    assert model.chunks.size == 2
    assert torch.allclose(aha.explain(model, inputs, "grad_cam", batch_size=4).maps, expected, atol=1e-5)
    assert model.chunks.size == 2


@pytest.mark.parametrize("method", ["gradient", "grad_cam", "random_map"])
def test_one_image_too_many_is_one_line(method: str, images: Tensor) -> None:
    module = Hungry(randomised(TinyCNN()), most=0)
    with pytest.raises(ModelError, match="out of memory even for a single image") as caught:
        aha.explain(module, images, method)
    one_line(caught)


def test_chunks_cover_everything_once() -> None:
    calls: list[tuple[int, int]] = []

    def work(part: slice) -> int:
        if part.stop - part.start > 4:
            raise MemoryError
        calls.append((part.start, part.stop))
        return part.stop - part.start

    chunks = Chunks(10)
    assert sum(chunks.run(work, 11)) == 11
    assert [start for start, _ in calls] == [0, *[stop for _, stop in calls[:-1]]]
    assert chunks.run(work, 0) == []
    with pytest.raises(RuntimeError, match="something else"):
        chunks.run(_fails_otherwise, 3)


def _fails_otherwise(_part: slice) -> None:
    raise RuntimeError("something else")


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


def test_digest_of_half_precision_weights() -> None:
    assert load_model(randomised(TinyCNN()).bfloat16()).digest != load_model(randomised(TinyCNN())).digest


def test_a_model_without_parameters() -> None:
    model = load_model(nn.Sequential(nn.AvgPool2d(8), nn.Flatten()))
    assert (str(model.device), model.dtype) == ("cpu", torch.float32)
    assert model.outputs(torch.ones(1, 3, 8, 8)).tolist() == [[1.0, 1.0, 1.0]]
    assert len(model.digest) == 32

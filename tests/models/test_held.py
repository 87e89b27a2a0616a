"""Models as people hold them: modules of timm, torchvision and transformers in memory say what they know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
from PIL import Image
from reading import one_line
from torch import Tensor, nn

import aha
from aha.errors import AhaWarning, CapabilityError, ModelError
from aha.models import load_model
from aha.models.loading.metadata import imagenet_names
from fakes import CLASSES, SIZE, TinyCNN, changes, randomised, snapshot
from two_towers import tiny_classifier

PICTURE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8))


def test_timm_states_sizes_colours_and_names() -> None:
    module = timm.create_model("test_resnet.r160_in1k", pretrained=False)
    before = snapshot(module)
    found = aha.explain(module, PICTURE, "input_x_gradient")
    assert found.maps.shape == (1, 160, 160)
    assert found.original_map().shape == (60, 90)
    assert found.labels[0] == imagenet_names()[int(found.targets[0])]
    assert changes(before, snapshot(module)) == []
    own = timm.data.create_transform(**timm.data.resolve_model_data_config(module), is_training=False)
    inputs, _ = load_model(module).stated_preprocessing()(PICTURE)
    assert torch.allclose(inputs, own(PICTURE), atol=1e-5)


def test_timm_built_for_another_size_and_other_channels() -> None:
    module = timm.create_model("test_vit", pretrained=False, img_size=(64, 96), num_classes=7)
    model = load_model(module)
    assert model.stated_preprocessing().size == (64, 96)
    assert model.class_names is None
    grey = load_model(timm.create_model("test_resnet", pretrained=False, in_chans=1))
    assert len(grey.stated_preprocessing().mean) == 1
    assert aha.explain(grey, PICTURE, "gradient").maps.shape == (1, 160, 160)
    assert load_model(timm.create_model("test_resnet", pretrained=False, in_chans=5)).preprocessing is None


def test_what_is_stated_comes_first() -> None:
    module = timm.create_model("test_resnet", pretrained=False)
    stated = load_model(module, input_size=64, mean=(0.0,) * 3, std=(1.0,) * 3, class_names=["x"] * 1000)
    assert (stated.stated_preprocessing().size, stated.stated_preprocessing().mean) == ((64, 64), (0.0,) * 3)
    assert stated.class_name(3) == "x"
    assert load_model(module, mean=(0.1,) * 3).stated_preprocessing().mean == (0.1,) * 3


def test_torchvision_by_its_weights() -> None:
    weights = torchvision.models.ResNet18_Weights.DEFAULT
    module = torchvision.models.resnet18(weights=None).eval()
    model = load_model(module, weights=weights)
    inputs, geometry = model.stated_preprocessing()(PICTURE)
    assert torch.equal(inputs, weights.transforms()(PICTURE))
    assert np.allclose(model.stated_preprocessing().mean, weights.transforms().mean, atol=1e-5)
    assert model.class_name(281) == "tabby"
    height, width = 60, 90
    side = 224 / 256 * height  # of the square that the crop leaves
    expected = ((height - side) / 2, (width - side) / 2, (height + side) / 2, (width + side) / 2)
    assert np.allclose(geometry.box, expected, atol=0.5)


@pytest.mark.parametrize(
    ("build", "entry"),
    [
        (torchvision.models.resnet18, "ResNet18_Weights.IMAGENET1K_V1"),
        (torchvision.models.mobilenet_v3_small, "MobileNet_V3_Small_Weights.IMAGENET1K_V1"),
        (torchvision.models.swin_t, "Swin_T_Weights.IMAGENET1K_V1"),
    ],
)
def test_torchvision_in_one_call(build: Any, entry: str) -> None:
    module = build(weights=None).eval()
    with pytest.warns(AhaWarning, match=rf"{entry} is assumed. .*weights=torchvision\.models\.{entry}\)$") as heard:
        found = aha.explain(module, PICTURE, "input_x_gradient", target=281)
    assert len(heard) == 1 and heard[0].filename == __file__
    kind, _, name = entry.partition(".")
    stated = load_model(module, weights=getattr(torchvision.models, kind)[name])
    assert torch.equal(found.maps, aha.explain(stated, PICTURE, "input_x_gradient", target=281).maps)
    assert found.labels == ["tabby"]


def test_torchvision_with_another_head_in_one_call() -> None:
    module = torchvision.models.resnet50(weights=None).eval()  # without its head nearer to ResNet-34 than to itself
    module.fc = nn.Linear(2048, 7)
    with pytest.warns(AhaWarning, match="ResNet50_Weights.IMAGENET1K_V2 is assumed"):
        found = aha.explain(module, PICTURE, "edge_map", target=3)
    assert found.labels == ["class 3"]
    aha.explain(module, torch.zeros(1, 3, 64, 64), "random_map")  # inputs need none of it, and there is no warning


def test_names_come_with_torchvisions_weights_and_not_with_their_transform() -> None:
    weights, module = torchvision.models.ResNet18_Weights.DEFAULT, torchvision.models.resnet18(weights=None).eval()
    assert load_model(module, transform=weights.transforms()).class_name(281) == "class 281"
    both = load_model(module, weights=weights, transform=weights.transforms())
    assert both.class_name(281) == "tabby"
    assert load_model(module, transform=weights.transforms(), class_names=["x"] * 1000).class_name(281) == "x"


def test_another_head_does_not_get_the_names_of_the_weights() -> None:
    weights = torchvision.models.ResNet18_Weights.DEFAULT
    model = load_model(torchvision.models.resnet18(weights=None, num_classes=10).eval(), weights=weights)
    assert model.class_names is None
    assert model.stated_preprocessing().size == (224, 224)


def test_weights_without_an_entry_are_answered_with_one() -> None:
    with pytest.raises(ModelError, match=r"name one: weights=ResNet18_Weights\.DEFAULT") as caught:
        load_model(torchvision.models.resnet18(weights=None), weights=torchvision.models.ResNet18_Weights)
    one_line(caught)


def test_options_of_loading_are_sent_there() -> None:
    module = torchvision.models.resnet18(weights=None)
    for call in (aha.explain, aha.explain_batches, aha.evaluate, aha.recommend, aha.train):
        with pytest.raises(ModelError) as caught:
            call(module, PICTURE, "gradient", transform=abs, processor=None)  # type: ignore[operator]
        assert str(caught.value) == (
            "transform=, processor= belong to aha.load_model: "
            f"aha.{call.__name__}(aha.load_model(model, transform=..., processor=...), ...)"
        )
    with pytest.raises(TypeError, match="no_such_option"):
        aha.explain(module, PICTURE, no_such_option=1)  # type: ignore[call-overload]


@pytest.fixture
def classifier() -> nn.Module:
    return tiny_classifier()


def processor_of(classifier: nn.Module) -> Any:
    from transformers import ViTImageProcessor

    return ViTImageProcessor(size={"height": SIZE, "width": SIZE}, image_mean=[0.4] * 3, image_std=[0.2] * 3)


def test_transformers_by_its_processor(classifier: nn.Module) -> None:
    processor = processor_of(classifier)
    with pytest.raises(ModelError, match="pass processor=AutoImageProcessor"):
        aha.explain(classifier, PICTURE, "gradient")
    model = load_model(classifier, processor=processor)
    inputs, _ = model.stated_preprocessing()(PICTURE)
    # Their resizing rounds to bytes at other places: one level of 255, over a standard deviation of 0.2.
    assert torch.allclose(inputs, processor(images=PICTURE, return_tensors="pt")["pixel_values"][0], atol=0.025)
    found = aha.explain(model, PICTURE, "rollout")
    assert found.labels[0].startswith("kind ")


def test_transformers_states_its_size_itself(classifier: nn.Module) -> None:
    model = load_model(classifier, mean=(0.5,) * 3, std=(0.5,) * 3)
    assert model.stated_preprocessing().size == (SIZE, SIZE)
    with pytest.raises(ModelError, match="needs input_size, mean and std together"):
        load_model(classifier, mean=(0.5,) * 3)


def test_transformers_from_where_its_settings_are(classifier: nn.Module, tmp_path: Path) -> None:
    from transformers import ViTForImageClassification

    classifier.save_pretrained(tmp_path)
    processor_of(classifier).save_pretrained(tmp_path)
    loaded = ViTForImageClassification.from_pretrained(tmp_path)
    assert load_model(loaded).stated_preprocessing().mean == pytest.approx((0.4,) * 3)
    assert aha.explain(loaded, PICTURE, "rollout").labels[0].startswith("kind ")


def test_a_folder_without_settings(classifier: nn.Module, tmp_path: Path) -> None:
    classifier.save_pretrained(tmp_path)
    with pytest.raises(
        ModelError,
        match=r"no readable .*\.json; state mean and std \(on the command line: --mean and --std\)",
    ):
        load_model(f"hf:{tmp_path}")
    model = load_model(f"hf:{tmp_path}", mean=(0.5,) * 3, std=(0.5,) * 3, device="cpu")
    assert model.stated_preprocessing().size == (SIZE, SIZE)  # as its configuration says
    assert aha.explain(model, PICTURE, "legrad").labels[0].startswith("kind ")
    assert load_model(f"hf:{tmp_path}", input_size=SIZE, mean=(0.1,) * 3, std=(0.5,) * 3).class_names == tuple(
        f"kind {index}" for index in range(CLASSES)
    )


def test_placeholders_are_no_names(tmp_path: Path) -> None:
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    module = ViTForImageClassification(ViTConfig(**sizes, image_size=SIZE, patch_size=8, num_labels=3))
    assert load_model(module).class_names is None


# Not differentiable


class Rounded(TinyCNN):
    """Leaves PyTorch on the way, as wrappers around other runtimes do."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(super().forward(x).detach().numpy().copy())


class Unrecorded(TinyCNN):
    """Switches recording off for itself."""

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def test_a_module_without_gradients_is_recognised(images: Tensor) -> None:
    model = load_model(randomised(Rounded()), input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    for method in ("gradient", "grad_cam", "integrated_gradients"):
        with pytest.raises(CapabilityError, match="needs gradients, which module:Rounded does not give") as caught:
            aha.explain(model, images, method)
        assert "Try: rise, occlusion, lime" in one_line(caught)
    assert not {"gradient", "grad_cam", "lrp"} & set(aha.list_methods(model))
    assert {"rise", "occlusion", "lime", "score_cam"} <= set(aha.list_methods(model))
    assert aha.explain(model, images, "rise(n=8)").maps.isfinite().all()


def test_a_module_that_switches_recording_off_still_has_its_layers(images: Tensor) -> None:
    assert aha.explain(randomised(Unrecorded()), images, "grad_cam").maps.isfinite().all()


def test_refusals_name_a_few_methods(images: Tensor) -> None:
    with pytest.raises(CapabilityError, match="needs attention") as caught:
        aha.explain(randomised(TinyCNN()), images, "rollout")
    offered = one_line(caught).partition("Try: ")[2].partition(";")[0].split(", ")
    assert 3 <= len(offered) <= 5
    assert offered[0] == "grad_cam"

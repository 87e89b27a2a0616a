"""Volumes and clips (B, C, D, H, W): maps with a third axis, measured in voxels."""

from __future__ import annotations

import os
import runpy
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import captum.attr
import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import Tensor, nn

import aha
from aha.bench.plan import Plan
from aha.bench.runner import BenchRun
from aha.core.pictures import read_image
from aha.demo import photographs
from aha.errors import (
    AhaError,
    AhaWarning,
    CapabilityError,
    ImageError,
    MetricError,
    OutputError,
    SpecError,
)
from aha.methods import METHODS, load_method
from aha.methods.gradients.lrp import PRESETS
from aha.metrics import Case, Sample, load_metric
from aha.models import TargetModel, load_model
from aha.perturb.references import REFERENCES, load_reference, reference_inputs
from fakes import changes, randomised, snapshot, surroundings

SIZE = (4, 24, 20)
EXAMPLE = Path(__file__).parents[1] / "examples" / "volume.py"
# Texts of methods that have to be asked for less, or wrap another.
TEXTS = {
    "smooth": "smooth(gradient, n=2)",
    "rise": "rise(n=8, cells=3)",
    "lime": "lime(n=12, parts=patches(grid=3))",
    "kernel_shap": "kernel_shap(n=80, parts=patches(grid=3))",
    "shapley_sampling": "shapley_sampling(orders=1, parts=patches(grid=3))",
    "integrated_gradients": "integrated_gradients(steps=4)",
    "gradient_shap": "gradient_shap(n=3)",
}
FOR_VOLUMES = sorted(name for name in METHODS if METHODS[name].for_volumes)


def cnn3d(seed: int = 0) -> nn.Sequential:
    """A small 3-D network of 5 classes."""
    layers = [nn.Conv3d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(6, 8, 3, padding=1), nn.ReLU()]
    return randomised(nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 5)), seed)


class VideoTransformer(nn.Module):
    """Tubelets of 2 x 8 x 8 voxels, joint attention over time and space, and a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv3d(3, 16, (2, 8, 8), stride=(2, 8, 8))
        self.start = nn.Parameter(torch.randn(1, 1, 16))
        self.blocks = nn.ModuleList([timm.models.vision_transformer.Block(16, 2) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, clips: Tensor) -> Tensor:
        tokens = self.embed(clips).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.start.expand(len(clips), -1, -1), tokens], dim=1)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(self.norm(tokens)[:, 0])


def one_line(caught: pytest.ExceptionInfo[BaseException]) -> None:
    assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def volumes() -> Tensor:
    return torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(3))


@cache
def stated() -> TargetModel:
    return load_model(cnn3d(), input_size=(3, *SIZE), mean=(0.5,) * 3, std=(0.25,) * 3)


@pytest.mark.parametrize("name", FOR_VOLUMES)
def test_maps_have_a_third_axis_and_leave_no_trace(name: str, volumes: Tensor) -> None:
    network, kept = cnn3d(), volumes.clone()
    before, around = snapshot(network), surroundings()
    # Windows of 15 pixels do not fit: the default is for photographs.
    text = {"occlusion": "occlusion(window=8, stride=8)"}.get(name, TEXTS.get(name, name))
    found = aha.explain(network, volumes, text, 1)
    assert found.maps.shape == (2, *SIZE)
    assert bool(found.maps.isfinite().all())
    alone = aha.explain(network, volumes[1:], text, 1)
    assert torch.allclose(found.maps[1], alone.maps[0], rtol=1e-4, atol=1e-6)
    assert changes(before, snapshot(network)) == changes(around, surroundings()) == []
    assert torch.equal(volumes, kept)


@pytest.mark.parametrize("name", sorted(set(METHODS) - set(FOR_VOLUMES)))
def test_methods_for_images_refuse_in_one_line(name: str, volumes: Tensor) -> None:
    inner = {"bidirectional": "bidirectional", "var": "var(grad_cam, classes=[0, 1])"}
    try:
        text = str(load_method(inner.get(name, name)))
    except SpecError:
        text = f"{name}(grad_cam)"
    with pytest.raises(CapabilityError, match=r"explains images .*, not volumes or clips") as caught:
        aha.explain(stated(), volumes, text, 1)
    one_line(caught)
    with pytest.raises((CapabilityError, SpecError)) as caught:  # what is shown is known when it is there
        aha.explain(cnn3d(), volumes, text, 1)
    one_line(caught)


@pytest.mark.parametrize("name", sorted(REFERENCES))
def test_references_are_made_of_volumes_or_refuse(name: str, volumes: Tensor) -> None:
    text = {"image": "image('a.png')", "neighbours": "neighbours(files=('a.png',))"}.get(name, name)
    chosen, classes = load_reference(text), torch.zeros(2, dtype=torch.long)
    if chosen.for_volumes:
        found = reference_inputs(chosen, stated(), volumes, classes)
        assert found.shape == volumes.shape
        return
    with pytest.raises(SpecError, match="made for images, not for volumes"):
        reference_inputs(chosen, stated(), volumes, classes)


def test_blur_reaches_across_slices() -> None:
    impulse = torch.zeros(1, 3, 9, 21, 21)
    impulse[:, :, 4, 10, 10] = 1
    model = load_model(cnn3d(), input_size=(3, 9, 21, 21), mean=(0.0,) * 3, std=(1.0,) * 3)
    found = load_reference("blur(kernel=7, sigma=1.5)")(model, impulse, torch.zeros(1, dtype=torch.long))[0, 0]
    assert float(found.sum()) == pytest.approx(1, abs=1e-4)
    assert float(found[5, 10, 10]) == pytest.approx(float(found[4, 11, 10]), rel=1e-4)
    assert torch.allclose(found, found.flip(0), atol=1e-7)


def test_equal_to_captum(volumes: Tensor) -> None:
    network, target = cnn3d(), 2
    zero = torch.zeros_like(volumes)
    slopes = captum.attr.Saliency(network).attribute(volumes.clone().requires_grad_(), target, abs=False)
    ours = aha.explain(network, volumes, "gradient(channels='sum')", target)
    assert torch.allclose(ours.maps, slopes.detach().sum(dim=1), atol=1e-6)
    theirs = captum.attr.IntegratedGradients(network).attribute(volumes, zero, target, n_steps=8)
    ours = aha.explain(network, volumes, "integrated_gradients(steps=8)", target)
    assert torch.allclose(ours.maps, theirs.detach().sum(dim=1).float(), atol=1e-5)
    cam = captum.attr.LayerGradCam(network, network[4]).attribute(volumes, target, relu_attributions=True)
    large = nn.functional.interpolate(cam.detach(), SIZE, mode="trilinear", align_corners=False)[:, 0]
    assert torch.allclose(aha.explain(network, volumes, "grad_cam", target).maps, large, atol=1e-6)
    windows = captum.attr.Occlusion(lambda x: network(x)).attribute(
        volumes, (3, 4, 8, 8), strides=(3, 4, 4, 4), target=target, baselines=0
    )
    model = load_model(network, score="logit")
    ours = aha.explain(model, volumes, "occlusion(window=8, stride=4, reference=zeros_normalised)", target)
    assert torch.allclose(ours.maps, windows.detach()[:, 0].float(), atol=1e-5)


LRP_PRESETS = [f"lrp(preset={name!r})" for name in PRESETS]
ADDING_UP = ["gradient(channels='sum')", "grad_cam", "layer_cam", "integrated_gradients(steps=4)", *LRP_PRESETS]
"""Methods whose maps of the slices of a volume sum to that of the image of which all slices are copies."""


def inflated(network: nn.Module) -> nn.Module:
    if not EXAMPLE.is_file():
        pytest.skip("the examples are part of the source tree, not of the package")
    made: nn.Module = runpy.run_path(str(EXAMPLE))["inflated"](network)
    return made


def check_equal_slices(flat: TargetModel, image: Tensor, method: str, *, adding_up: bool) -> None:
    """Copies of an image as slices have equal maps, which sum to that of the image."""
    stated = flat.stated_preprocessing()
    size = (3, 4, *image.shape[-2:])
    deep = load_model(inflated(flat.module).to(image.dtype), input_size=size, mean=stated.mean, std=stated.std)
    classes = flat.outputs(image)[0].argsort(descending=True).tolist()[:20]
    with warnings.catch_warnings():  # Grad-CAM's map of a class may be flat at zero
        warnings.simplefilter("ignore")
        maps = ((cls, aha.explain(flat, image, method, cls).maps) for cls in classes)
        target, wanted = next((cls, found) for cls, found in maps if bool(found.any()))
    clip = image[:, :, None].expand(-1, -1, 4, -1, -1)
    found = aha.explain(deep, clip, method, target).maps
    tolerance = 2e-4 * float(wanted.abs().max())
    assert tolerance > 0
    assert torch.allclose(found, found.mean(dim=1, keepdim=True).expand_as(found), atol=tolerance)
    if adding_up:
        assert torch.allclose(found.sum(dim=1), wanted, atol=tolerance)


@pytest.mark.parametrize("method", ADDING_UP)
def test_equal_slices_have_equal_maps_that_sum_to_that_of_the_image(method: str) -> None:
    network = randomised(timm.create_model("resnet18", pretrained=False, num_classes=10), gain=1.0)
    image = torch.randn(1, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    check_equal_slices(load_model(network), image, method, adding_up=True)


@pytest.mark.skipif("AHA_TEST_WEIGHTS" not in os.environ, reason="AHA_TEST_WEIGHTS names no folder of real weights")
@pytest.mark.parametrize("method", ["gradient(channels='sum')", "grad_cam", "lrp", "lrp(preset='epsilon')"])
def test_equal_slices_with_real_weights(method: str) -> None:
    """ResNet-18 as trained on ImageNet, and a photograph; doubles, since rounding moves the winners of max pooling."""
    loaded = load_model("timm:resnet18", weights=Path(os.environ["AHA_TEST_WEIGHTS"]) / "resnet18.safetensors")
    (photograph,) = photographs(["chelsea.png"])
    image, _ = loaded.stated_preprocessing()(read_image(photograph))
    shown = image[None, :, ::2, ::2].double()
    check_equal_slices(load_model(loaded.module.double()), shown, method, adding_up=True)


def test_aha_of_equal_slices_is_that_of_the_image() -> None:
    """Evidence over all voxels, and one normalisation for all slices: each copy of an image has its map.

    But for ranks of equal places, such as those of zero evidence, which voxels share and pixels do not.
    """
    network = randomised(timm.create_model("resnet18", pretrained=False, num_classes=10), gain=1.0).double()
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)).double()
    normal = {"mean": (0.5,) * 3, "std": (0.25,) * 3}
    flat = load_model(network, input_size=64, **normal)
    wanted = aha.explain(flat, image, "aha('universal')", 1).maps
    one, several = (
        aha.explain(
            load_model(inflated(network).double(), input_size=(3, depth, 64, 64), **normal),
            image[:, :, None].expand(-1, -1, depth, -1, -1),
            "aha",
            1,
        ).maps
        for depth in (1, 4)
    )
    assert torch.allclose(several, one.expand_as(several), atol=0.02 * float(wanted.std()))
    both = torch.stack([several[0, 2].flatten(), wanted[0].flatten()])
    assert float(torch.corrcoef(both)[0, 1]) > 0.95, float(torch.corrcoef(both)[0, 1])


def test_aha_ranks_slices_among_each_other() -> None:
    """A network that reads one slice alone: its voxels come before those of slices that only go through the decoder."""

    class OneSlice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv3d(3, 8, (1, 3, 3), stride=(1, 4, 4), padding=(0, 1, 1)), nn.ReLU())
            self.head = nn.Linear(8, 5)

        def forward(self, volumes: Tensor) -> Tensor:
            return self.head(self.body(volumes)[:, :, 1].mean(dim=(2, 3)))

    volume = torch.randn(1, 3, 1, 32, 32, generator=torch.Generator().manual_seed(4)).expand(-1, -1, 4, -1, -1)
    model = load_model(randomised(OneSlice()), input_size=(3, 4, 32, 32), mean=(0.5,) * 3, std=(0.25,) * 3)
    maps = aha.explain(model, volume, "aha(calibrated=False)", 1).maps[0]
    spread = maps.flatten(1).std(dim=1)
    assert int(spread.argmax()) == 1 and float(spread[1]) > 1.5 * float(spread[[0, 2, 3]].max())
    assert torch.allclose(maps[0], maps[3], atol=1e-3 * float(spread[1]))


@pytest.mark.parametrize("text", ["aha(looks=3)", "aha(refine=1)", "aha(budget=8)"])
def test_aha_draws_volumes_in_one_pass_only(text: str, volumes: Tensor) -> None:
    with pytest.raises(CapabilityError, match="in a single pass only") as caught:
        aha.explain(stated(), volumes, text, 1)
    one_line(caught)


def test_aha_refuses_video_transformers(volumes: Tensor) -> None:
    with pytest.raises(CapabilityError, match="reads 3-D features of stages, not tokens") as caught:
        aha.explain(randomised(VideoTransformer()), nn.functional.pad(volumes, (0, 4)), "aha", 1)
    one_line(caught)


def test_aha_is_no_default_for_what_it_was_never_trained_on(volumes: Tensor) -> None:
    with pytest.warns(AhaWarning, match="no explainer was trained on volumes"):
        found = aha.explain(stated(), volumes, target=1)
    assert found.method == "grad_cam"


@pytest.mark.parametrize("target", ["contrast(0, 2)", "value(3)", "neuron('3', 1)"])
@pytest.mark.parametrize("name", FOR_VOLUMES)
@pytest.mark.filterwarnings("ignore::aha.errors.MapWarning")  # a miniature may have a flat map
def test_targets_of_volumes(name: str, target: str, volumes: Tensor) -> None:
    """Every method that explains volumes, for numbers that are no class: a map of the right shape, or one line."""
    text = {"occlusion": "occlusion(window=8, stride=8)"}.get(name, TEXTS.get(name, name))
    model = stated()
    before = snapshot(model.module)
    try:
        found = aha.explain(model, volumes[:1], text, target)
    except (CapabilityError, SpecError) as error:
        assert "\n" not in str(error)
        assert name in ("ablation_cam", "finer_cam")  # the first for a neuron, the second for all that is no class
    else:
        assert found.maps.shape == (1, *SIZE) and bool(found.maps.isfinite().all())
    assert changes(before, snapshot(model.module)) == []


@pytest.mark.parametrize("preset", PRESETS)
def test_relevance_of_voxels_is_conserved(preset: str, volumes: Tensor) -> None:
    """Without what biases take, the relevance of all voxels is the logit: convolutions, poolings and norms in 3-D."""
    layers = [nn.Conv3d(3, 6, 3, padding=1, bias=False), nn.BatchNorm3d(6), nn.ReLU(), nn.MaxPool3d(2)]
    layers += [nn.Conv3d(6, 8, (1, 3, 3), padding=(0, 1, 1), groups=2), nn.InstanceNorm3d(8), nn.ReLU()]
    layers += [nn.AvgPool3d((1, 2, 2)), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 5)]
    network = randomised(nn.Sequential(*layers)).double()
    classes = torch.tensor([1, 3])
    maps = load_method(f"lrp(preset={preset!r}, bias='ignore', epsilon=0.0)")(
        load_model(network), volumes.double(), classes
    )
    logits = network(volumes.double())[torch.arange(2), classes]
    assert maps.shape == (2, *SIZE)
    assert torch.allclose(maps.sum(dim=(1, 2, 3)), logits, rtol=1e-6)


@pytest.mark.parametrize("preset", ["epsilon", "epsilon_plus", "epsilon_plus_flat", "epsilon_gamma_box"])
def test_relevance_in_kernels_of_one_slice_is_that_of_the_slices(preset: str) -> None:
    """Slices that differ and are read alone: a sum shares relevance out by value, and the rest is as for images."""
    flat = randomised(nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3)))
    deep = nn.Sequential(nn.Conv3d(3, 6, (1, 3, 3), padding=(0, 1, 1)), nn.BatchNorm3d(6), nn.ReLU())
    deep.append(nn.Conv3d(6, 4, (1, 3, 3)))
    deep.load_state_dict({name: v[:, :, None] if v.dim() == 4 else v for name, v in flat.state_dict().items()})
    volume = torch.randn(1, 3, 3, 12, 12, generator=torch.Generator().manual_seed(5))

    def summed(network: nn.Module, depth: int) -> TargetModel:
        total = nn.Linear(4 * depth * 10 * 10, 2, bias=False)
        nn.init.ones_(total.weight)
        size = (3, *[depth] * (depth > 1), 12, 12)
        whole = nn.Sequential(network, nn.Flatten(), total).eval()
        return load_model(whole, input_size=size, mean=(0.5,) * 3, std=(0.5,) * 3)

    method = load_method(f"lrp(preset={preset!r})")
    alone = method(summed(flat, 1), volume[0].movedim(0, 1), torch.zeros(3, dtype=torch.long))
    together = method(summed(deep, 3), volume, torch.zeros(1, dtype=torch.long))
    assert torch.allclose(together[0], alone, atol=1e-4 * float(alone.abs().max()))


@pytest.mark.parametrize("method", ["gradient", "grad_cam", "aha", "legrad", "rollout", "lrp"])
def test_video_transformers_with_pooled_tokens(method: str) -> None:
    """MViT of torchvision: a map, or one line."""
    mvit = pytest.importorskip("torchvision.models.video.mvit")
    config = mvit.MSBlockConfig
    blocks = [
        config(1, 16, 32, (3, 3, 3), (3, 3, 3), (1, 1, 1), (1, 4, 4)),
        config(2, 32, 32, (3, 3, 3), (3, 3, 3), (1, 2, 2), (1, 2, 2)),
    ]
    options = {"residual_pool": True, "residual_with_cls_embed": False, "rel_pos_embed": True}
    network = mvit.MViT((32, 32), 4, blocks, **options, proj_after_attn=True, num_classes=5).eval()
    clips = torch.randn(1, 3, 4, 32, 32, generator=torch.Generator().manual_seed(2))
    if method in ("legrad", "rollout", "lrp"):
        with pytest.raises(CapabilityError, match=r"explains images|changes tensors in place") as caught:
            aha.explain(network, clips, method, 1)
        one_line(caught)
        return
    found = aha.explain(network, clips, method, 1).maps
    assert found.shape == (1, 4, 32, 32) and float(found.abs().max()) > 0


@pytest.mark.parametrize("method", ["grad_cam", "grad_cam(form='features')", "hires_cam", "gradient", "eigen_cam"])
def test_video_transformers(method: str, volumes: Tensor) -> None:
    network, clips = randomised(VideoTransformer()), nn.functional.pad(volumes, (0, 4))
    found = aha.explain(network, clips, method, 1)
    assert found.maps.shape == (2, 4, 24, 24)
    if method != "eigen_cam":
        assert found.maps.abs().sum() > 0
    layouts = load_model(network).structure(clips.shape[1:]).blocks
    assert {block.layout.grid for block in layouts} == {(2, 3, 3)}


def test_deletion_and_insertion_count_voxels(volumes: Tensor) -> None:
    model, count = stated(), SIZE[0] * SIZE[1] * SIZE[2]
    values = torch.arange(count, dtype=torch.float32).view(1, *SIZE)  # the last slice goes first
    scores = aha.evaluate(model, volumes[:1], {"by depth": values}, "deletion(steps=4, references=(black,))", target=1)
    assert not scores.failures
    (row,) = [row for row in scores.rows if row.reference == "black"]
    pixels, heights = model.to_pixels(volumes[:1]), []
    for gone in range(5):
        shown = pixels.clone()
        shown[:, :, SIZE[0] - gone :] = 0
        heights.append(float(model.scores(model.to_inputs(shown), torch.tensor([1]))[0]))
    assert row.value == pytest.approx(float(np.trapezoid(heights) / 4), abs=1e-5)


def test_metrics_refuse_or_measure(volumes: Tensor) -> None:
    model = stated()
    for metric in (
        "insertion(steps=3, references=(black, blur))",
        "ins_del(steps=3, references=(mean,))",
        "sparseness",
    ):
        assert not aha.evaluate(model, volumes, "grad_cam", metric).failures
    for metric in ("information_curve", "single_deletion", "randomisation", "border_mass"):
        with pytest.raises(MetricError, match="measures maps of images, not of volumes or clips") as caught:
            aha.evaluate(model, volumes, "grad_cam", metric)
        one_line(caught)


def test_metrics_that_run_the_method_again(volumes: Tensor) -> None:
    again = aha.evaluate(stated(), volumes, "grad_cam", "repeatability", target=1)
    assert not again.failures
    values = [row.value for row in again.rows if row.metric in ("repeat_again", "repeat_seeds", "repeat_batch")]
    assert len(values) == 6 and values == pytest.approx([1.0] * 6, abs=1e-4)

    def bright(model: TargetModel, inputs: Tensor, classes: Tensor) -> Tensor:
        return model.to_pixels(inputs).mean(dim=1)

    # A map that moves with the volume is stable; a map of noise, compared at other places, would not be.
    sample = Sample(stated(), "v", volumes[0])
    case = Case(sample, 1, bright(stated(), volumes[:1], torch.tensor([1]))[0], explain=bright)
    (least,) = [v.value for v in load_metric("answer_stability")(case) if v.column == "answer_stability_least"]
    assert least > 0.9


def test_a_network_of_volumes_from_a_function(volumes: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As commands name it: its weights of five axes have no channels-last form."""
    (tmp_path / "my_volumes.py").write_text("from test_volumes import stated as network\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    with pytest.warns(AhaWarning, match="runs code"):
        model = load_model("python:my_volumes:network")
    assert torch.allclose(model.outputs(volumes), stated().outputs(volumes), atol=1e-6)
    assert model.preprocessing == stated().preprocessing


def test_bands_that_a_function_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import test_volumes\n\n\ndef network():\n    return test_volumes._model(4, (16, 16), bands=(3, 2, 1))\n"
    (tmp_path / "my_bands.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent)
    with pytest.warns(AhaWarning, match="runs code"):
        assert load_model("python:my_bands:network").bands == (3, 2, 1)


def test_benchmarks_look_for_volumes(tmp_path: Path) -> None:
    Image.new("RGB", (30, 40)).save(tmp_path / "a.png")
    plan = Plan(model="a", data=str(tmp_path), methods=("gradient",))
    with pytest.raises(ImageError, match=r"no arrays in the folder .* looked for \.npy") as caught:
        BenchRun(plan, tmp_path / "run", model=stated())
    one_line(caught)
    assert not (tmp_path / "run").exists()


def test_one_volume_and_its_map(volumes: Tensor) -> None:
    """Its first axis is of channels, not of volumes."""
    scores = aha.evaluate(stated(), volumes[0], {"mine": torch.rand(1, *SIZE)}, "sparseness", target=1)
    assert {row.image for row in scores.rows} == {"image-0"} and not scores.failures


def test_a_card_of_a_volume(volumes: Tensor) -> None:
    found = aha.explain(stated(), volumes[:1], "grad_cam", 1, card=True)
    assert "random pixels" in found.cards[0].sentence


def test_one_volume_is_known_by_the_stated_size(volumes: Tensor) -> None:
    assert aha.explain(stated(), volumes[0], "gradient").maps.shape == (1, *SIZE)
    with pytest.raises(ImageError, match=r"is not \(C, D, H, W\) or \(B, C, D, H, W\)"):
        aha.explain(stated(), volumes[0, 0], "gradient")


def test_drawing(volumes: Tensor, tmp_path: Path) -> None:
    found = aha.explain(stated(), volumes, "gradient", 1)
    assert "2 maps of 4x24x20" in repr(found)
    assert found.overlay(0, slice=1, caption=False).size == (20, 24)
    assert found.overlay(0, slice=-1, caption=False).tobytes() == found.overlay(0, slice=3, caption=False).tobytes()
    best = found.best_slice(0)
    assert best == int(found.maps[0].sum(dim=(1, 2)).argmax())
    assert found.overlay(0).tobytes() == found.overlay(0, slice=best).tobytes()
    assert found.heatmap(1, slice=0).size == found.top_mask(1, slice=0).size == (20, 24)
    sheet = found.montage(0, count=3, columns=2)
    assert sheet.width > 2 * 20
    manifest = found.save(tmp_path)
    (file, *_) = sorted(tmp_path.rglob("*.npz"))
    with np.load(file) as arrays:
        assert arrays["model_map"].shape == SIZE
        assert np.allclose(arrays["model_map"], found.maps[0].numpy()) or np.allclose(
            arrays["model_map"], found.maps[1].numpy()
        )
    assert manifest.is_file()
    assert "<img" in found._repr_html_()
    with pytest.raises(OutputError, match="there is no slice 4; the volume has 4, from 0 to 3"):
        found.overlay(0, slice=4)
    with pytest.raises(OutputError, match="at least one slice and one column"):
        found.montage(0, count=0)
    flat = aha.explain(
        randomised(nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 2))), torch.ones(1, 3, 8, 8), "gradient"
    )
    for call in (lambda: flat.overlay(0, slice=1), lambda: flat.montage()):
        with pytest.raises(OutputError, match="image, which has no slices"):
            call()


def test_a_colour_means_the_same_in_all_slices(volumes: Tensor) -> None:
    found = aha.explain(stated(), volumes[:1], "gradient", 1)
    faint = found.maps.clone()
    faint[0, 0] *= 1e-3
    shown = aha.results.explanation.replace(found, maps=faint)
    pixels = np.asarray(shown.heatmap(0, slice=0)).reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) <= 2  # all near the low end of the volume's scale
    assert len(np.unique(np.asarray(shown.heatmap(0, slice=1)).reshape(-1, 3), axis=0)) > 20


# Files


def _model(channels: int, size: tuple[int, ...], **options: Any) -> TargetModel:
    convolution = nn.Conv3d if len(size) == 3 else nn.Conv2d
    pool = nn.AdaptiveAvgPool3d if len(size) == 3 else nn.AdaptiveAvgPool2d
    network = nn.Sequential(convolution(channels, 4, 3, padding=1), nn.ReLU(), pool(1), nn.Flatten(), nn.Linear(4, 3))
    numbers = tuple(float(channel) for channel in range(channels))
    return load_model(randomised(network), input_size=(channels, *size), mean=numbers, std=(2.0,) * channels, **options)


def test_arrays_of_volumes(tmp_path: Path) -> None:
    model = _model(1, (4, 12, 10))
    values = np.random.default_rng(0).normal(size=(8, 24, 20)).astype(np.float32)
    np.save(tmp_path / "a.npy", values)
    np.savez_compressed(tmp_path / "b.npz", volume=values)
    found = aha.explain(model, tmp_path, "gradient", 1)
    assert found.maps.shape == (2, 4, 12, 10)
    assert torch.allclose(found.maps[0], found.maps[1], atol=1e-7)
    assert found.original_map(0).shape == (8, 24, 20)
    assert len(found.subjects[0].frames) == 8
    assert found.overlay(0, slice=7, caption=False).size == (20, 24)
    given = torch.nn.functional.interpolate(torch.from_numpy(values)[None, None], (4, 12, 10), mode="trilinear")
    by_hand = aha.explain(model, given / 2, "gradient", 1)
    assert torch.allclose(found.maps[0], by_hand.maps[0], atol=1e-6)
    assert torch.allclose(aha.explain(model, values, "gradient", 1).maps[0], found.maps[0], atol=1e-7)


def test_bytes_are_pixels(tmp_path: Path) -> None:
    model = load_model(cnn3d(), input_size=(3, 4, 8, 8), mean=(0.5,) * 3, std=(0.5,) * 3)
    clip = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype=np.uint8)
    found = aha.explain(model, clip, "gradient", 1)
    inputs = (torch.from_numpy(clip).permute(3, 0, 1, 2)[None].float() / 255 - 0.5) / 0.5
    assert torch.allclose(found.maps, aha.explain(model, inputs, "gradient", 1).maps, atol=1e-6)
    assert np.array_equal(np.asarray(found.subjects[0].frames[1]), clip[1])


def test_nifti(tmp_path: Path) -> None:
    nibabel = pytest.importorskip("nibabel")
    values = np.random.default_rng(0).normal(size=(10, 12, 4)).astype(np.float32)  # x, y, z
    place = tmp_path / "scan.nii.gz"
    nibabel.save(nibabel.Nifti1Image(values, np.diag([2.0, 2.0, 5.0, 1.0])), place)
    model = _model(1, (4, 12, 10))
    found = aha.explain(model, place, "gradient", 1)
    by_hand = aha.explain(model, np.ascontiguousarray(values.T), "gradient", 1)
    assert torch.equal(found.maps, by_hand.maps)
    mirrored = tmp_path / "mirrored.nii"  # stored from right to left, and the same in the scanner's coordinates
    affine = np.diag([-2.0, 2.0, 5.0, 1.0])
    nibabel.save(nibabel.Nifti1Image(values[::-1].copy(), affine), mirrored)
    assert torch.equal(aha.explain(model, mirrored, "gradient", 1).maps, found.maps)


def test_a_dicom_series(tmp_path: Path) -> None:
    pydicom = pytest.importorskip("pydicom")
    values = np.random.default_rng(0).integers(0, 2000, (4, 12, 10)).astype(np.uint16)
    series = pydicom.uid.generate_uid()
    folder = tmp_path / "series"
    folder.mkdir()
    for number, name in zip(range(4), "cabd", strict=True):  # names in another order than places
        meta = pydicom.dataset.FileMetaDataset()
        meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
        meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
        meta.MediaStorageSOPInstanceUID = pydicom.uid.generate_uid()
        one = pydicom.dataset.FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
        one.SOPClassUID, one.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
        one.SeriesInstanceUID, one.Rows, one.Columns = series, 12, 10
        one.SamplesPerPixel, one.PhotometricInterpretation, one.PixelRepresentation = 1, "MONOCHROME2", 0
        one.BitsAllocated = one.BitsStored = 16
        one.HighBit, one.RescaleSlope, one.RescaleIntercept = 15, 2, -1000
        one.ImageOrientationPatient, one.ImagePositionPatient = [1, 0, 0, 0, 1, 0], [0, 0, 5.0 * number]
        one.PixelData = values[number].tobytes()
        one.save_as(folder / f"{name}.dcm", enforce_file_format=True)
    model = _model(1, (4, 12, 10))
    found = aha.explain(model, folder, "gradient", 1)
    by_hand = aha.explain(model, values.astype(np.float32) * 2 - 1000, "gradient", 1)
    assert torch.equal(found.maps, by_hand.maps)


# Bands


@pytest.mark.parametrize("channels", [1, 2, 4, 13])
def test_any_number_of_channels(channels: int, tmp_path: Path) -> None:
    model = _model(channels, (16, 16))
    values = np.random.default_rng(0).normal(size=(16, 16, channels)).astype(np.float32)
    inputs = (torch.from_numpy(values).permute(2, 0, 1) - torch.arange(channels)[:, None, None]) / 2
    for method in ("gradient", "grad_cam", "integrated_gradients(steps=3, reference=blur)", "occlusion(window=8)"):
        found = aha.explain(model, inputs, method, 1)
        assert found.maps.shape == (1, 16, 16)
        if channels != 1:
            np.save(tmp_path / "bands.npy", values)
            for given in (values, tmp_path / "bands.npy", values.transpose(2, 0, 1)):
                assert torch.allclose(aha.explain(model, given, method, 1).maps, found.maps, atol=1e-5)
    classes = torch.zeros(1, dtype=torch.long)
    for name in ("black", "white", "mean", "own_mean", "blur", "noise", "rise_blur", "imputed", "shuffled"):
        assert reference_inputs(load_reference(name), model, inputs[None], classes).shape == inputs[None].shape


def test_bands_are_drawn_as_stated() -> None:
    values = np.zeros((16, 16, 4), dtype=np.float32)
    values[:8, :, 3], values[:, :8, 1] = 1000, 500
    picture = aha.explain(_model(4, (16, 16), bands=(3, 2, 1)), values, "gradient", 1).subjects[0].image
    assert picture.getpixel((12, 2)) == (255, 0, 0)
    assert picture.getpixel((2, 12)) == (0, 0, 255)
    grey = aha.explain(_model(4, (16, 16)), values, "gradient", 1).subjects[0].image
    red, green, blue = grey.getpixel((2, 2))
    assert red == green == blue == 255


def test_a_tiff_of_bands(tmp_path: Path) -> None:
    tifffile = pytest.importorskip("tifffile")
    values = np.random.default_rng(0).integers(0, 4000, (5, 20, 24)).astype(np.uint16)
    tifffile.imwrite(tmp_path / "scene.tif", values, photometric="minisblack")
    model = _model(5, (16, 16))
    found = aha.explain(model, tmp_path / "scene.tif", "gradient", 1)
    assert torch.equal(found.maps, aha.explain(model, values, "gradient", 1).maps)
    assert found.original_map(0).shape == (20, 24)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (np.zeros((4, 12, 10, 2), dtype=np.float32), r"has the shape \(4, 12, 10, 2\); the model reads 1 channels"),
        ("missing.npy", "missing.npy does not exist"),
        ("text.npy", "text.npy cannot be read"),
        ("pickled.npy", "pickled.npy cannot be read"),
        ("photo.png", "photo.png is no array; give .npy"),
        (np.full((4, 12, 10), np.nan, dtype=np.float32), "values that are not finite"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    given: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "photo.png").write_bytes(b"\x89PNG")
    np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ImageError, match=says) as caught:
        aha.explain(_model(1, (4, 12, 10)), given, "gradient")
    one_line(caught)


@pytest.mark.parametrize("bands", [(1, 2), (1, 2, 9), "rgb"])
def test_bands_that_are_not_there(bands: Any) -> None:
    with pytest.raises(AhaError, match="must be three channels counted from 0 below 4"):
        _model(4, (16, 16), bands=bands)

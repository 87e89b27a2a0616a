"""Inputs equal those of timm and torchvision; maps return to the pixels they came from."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform
from torchvision.transforms import InterpolationMode
from torchvision.transforms._presets import ImageClassification

import aha
from aha.core.model_options import Fit
from aha.errors import ImageError, ModelError
from aha.models.loading.hf_preprocessing import hf_preprocessing
from aha.models.loading.preprocessing import Geometry, Interpolation, Preprocessing

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Landscape, portrait, square, odd, just about the input's size, and smaller than it (width, height).
SIZES = [(320, 200), (200, 320), (256, 256), (333, 217), (217, 333), (225, 224), (64, 48), (31, 97)]


def noise(size: tuple[int, int]) -> Image.Image:
    pixels = np.random.default_rng(size[0]).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("crop_pct", [0.875, 0.9, 1.0])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "lanczos"])
def test_crop_equals_timm(size: tuple[int, int], crop_pct: float, interpolation: Interpolation) -> None:
    theirs = create_transform((3, 224, 224), False, interpolation=interpolation, mean=MEAN, std=STD, crop_pct=crop_pct)
    ours = Preprocessing((224, 224), MEAN, STD, resize_to=int(224 / crop_pct), interpolation=interpolation)
    image = noise(size)
    torch.testing.assert_close(ours(image)[0], theirs(image), rtol=0, atol=0)
    if crop_pct == 1.0:
        tight = Preprocessing((224, 224), MEAN, STD, interpolation=interpolation)
        torch.testing.assert_close(tight(image)[0], theirs(image), rtol=0, atol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("crop_pct", [0.875, 1.0])
@pytest.mark.parametrize("target", [(96, 192), (192, 96)])
def test_crop_equals_timm_for_oblong_inputs(size: tuple[int, int], crop_pct: float, target: tuple[int, int]) -> None:
    # Here timm always resizes bilinearly, whatever it was asked for.
    theirs = create_transform((3, *target), False, interpolation="bilinear", mean=MEAN, std=STD, crop_pct=crop_pct)
    cover = None if crop_pct == 1.0 else (int(target[0] / crop_pct), int(target[1] / crop_pct))
    ours = Preprocessing(target, MEAN, STD, resize_to=cover, interpolation="bilinear")
    inputs, geometry = ours(noise(size))
    torch.testing.assert_close(inputs, theirs(noise(size)), rtol=0, atol=0)
    assert inputs.shape == (3, *target)
    assert geometry.model == target


@pytest.mark.parametrize("size", [(224, 448), (320, 240)])
@pytest.mark.parametrize("source", ["timm", "torchvision", "demo", "hf cut", "hf whole"])
def test_oblong_inputs_are_covered_by_the_picture(source: str, size: tuple[int, int]) -> None:
    if source.startswith("hf"):
        cut = {"size": {"shortest_edge": 256}, "crop_size": 224, "image_processor_type": "CLIPImageProcessor"}
        whole = {"size": {"height": 224, "width": 224}, "image_processor_type": "ViTImageProcessor"}
        ours = hf_preprocessing(cut if source == "hf cut" else whole, None, size)
    else:
        name = {"timm": "timm:test_resnet", "torchvision": "torchvision:resnet18", "demo": "demo:efficientnet_lite0"}
        ours = aha.load_model(name[source], pretrained=False, input_size=size).preprocessing
    inputs, geometry = ours(Image.new("RGB", (640, 480), (200, 200, 200)))
    assert geometry.model == size
    assert float(ours.denormalise(inputs).min()) > 0.7  # no bar of black


@pytest.mark.parametrize("size", SIZES)
# 97 and 231 leave an odd margin; the last crop is larger than the resized picture, which is padded black.
@pytest.mark.parametrize(("crop", "resize"), [(224, 256), (97, 128), (224, 231), (101, 64)])
def test_crop_equals_torchvision(size: tuple[int, int], crop: int, resize: int) -> None:
    theirs = ImageClassification(
        crop_size=crop, resize_size=resize, mean=MEAN, std=STD, interpolation=InterpolationMode.BILINEAR
    )
    ours = Preprocessing((crop, crop), MEAN, STD, resize_to=resize, interpolation="bilinear")
    torch.testing.assert_close(ours(noise(size))[0], theirs(noise(size)), rtol=0, atol=0)


@pytest.mark.parametrize("size", SIZES)
def test_squash_and_pad_equal_timm(size: tuple[int, int]) -> None:
    image = noise(size)
    for fit, mode, tolerance in (("squash", "squash", 0.0), ("pad", "border", 0.5 / 255 / min(STD) + 1e-6)):
        theirs = create_transform(
            (3, 224, 224), False, interpolation="bicubic", mean=MEAN, std=STD, crop_pct=1.0, crop_mode=mode
        )
        ours = Preprocessing((224, 224), MEAN, STD, fit=fit)  # type: ignore[arg-type]
        # The bars differ by timm's rounding of the mean to an 8-bit colour.
        torch.testing.assert_close(ours(image)[0], theirs(image), rtol=0, atol=tolerance)


def test_pad_bars_are_the_mean_and_never_map_back() -> None:
    inputs, geometry = Preprocessing((64, 64), MEAN, STD, fit="pad")(Image.new("RGB", (80, 40), "white"))
    assert geometry.box == (-20.0, 0.0, 60.0, 80.0)
    assert (inputs[:, :16] == 0).all() and (inputs[:, 48:] == 0).all()
    assert (inputs[:, 16:48] > 1).all()
    bars = torch.zeros(64, 64)
    bars[:14] = bars[50:] = 100.0
    assert geometry.to_original(bars).abs().max() == 0
    assert geometry.seen().all()


def test_greyscale_models_get_one_channel() -> None:
    image = noise((40, 40))
    inputs, _ = Preprocessing((40, 40), (0.5,), (0.25,))(image)
    expected = (torch.from_numpy(np.array(image.convert("L"))).float() / 255 - 0.5) / 0.25
    torch.testing.assert_close(inputs, expected[None], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_denormalise_undoes_normalise(dtype: torch.dtype) -> None:
    preprocessing = Preprocessing((8, 8), MEAN, STD)
    pixels = torch.rand(2, 5, 3, 8, 8, dtype=dtype, generator=torch.Generator().manual_seed(0))
    inputs = preprocessing.normalise(pixels)
    assert inputs.dtype == dtype
    torch.testing.assert_close(inputs[1, 2, 0], (pixels[1, 2, 0] - 0.485) / 0.229)
    torch.testing.assert_close(preprocessing.denormalise(inputs), pixels)


@pytest.mark.parametrize("fit", ["crop", "squash", "pad"])
@pytest.mark.parametrize("size", [(300, 180), (180, 300), (333, 217), (60, 45)])
@pytest.mark.parametrize("down", [True, False], ids=["rows", "columns"])
def test_a_ramp_comes_back_where_it_was(fit: Fit, size: tuple[int, int], down: bool) -> None:
    """The picture is its own map: what went through resize and crop must return to its place."""
    width, height = size
    line = np.linspace(0, 1, height if down else width)
    ramp = np.broadcast_to(line[:, None] if down else line, (height, width))
    image = Image.fromarray(np.rint(ramp * 255).astype(np.uint8)).convert("RGB")
    preprocessing = Preprocessing((112, 112), MEAN, STD, fit=fit, resize_to=128, interpolation="bilinear")
    inputs, geometry = preprocessing(image)
    back = geometry.to_original(preprocessing.denormalise(inputs)[0]).numpy()
    seen = geometry.seen().numpy()
    assert np.array_equal(np.isfinite(back), seen)
    # Away from the borders, where smoothing flattens the ramp or reaches into the bars.
    inner = seen.copy()
    margin = int(np.ceil(max(size) / 112)) + 1
    inner[:margin] = inner[-margin:] = False
    inner[:, :margin] = inner[:, -margin:] = False
    assert inner.sum() > 0.3 * inner.size
    # Half a pixel of misplacement is 0.5 / 45 = 0.011 on the shortest ramp, 0.0015 on the longest.
    assert np.abs(back - ramp)[inner].max() < 2.5 / 255
    assert abs(np.mean((back - ramp)[inner])) < 0.15 / (height if down else width)


def test_crop_window_is_exact() -> None:
    _, geometry = Preprocessing((100, 100), MEAN, STD, resize_to=100)(noise((400, 200)))
    assert geometry == Geometry((200, 400), (100, 100), (0.0, 100.0, 200.0, 300.0))
    seen = geometry.seen()
    assert seen[:, 100:300].all()
    assert not seen[:, :100].any() and not seen[:, 300:].any()
    back = geometry.to_original(torch.ones(2, 3, 100, 100))
    assert back.shape == (2, 3, 200, 400)
    assert torch.equal(torch.isnan(back), ~seen.expand_as(back))


@pytest.mark.parametrize(("row", "column"), [(0, 0), (0, 99), (99, 0), (99, 99)])
def test_a_hot_corner_lands_in_its_corner(row: int, column: int) -> None:
    # Every model pixel is 4 x 4 original pixels of the window from (0, 100) to (400, 500).
    geometry = Geometry((400, 600), (100, 100), (0.0, 100.0, 400.0, 500.0))
    hot = torch.zeros(100, 100)
    hot[row, column] = 1.0
    back = geometry.to_original(hot).nan_to_num()
    corner_row, corner_column = (0 if row == 0 else 399), (100 if column == 0 else 499)
    assert back[corner_row, corner_column] == 1.0
    rows, columns = torch.nonzero(back > 0.5, as_tuple=True)
    assert rows.min() >= row * 4 and rows.max() < row * 4 + 4
    assert columns.min() >= 100 + column * 4 and columns.max() < 100 + column * 4 + 4


def test_sampling_is_at_pixel_centres() -> None:
    # Two model pixels over four: centres at 0.25 and 0.75 of the way, held constant beyond them.
    geometry = Geometry((1, 4), (1, 2), (0.0, 0.0, 1.0, 4.0))
    assert geometry.to_original(torch.tensor([[0.0, 1.0]])).tolist() == [[0.0, 0.25, 0.75, 1.0]]
    assert geometry.to_original(torch.tensor([[0, 4]])).tolist() == [[0.0, 1.0, 3.0, 4.0]]


@pytest.mark.parametrize("size", SIZES)
def test_squash_sees_everything(size: tuple[int, int]) -> None:
    _, geometry = Preprocessing((50, 70), MEAN, STD, fit="squash")(noise(size))
    assert geometry.to_original(torch.rand(50, 70)).isfinite().all()


def test_same_size_is_the_identity() -> None:
    maps = torch.randn(2, 37, 53, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Geometry.identity((37, 53)).to_original(maps), maps)
    for fit in ("crop", "squash", "pad"):
        _, geometry = Preprocessing((37, 53), MEAN, STD, fit=fit)(noise((53, 37)))  # type: ignore[arg-type]
        assert geometry == Geometry.identity((37, 53))


def test_maps_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="do not end in the input size"):
        Geometry.identity((4, 5)).to_original(torch.zeros(5, 4))


def test_elongated_pictures() -> None:
    line = Image.new("RGB", (30_000, 1))
    with pytest.raises(ImageError, match="30000 x 1 pixels is too elongated"):
        Preprocessing((224, 224), MEAN, STD)(line)
    for fit in ("pad", "squash"):
        inputs, geometry = Preprocessing((224, 224), MEAN, STD, fit=fit)(line)  # type: ignore[arg-type]
        assert inputs.shape == (3, 224, 224)
        assert geometry.seen().all()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"mean": (0.5, 0.5)}, "channels"),
        ({"std": (0.2,)}, "channels"),
        ({"std": (0.2, 0.0, 0.2)}, "positive"),
        ({"size": (0, 224)}, "positive"),
        ({"fit": "stretch"}, "unknown fit 'stretch'"),
        ({"interpolation": "cubic"}, "unknown interpolation 'cubic'"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, object], says: str) -> None:
    settings: dict[str, object] = {"size": (224, 224), "mean": MEAN, "std": STD, **changes}
    with pytest.raises(ModelError, match=says):
        Preprocessing(**settings)  # type: ignore[arg-type]

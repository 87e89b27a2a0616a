"""Colours mean what the legend says, and every picture size gets a readable caption."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from aha.drawing.colours import DIVERGING, SEQUENTIAL, hatch, is_signed, lookup_table, scale_of, strength
from aha.drawing.render import annotate, colour, contact_sheet, heatmap, overlay, top_mask
from aha.errors import OutputError, UnknownName


def lightness(pixels: np.ndarray) -> np.ndarray:
    return pixels.astype(float) @ np.array([0.2126, 0.7152, 0.0722])


def ramp(low: float, high: float, size: tuple[int, int] = (20, 30)) -> np.ndarray:
    return np.linspace(low, high, size[0] * size[1]).reshape(size)


def test_unsigned_maps_get_lighter_with_their_values() -> None:
    pixels, scale = colour(ramp(0, 5), clip_percentile=100)
    assert pixels.shape == (20, 30, 3) and pixels.dtype == np.uint8
    assert scale == (0.0, 5.0, SEQUENTIAL)
    flat = pixels.reshape(-1, 3)
    np.testing.assert_array_equal(flat[0], lookup_table(SEQUENTIAL)[0])
    np.testing.assert_array_equal(flat[-1], lookup_table(SEQUENTIAL)[-1])
    # Single steps of an 8-bit table may go back by a rounding; steps of a twentieth may not.
    assert (np.diff(lightness(flat[::30])) > 0).all()


def test_signed_maps_are_neutral_at_zero() -> None:
    pixels, scale = colour(np.array([[-1.0, 0.0, 4.0]]), clip_percentile=100)
    assert scale == (-4.0, 4.0, DIVERGING)
    negative, zero, positive = pixels[0].astype(int)
    assert zero.max() - zero.min() <= 3 and zero.min() > 240
    assert positive[0] > positive[2] + 50, "evidence for is red"
    assert negative[2] > negative[0] + 10, "evidence against is blue"
    assert np.abs(positive - zero).sum() > np.abs(negative - zero).sum(), "one unit is as strong on both sides"


def test_sign_is_decided_by_mass() -> None:
    overshoot = np.ones((10, 10))
    overshoot[0, 0] = -0.1
    assert not is_signed(overshoot)
    overshoot[0] = -0.5
    assert is_signed(overshoot)
    assert scale_of(overshoot, signed=False).low < 0
    assert scale_of(np.ones((2, 2)), signed=True)[:2] == (-1.0, 1.0)


def test_outliers_do_not_darken_the_rest() -> None:
    values = ramp(0, 1, (100, 100))
    values[50, 50] = 1e6
    assert scale_of(values).high < 1.01
    assert scale_of(values, clip_percentile=100).high == 1e6


def test_sparse_maps_are_not_taken_for_flat() -> None:
    for low in (0.0, -3.0):
        values = np.zeros((100, 100))
        values[3, 4] = 2.0
        values[9, 9] = low
        pixels, _ = colour(values)
        assert (pixels[3, 4] != pixels[0, 0]).any()


@pytest.mark.parametrize("value", [0.0, 5.0, -5.0, 1e-30])
def test_flat_unsigned_maps_are_uniformly_low(value: float) -> None:
    pixels, scale = colour(np.full((4, 6), value), signed=False)
    assert (pixels == lookup_table(SEQUENTIAL)[0]).all()
    assert scale.low == scale.high == value
    noisy = np.full((4, 6), value)
    noisy[0, 0] *= 1 + 1e-9
    assert (colour(noisy, signed=False)[0] == lookup_table(SEQUENTIAL)[0]).all()


def test_a_zero_signed_map_is_neutral() -> None:
    pixels, _ = colour(np.zeros((4, 6)), signed=True)
    assert (pixels == lookup_table(DIVERGING)[128]).all()


def test_unseen_pixels_are_hatched() -> None:
    values = ramp(0, 1, (64, 64))
    values[:, :20] = np.nan
    pixels, scale = colour(values)
    np.testing.assert_array_equal(pixels[:, :20], hatch(64, 64)[:, :20])
    assert len(np.unique(pixels[:, :20])) == 2
    assert np.isfinite(scale[:2]).all()
    nothing, _ = colour(np.full((8, 8), np.nan))
    np.testing.assert_array_equal(nothing, hatch(8, 8))


def test_infinities_take_the_end_colours() -> None:
    values = ramp(0, 1)
    values[0, 0], values[-1, -1] = -np.inf, np.inf
    pixels, scale = colour(values, signed=False)
    assert np.isfinite(scale[:2]).all()
    np.testing.assert_array_equal(pixels[0, 0], lookup_table(SEQUENTIAL)[0])
    np.testing.assert_array_equal(pixels[-1, -1], lookup_table(SEQUENTIAL)[-1])


def test_strength_grows_with_distance() -> None:
    values = np.array([[-2.0, 0.0, 1.0, np.nan]])
    signed = strength(values, scale_of(values, signed=True, clip_percentile=100), signed=True)
    assert signed.tolist() == [[1.0, 0.0, 0.5, 0.0]]
    unsigned = strength(values, scale_of(values, signed=False, clip_percentile=100), signed=False)
    np.testing.assert_allclose(unsigned, [[0.0, 2 / 3, 1.0, 0.0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_tensors_are_drawn_like_arrays(dtype: torch.dtype) -> None:
    tensor = torch.arange(12).view(3, 4).to(dtype)
    np.testing.assert_array_equal(colour(tensor)[0], colour(np.arange(12).reshape(3, 4))[0])
    assert heatmap(tensor.float().requires_grad_()).size == (4, 3)


def test_a_named_colour_map_is_used() -> None:
    pixels, scale = colour(ramp(0, 1), cmap="viridis")
    assert scale.cmap == "viridis"
    assert (pixels[0, 0] == lookup_table("viridis")[0]).all()
    with pytest.raises(UnknownName, match="viridis"):
        colour(ramp(0, 1), cmap="virids")


def test_overlay_colours_only_where_there_is_evidence() -> None:
    image = Image.new("RGB", (30, 20), (90, 90, 90))
    values = np.zeros((20, 30))
    values[5:10, 5:10] = 1.0
    values[5:10, 15:20] = 0.5
    values[15:] = np.nan
    pixels = np.asarray(overlay(image, values)).astype(int)
    assert (pixels[0, 0] == 90).all(), "the irrelevant stays as it is"
    strong, moderate = (np.abs(pixels[7, column] - 90).sum() for column in (7, 17))
    assert strong > moderate > 0
    mixed = 0.45 * 90 + 0.55 * lookup_table(SEQUENTIAL)[-1].astype(float)
    np.testing.assert_allclose(pixels[7, 7], mixed, atol=1)
    assert len(np.unique(pixels[15:])) == 2, "the unseen is hatched"
    assert (np.asarray(overlay(image, values, opacity=0))[:15] == 90).all()


def test_overlay_shows_evidence_against() -> None:
    values = np.zeros((20, 30))
    values[:5], values[-5:] = 1.0, -1.0
    pixels = np.asarray(overlay(Image.new("RGB", (30, 20), (128, 128, 128)), values)).astype(int)
    assert pixels[0, 0, 0] > pixels[0, 0, 2] + 20
    assert pixels[-1, 0, 2] > pixels[-1, 0, 0] + 20
    assert (pixels[10, 10] == 128).all()


def test_overlay_mutes_the_colours_of_the_picture() -> None:
    pixels = np.asarray(overlay(Image.new("RGB", (4, 4), (220, 120, 20)), np.zeros((4, 4)))).astype(int)
    assert 0 < pixels[0, 0, 0] - pixels[0, 0, 2] < 100


@pytest.mark.parametrize("percent", [1, 10, 50, 100])
def test_top_mask_keeps_the_share_it_says(percent: float) -> None:
    values = np.random.default_rng(0).permutation(1000).reshape(20, 50).astype(float)
    pixels = np.asarray(top_mask(Image.new("RGB", (50, 20), (200, 200, 200)), values, percent))
    kept = pixels[..., 0] == 200
    assert kept.sum() == 10 * percent
    assert values[kept].min() >= 1000 - 10 * percent
    assert (pixels[~kept] < 60).all()


def test_top_mask_counts_seen_pixels_and_keeps_ties() -> None:
    image = Image.new("RGB", (10, 10), (200, 200, 200))
    values = ramp(0, 1, (10, 10))
    values[5:] = np.nan
    kept = np.asarray(top_mask(image, values, 20))[..., 0] == 200
    assert kept.sum() == 10 and kept[4].all()
    assert (np.asarray(top_mask(image, np.ones((10, 10)), 5)) == 200).all()
    assert (np.asarray(top_mask(image, np.full((10, 10), np.nan), 5)) < 60).all()


@pytest.mark.parametrize("size", [(32, 32), (1, 1), (20, 3000), (224, 224), (500, 120), (4000, 3000)])
def test_annotate_works_for_any_size(size: tuple[int, int]) -> None:
    picture = Image.new("RGB", size, (0, 160, 0))
    bare = annotate(picture, title="tabby cat 91.2 %")
    full = annotate(picture, title="tabby cat 91.2 %", subtitle="Grad-CAM", legend=(0.0, 1.25, SEQUENTIAL))
    assert full.width == bare.width >= 224 and full.height > bare.height
    pixels = np.asarray(full)
    green = (pixels == (0, 160, 0)).all(axis=-1)
    factor = max(1, 224 // max(size))
    assert green.sum() == size[0] * size[1] * factor**2, "the picture is shown whole"
    strip = pixels[size[1] * factor :]
    ink = (strip < 100).all(axis=-1)
    assert 0.003 < ink.mean() < 0.3
    # Text neither touches the borders nor is cut off.
    for edge in (ink[0], ink[-1], ink[:, 0], ink[:, -1]):
        assert not edge.any()


def test_long_captions_end_in_an_ellipsis() -> None:
    picture = Image.new("RGB", (300, 300))
    long = annotate(picture, title="word " * 200)
    assert long.size == annotate(picture, title="word").size
    strip = np.asarray(long)[300:]
    columns = np.flatnonzero((strip < 128).any(axis=(0, 2)))
    assert 240 < columns.max() < 296
    # The same beginning is drawn, so the text was cut at its end.
    start = np.asarray(annotate(picture, title="word word"))[300:]
    np.testing.assert_array_equal(strip[:, :60], start[:, :60])
    assert annotate(picture, title="two\nlines").size == long.size


def test_legend_shows_its_colour_map() -> None:
    picture = Image.new("RGB", (400, 300))
    pixels = np.asarray(annotate(picture, title="", legend=(-0.5, 0.5, DIVERGING)))[300:]
    colours = {tuple(colour) for colour in pixels.reshape(-1, 3)}
    table = lookup_table(DIVERGING)
    assert tuple(table[0]) in colours and tuple(table[-1]) in colours
    flat = annotate(picture, title="", legend=colour(np.zeros((4, 4)))[1])
    assert flat.height == 300 + pixels.shape[0]


def test_contact_sheet_places_every_picture() -> None:
    red, green, blue = (Image.new("RGB", (40, 30), name) for name in ("red", "lime", "blue"))
    plain = np.asarray(contact_sheet([[red, green], [blue]]))
    centres = {}
    for name, value in (("red", (255, 0, 0)), ("green", (0, 255, 0)), ("blue", (0, 0, 255))):
        rows, columns = np.nonzero((plain == value).all(axis=-1))
        assert len(rows) == 1200, name
        centres[name] = (rows.mean(), columns.mean())
    assert centres["red"][0] == centres["green"][0] < centres["blue"][0]
    assert centres["red"][1] == centres["blue"][1] < centres["green"][1]
    labelled = contact_sheet([[red, green], [blue]], row_labels=["a", "b"], column_labels=["c", "a long label"])
    assert labelled.width > plain.shape[1] and labelled.height > plain.shape[0]


def test_a_long_label_takes_two_lines() -> None:
    picture = Image.new("RGB", (160, 30), "lime")

    def label_of(text: str) -> np.ndarray[Any, Any]:
        sheet = np.asarray(contact_sheet([[picture]], column_labels=[text])).astype(int)
        return sheet[: int(np.nonzero((sheet == (0, 255, 0)).all(axis=-1).any(axis=1))[0][0])]

    short, long, cut = map(label_of, ("gradient", "integrated_gradients(steps=20)", "integrated_gradients_of_twenty"))
    assert len(short) == len(cut) < len(long)
    assert not (long[:, :2] < 255).any() and not (long[:, -2:] < 255).any()  # inside its column


def test_impossible_requests_are_explained() -> None:
    image = Image.new("RGB", (30, 20))
    values = np.zeros((20, 30))
    with pytest.raises(OutputError, match="20 x 30 pixels but the image 30 x 20"):
        overlay(image, values.T)
    with pytest.raises(OutputError, match="pixels but the image"):
        top_mask(image, values.T, 10)
    with pytest.raises(OutputError, match="opacity"):
        overlay(image, values, opacity=1.5)
    with pytest.raises(OutputError, match="percent"):
        top_mask(image, values, 0)
    with pytest.raises(OutputError, match="clip_percentile"):
        colour(values, clip_percentile=0.995)
    with pytest.raises(OutputError, match=r"shape \(3, 20, 30\)"):
        heatmap(np.zeros((3, 20, 30)))
    with pytest.raises(OutputError, match="at least one image"):
        contact_sheet([[]])
    with pytest.raises(OutputError, match="1 labels for 2 columns"):
        contact_sheet([[image, image]], column_labels=["only"])

"""Reading pictures: every kind of pixel comes out as the right RGB, every failure as one clear line."""

from __future__ import annotations

import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from aha.data.batches import iter_batches
from aha.data.images import find_images, given_images, read_image
from aha.errors import ImageError
from aha.models import load_model
from aha.models.loading.preprocessing import MAX_PIXELS
from fakes import TinyCNN


@pytest.fixture
def photo() -> Image.Image:
    """A small picture in which every pixel differs, so that any transposition shows."""
    rows, columns = np.mgrid[0:6, 0:9]
    pixels = np.stack([rows * 40, columns * 25, rows * 9 + columns], axis=-1)
    return Image.fromarray(pixels.astype(np.uint8))


def fails_clearly(source: object, says: str) -> None:
    with pytest.raises(ImageError, match=says) as caught:
        read_image(source)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def pixels_of(image: Image.Image) -> np.ndarray:
    assert image.mode == "RGB"
    return np.asarray(image)


def test_rgb_file_is_read_unchanged(photo: Image.Image, tmp_path: Path) -> None:
    photo.save(tmp_path / "photo.png")
    for source in (tmp_path / "photo.png", str(tmp_path / "photo.png")):
        np.testing.assert_array_equal(pixels_of(read_image(source)), np.asarray(photo))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(photo: Image.Image, tmp_path: Path, orientation: int) -> None:
    stored = {
        1: photo,
        2: photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
        3: photo.transpose(Image.Transpose.ROTATE_180),
        4: photo.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
        5: photo.transpose(Image.Transpose.TRANSPOSE),
        6: photo.transpose(Image.Transpose.ROTATE_90),
        7: photo.transpose(Image.Transpose.TRANSVERSE),
        8: photo.transpose(Image.Transpose.ROTATE_270),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(pixels_of(read_image(tmp_path / "turned.png")), np.asarray(photo))


@pytest.mark.parametrize("mode", ["L", "1"])
def test_grey_is_replicated(mode: str, tmp_path: Path) -> None:
    grey = Image.fromarray(np.array([[0, 255], [255, 0]], dtype=np.uint8)).convert(mode)
    grey.save(tmp_path / "grey.png")
    pixels = pixels_of(read_image(tmp_path / "grey.png"))
    np.testing.assert_array_equal(pixels, np.array([[[0] * 3, [255] * 3], [[255] * 3, [0] * 3]]))


def test_transparency_is_composited_over_white(tmp_path: Path) -> None:
    see_through = Image.new("RGBA", (2, 1), (200, 0, 0, 255))
    see_through.putpixel((1, 0), (200, 0, 0, 0))
    grey = Image.new("LA", (2, 1), (100, 255))
    grey.putpixel((1, 0), (100, 0))
    palette = Image.new("P", (2, 1))
    palette.putpalette([200, 0, 0, 0, 0, 0])
    palette.putpixel((1, 0), 1)
    see_through.save(tmp_path / "rgba.png")
    grey.save(tmp_path / "la.png")
    palette.save(tmp_path / "p.png", transparency=1)
    for name, first in (("rgba", (200, 0, 0)), ("la", (100, 100, 100)), ("p", (200, 0, 0))):
        image = read_image(tmp_path / f"{name}.png")
        assert [image.getpixel((x, 0)) for x in (0, 1)] == [first, (255, 255, 255)], name


def test_half_transparent_pixels_are_mixed() -> None:
    assert read_image(Image.new("RGBA", (1, 1), (0, 0, 0, 128))).getpixel((0, 0)) == (127, 127, 127)


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_16_bit_grey_is_scaled_not_clipped(tmp_path: Path, suffix: str) -> None:
    deep = np.array([[0, 257, 32_896, 65_535]], dtype=np.uint16)
    Image.fromarray(deep).save(tmp_path / f"deep.{suffix}")
    expected = [0, 1, 128, 255]
    assert pixels_of(read_image(tmp_path / f"deep.{suffix}"))[0, :, 0].tolist() == expected
    assert pixels_of(read_image(deep))[0, :, 0].tolist() == expected
    assert pixels_of(read_image(deep.astype(">u2")))[0, :, 0].tolist() == expected
    as_int = Image.fromarray(deep.astype(np.int32))
    assert as_int.mode == "I"
    assert pixels_of(read_image(as_int))[0, :, 0].tolist() == expected


def test_big_endian_tiff_is_scaled(tmp_path: Path) -> None:
    pixels = struct.pack(">2H", 0, 65_535)
    # width, height, bits, compression, photometric, data offset, samples, rows, byte count
    tags = [(256, 2), (257, 1), (258, 16), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 4)]
    entries = b"".join(struct.pack(">HHIHH", tag, 3, 1, value, 0) for tag, value in tags)
    file = b"MM\x00*" + struct.pack(">I", 12) + pixels + struct.pack(">H", len(tags)) + entries + b"\0\0\0\0"
    (tmp_path / "big.tif").write_bytes(file)
    with Image.open(tmp_path / "big.tif") as stored:
        assert stored.mode == "I;16B"
    assert pixels_of(read_image(tmp_path / "big.tif"))[0, :, 1].tolist() == [0, 255]


def test_mode_i_beyond_16_bits_is_refused() -> None:
    fails_clearly(Image.new("I", (1, 1), 70_000), "70000; scale them to 16 bits")
    fails_clearly(Image.new("I", (1, 1), -1), "from -1")


def test_cmyk_is_converted(tmp_path: Path) -> None:
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "print.jpg", quality=100)
    red, green, blue = read_image(tmp_path / "print.jpg").getpixel((4, 4))
    assert red > 240 and green < 15 and blue < 15


def test_float_images_and_arrays() -> None:
    ramp = np.array([[0.0, 0.5, 1.0]], dtype=np.float32)
    for source in (
        ramp,
        ramp.astype(np.float64),
        Image.fromarray(ramp),
        ramp[..., None],
        ramp.astype(np.float16),
    ):
        assert pixels_of(read_image(source))[0, :, 2].tolist() == [0, 128, 255]
    overshoot = np.full((2, 2, 3), 1 + 1e-6)
    assert read_image(overshoot).getpixel((0, 0)) == (255, 255, 255)


def test_integer_arrays_and_tensors(photo: Image.Image) -> None:
    pixels = np.array(photo)
    np.testing.assert_array_equal(pixels_of(read_image(pixels)), pixels)
    np.testing.assert_array_equal(pixels_of(read_image(pixels[:, ::-1])), pixels[:, ::-1])
    np.testing.assert_array_equal(pixels_of(read_image(torch.from_numpy(pixels).permute(2, 0, 1))), pixels)
    assert read_image(torch.full((1, 2, 2), 9, dtype=torch.uint8)).getpixel((1, 1)) == (9, 9, 9)
    assert read_image(np.array([[True, False]])).getpixel((0, 0)) == (255, 255, 255)
    assert read_image(np.zeros((1, 1, 4), dtype=np.uint8)).getpixel((0, 0)) == (255, 255, 255)


def test_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    assert read_image(tmp_path / "film.gif").getpixel((0, 0)) == (255, 0, 0)


def test_result_is_independent_of_the_source(photo: Image.Image) -> None:
    read = read_image(photo)
    photo.putpixel((0, 0), (1, 2, 3))
    assert read.getpixel((0, 0)) != (1, 2, 3)


def test_files_that_cannot_be_read(photo: Image.Image, tmp_path: Path) -> None:
    fails_clearly(tmp_path / "absent.png", "absent.png does not exist")
    fails_clearly("https://example.org/cat.jpg", "https://example.org/cat.jpg is an address, not a file")
    fails_clearly(tmp_path, "is a folder")
    (tmp_path / "text.png").write_text("not a picture\n")
    fails_clearly(tmp_path / "text.png", "not a picture in a known format")
    (tmp_path / "empty.png").write_bytes(b"")
    fails_clearly(tmp_path / "empty.png", "not a picture in a known format")
    fails_clearly(tmp_path / "text.png" / "inside.png", "does not exist")


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "tif"])
def test_truncated_files(tmp_path: Path, suffix: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    whole = tmp_path / f"whole.{suffix}"
    Image.fromarray(noise).save(whole)
    cut = tmp_path / f"cut.{suffix}"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    fails_clearly(cut, f"cut.{suffix} ")


def test_postscript_is_never_run(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "script.eps")
    (tmp_path / "script.eps").rename(tmp_path / "script.png")
    fails_clearly(tmp_path / "script.png", "not a picture in a known format")


@pytest.mark.parametrize("factor", [1.1, 3.0], ids=["warned about by Pillow", "refused by Pillow"])
def test_decompression_bombs_are_refused_by_their_header(tmp_path: Path, factor: float) -> None:
    side = int((MAX_PIXELS * factor) ** 0.5) + 1
    header = struct.pack(">2I5B", side, side, 8, 0, 0, 0, 0)
    chunk = struct.pack(">I", len(header)) + b"IHDR" + header + struct.pack(">I", zlib.crc32(b"IHDR" + header))
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT")
    with warnings.catch_warnings(record=True) as emitted:
        warnings.simplefilter("always")
        fails_clearly(tmp_path / "bomb.png", "more than 89,478,485 pixels")
    # Pillow may add its own. Silencing it would mean to change the filters that all threads share.
    assert {warning.category for warning in emitted} <= {Image.DecompressionBombWarning}


def test_arrays_that_are_ambiguous() -> None:
    # A broadcast view has the shape of a huge picture without its memory.
    fails_clearly(np.broadcast_to(np.uint8(0), (10_000, 10_000)), "more than 89,478,485 pixels")
    fails_clearly(np.array([[0.0, np.nan]]), "not finite")
    fails_clearly(np.array([[0.0, np.inf]]), "not finite")
    fails_clearly(np.array([[0.0, 255.0]]), r"from 0 to 255; scale them to \[0, 1\]")
    fails_clearly(np.array([[-0.5, 0.5]]), "from -0.5")
    fails_clearly(Image.new("F", (1, 1), 2.0), "float pixels")
    fails_clearly(np.array([[0, 255]]), "int64 pixels")
    fails_clearly(np.zeros((3, 8, 8), dtype=np.uint8), r"shape \(3, 8, 8\)")
    fails_clearly(np.zeros((2, 8, 8, 3), dtype=np.uint8), "shape")
    fails_clearly(np.zeros(8, dtype=np.uint8), "shape")
    fails_clearly(np.zeros((0, 8, 3), dtype=np.uint8), "empty")
    fails_clearly(Image.new("RGB", (0, 5)), "empty")
    fails_clearly(torch.zeros(3, 8, 8), "torch.float32 tensor")
    fails_clearly(torch.zeros(8, 8, 3, dtype=torch.uint8), "tensor shape")
    fails_clearly(7, "cannot read an image from int")


def test_find_images(tmp_path: Path) -> None:
    names = ["b.PNG", "a.jpg", "deep/er/c.webp", ".hidden.png", ".git/d.png", "notes.txt"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "broken.png").symlink_to(tmp_path / "gone.png")
    found = [path.relative_to(tmp_path).as_posix() for path in find_images(tmp_path)]
    assert found == ["a.jpg", "b.PNG", "deep/er/c.webp"]
    assert find_images(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]
    with pytest.raises(ImageError, match="does not exist"):
        find_images(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(ImageError, match="no images in the folder"):
        find_images(tmp_path / "bare")


def test_given_images_are_named(photo: Image.Image, tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for name in ("one.png", "two.png"):
        photo.save(tmp_path / "many" / name)
    file = tmp_path / "many" / "one.png"
    pictures = list(given_images([photo, tmp_path / "many", np.zeros((2, 2), dtype=np.uint8), str(file)]))
    folder = [str(tmp_path / "many" / name) for name in ("one.png", "two.png")]
    assert [picture.id for picture in pictures] == ["image-0", *folder, "image-3", str(file)]
    assert [picture.path is None for picture in pictures] == [True, False, False, True, False]
    single = next(given_images(photo))
    assert single.label is None
    np.testing.assert_array_equal(pixels_of(read_image(single.read())), np.asarray(photo))


def test_given_images_are_read_when_it_is_their_turn(photo: Image.Image, tmp_path: Path) -> None:
    photo.save(tmp_path / "good.png")
    model = load_model(TinyCNN(), input_size=8, mean=(0.5,) * 3, std=(0.5,) * 3)
    batches = iter_batches(model, (tmp_path / "good.png", tmp_path / "absent.png", np.zeros((2, 2))), 1)
    assert next(batches).subjects[0].image.size == photo.size
    with pytest.raises(ImageError, match=r"absent\.png does not exist"):
        next(batches)
    with pytest.raises(ImageError, match=r"^image-1 has pixels that are not finite"):
        list(iter_batches(model, [np.zeros((2, 2)), np.full((2, 2), np.nan)], 1))
    with pytest.raises(ImageError, match="no images were given"):
        list(given_images([]))

"""One picture from a file, bytes, an array or a tensor, as upright 8-bit RGB.

Every model input starts here, so nothing is guessed silently: what cannot be read unambiguously is an
ImageError that says what to do. Transparent pixels are composited over white.
"""

from __future__ import annotations

import io
import re
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from aha.core.disk import check_regular
from aha.errors import ImageError

ImageSource: TypeAlias = str | Path | bytes | Image.Image | npt.NDArray[Any] | torch.Tensor
"""What one picture can be read from."""

MAX_PIXELS = 89_478_485
"""Largest picture that is decoded: a quarter of a gibibyte of RGB, which is Pillow's own default limit."""

# An allow-list because some of Pillow's formats do more than decode: EPS runs Ghostscript on the file.
_SLOW_FORMATS = ("JPEG2000",)  # 140 ms per megapixel of a photograph, where the others take 1 to 20
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")

_MAX_16_BIT = 65_535
# Resampling and colour conversion in float32 overshoot [0, 1] by a few rounding errors.
_FLOAT_SLACK = 1e-5


def read_image(source: ImageSource, max_pixels: int = MAX_PIXELS, max_slow_pixels: int | None = None) -> Image.Image:
    """Reads one picture as an upright 8-bit RGB image.

    The EXIF orientation is applied, greyscale is replicated, transparency is composited over white, and
    16-bit greyscale (Pillow's mode `I` included) is scaled to 8 bits. Animations give their first frame.

    Args:
        source: A file, or its content as bytes; a Pillow image; an array of shape (H, W) or (H, W, C) with C of 1, 3
            or 4 that holds uint8, uint16, bool, or floats in [0, 1]; or a uint8 tensor of shape (C, H, W).
        max_pixels: Larger pictures are refused, files of them before anything but the header is decoded.
        max_slow_pixels: The same for files of JPEG 2000, which takes ten times as long as others.

    Raises:
        ImageError: The picture cannot be read or its values are ambiguous.
    """
    name = str(source) if isinstance(source, str | Path) else "the image"
    return read_named(source, name, max_pixels, max_slow_pixels)


def read_named(
    source: ImageSource, name: str, max_pixels: int = MAX_PIXELS, max_slow_pixels: int | None = None
) -> Image.Image:
    """As `read_image`; errors call the picture by `name`."""
    if isinstance(source, str | Path | bytes):
        file = io.BytesIO(source) if isinstance(source, bytes) else Path(source)
        with _opened(file, name, max_pixels, max_slow_pixels) as picture:
            return _decode(picture, name, max_pixels)
    if isinstance(source, Image.Image):
        return _decode(source, name, max_pixels)
    if isinstance(source, np.ndarray):
        return _from_array(source, name)
    if isinstance(source, torch.Tensor):
        return _from_tensor(source, name)
    raise ImageError(f"{name}: cannot read an image from {type(source).__name__}; give a path, image or array")


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    """A picture as the content of a file of this kind, such as PNG."""
    buffer = io.BytesIO()
    picture.save(buffer, format=kind, **options)
    return buffer.getvalue()


def missing(name: str) -> str:
    """What is said about a file that is not there; of an address, paths may have made `https:/`."""
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/+", name)
    if scheme:
        address = f"{scheme[1]}://{name[scheme.end() :]}"
        return f"{address} is an address, not a file; nothing is fetched from the network: download it first"
    return f"{name} does not exist; check the path"


def read_values(path: Path, name: str) -> npt.NDArray[Any]:
    """A picture's values (H, W) or (H, W, C) as they stand in the file, for masks; palettes give their indices.

    Raises:
        ImageError: It cannot be read, or is too large.
    """
    with _opened(path, name, MAX_PIXELS) as picture:
        return np.array(_loaded(picture, name))


def _opened(path: Path | io.BytesIO, name: str, max_pixels: int, max_slow_pixels: int | None = None) -> Image.Image:
    """A picture of which the header alone is read; the one place where files of pictures are opened."""
    try:
        if isinstance(path, Path):
            check_regular(path)
        opened = Image.open(path, formats=_formats())
    # From twice Pillow's limit on; a warning below that, unless the program made warnings into errors.
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageError(_too_large(name, max_pixels)) from None
    except (FileNotFoundError, NotADirectoryError):
        raise ImageError(missing(name)) from None
    except IsADirectoryError:
        raise ImageError(f"{name} is a folder; give one image file") from None
    except PermissionError:
        raise ImageError(f"{name} may not be read; check that it is a file and its permissions") from None
    except UnidentifiedImageError:
        raise ImageError(f"{name} is not a picture in a known format; convert it to PNG or JPEG") from None
    except Exception as error:
        raise ImageError(_damaged(name, error)) from error
    # Opening reads the header only, so the size is checked before any pixel is decoded.
    most = max_slow_pixels if max_slow_pixels is not None and opened.format in _SLOW_FORMATS else max_pixels
    try:
        _check_size(opened.height, opened.width, name, most)
    except ImageError:
        opened.close()
        raise
    return opened


@cache
def _formats() -> tuple[str, ...]:
    # Builds of Pillow without an optional codec reject its name.
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _decode(image: Image.Image, name: str, max_pixels: int) -> Image.Image:
    _check_size(image.height, image.width, name, max_pixels)
    try:
        upright = ImageOps.exif_transpose(_loaded(image, name))
    except ImageError:
        raise
    except Exception as error:  # EXIF may be damaged in as many ways as pixels
        raise ImageError(_damaged(name, error)) from error
    return _to_rgb(upright, name)


def _loaded(image: Image.Image, name: str) -> Image.Image:
    try:
        image.load()
    # On damaged files the decoders raise much more than OSError: SyntaxError, ValueError, struct.error, ...
    except Exception as error:
        raise ImageError(_damaged(name, error)) from error
    return image


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "I":
        # Pillow's mode for 16-bit files that it cannot keep in I;16.
        values = np.asarray(image)
        if values.min() < 0 or values.max() > _MAX_16_BIT:
            raise ImageError(f"{name} has pixels from {values.min()} to {values.max()}; scale them to 16 bits")
        return _from_array(values.astype(np.uint16), name)
    if image.mode == "F" or image.mode.startswith("I;16"):
        return _from_array(np.asarray(image), name)
    try:
        if image.has_transparency_data:
            layer = image.convert("RGBA")
            return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")
        # A copy even when the mode is right already: the caller's image may change or be closed later.
        return image.convert("RGB")
    except ValueError:
        raise ImageError(f"{name} has the pixel mode {image.mode}, which has no RGB form; convert it") from None


def _from_tensor(tensor: torch.Tensor, name: str) -> Image.Image:
    if tensor.dtype != torch.uint8:
        # Float tensors are mostly normalised already, and nothing in them tells by which mean.
        raise ImageError(f"{name} is a {tensor.dtype} tensor; give uint8 pixels of shape (C, H, W)")
    if tensor.ndim != 3 or tensor.shape[0] not in (1, 3, 4):
        raise ImageError(f"{name} has the tensor shape {tuple(tensor.shape)}; expected (C, H, W), C of 1, 3 or 4")
    return _from_array(tensor.detach().cpu().permute(1, 2, 0).numpy(), name)


def _from_array(array: npt.NDArray[Any], name: str) -> Image.Image:
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        raise ImageError(f"{name} has the shape {array.shape}; expected (H, W) or (H, W, C), C of 1, 3 or 4")
    _check_size(array.shape[0], array.shape[1], name)
    pixels = _to_bytes(array, name)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    return _to_rgb(Image.fromarray(np.ascontiguousarray(pixels)), name)


def _to_bytes(array: npt.NDArray[Any], name: str) -> npt.NDArray[np.uint8]:
    """Scales pixel values to 0..255."""
    kind, width = array.dtype.kind, array.dtype.itemsize
    if kind == "b":
        return array.astype(np.uint8) * np.uint8(255)
    if kind == "u" and width == 1:
        return array
    if kind == "u" and width == 2:
        return _rounded(array.astype(np.float32) / (_MAX_16_BIT / 255))
    if kind == "f":
        if not np.isfinite(array).all():
            raise ImageError(f"{name} has pixels that are not finite; replace NaN and infinity first")
        low, high = float(array.min()), float(array.max())
        if low < -_FLOAT_SLACK or high > 1 + _FLOAT_SLACK:
            raise ImageError(f"{name} has float pixels from {low:.4g} to {high:.4g}; scale them to [0, 1]")
        return _rounded(np.clip(array.astype(np.float32), 0, 1) * 255)
    # Other integers may mean 0..255 or 0..65535, and a dark picture looks the same either way.
    raise ImageError(f"{name} has {array.dtype} pixels; give uint8, uint16, or floats in [0, 1]")


def _rounded(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    pixels: npt.NDArray[np.uint8] = np.rint(values).astype(np.uint8)
    return pixels


def _check_size(height: int, width: int, name: str, max_pixels: int = MAX_PIXELS) -> None:
    if height < 1 or width < 1:
        raise ImageError(f"{name} is empty: {width} x {height} pixels")
    if height * width > max_pixels:
        raise ImageError(_too_large(name, max_pixels))


def _too_large(name: str, max_pixels: int) -> str:
    return f"{name} has more than {max_pixels:,} pixels; make it smaller first"


def _damaged(name: str, error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"{name} cannot be decoded ({reason}); the file is damaged or cut short, get a fresh copy"

"""Maps as pictures: heat maps, overlays, masks, captions and contact sheets.

All maps are in the pixels of the picture they are drawn on; `Geometry.to_original` brings them there.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageEnhance, ImageFont

from aha.drawing.colours import (
    MapLike,
    Scale,
    as_array,
    class_colours,
    colour,
    hatch,
    is_signed,
    is_symmetric,
    lookup_table,
    scale_of,
    shared_scale,
    strength,
)
from aha.errors import OutputError

__all__ = [
    "Scale",
    "annotate",
    "class_colours",
    "colour",
    "composite",
    "contact_sheet",
    "heatmap",
    "overlay",
    "scale_of",
    "shared_scale",
    "top_mask",
    "with_bar",
]

_PAPER = (255, 255, 255)
_INK = (24, 24, 27)
_FAINT_INK = (99, 99, 106)
# Captions need this many pixels; smaller pictures get a wider strip.
_MIN_CAPTION = 224
_MIN_FONT = 13
# Share of a pixel's own colour that is left where it is dimmed.
_DIMMED = 0.18
_UNSEEN = 0.4
# Share of a picture's own colourfulness that is lost under an overlay.
_MUTED = 0.7
# Below 1, so that moderate evidence is still visible.
_DENSITY_EXPONENT = 0.7

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


def heatmap(
    values: MapLike,
    *,
    signed: bool | None = None,
    cmap: str | None = None,
    scale: Scale | None = None,
) -> Image.Image:
    """A map alone, in the colours of `aha.drawing.colours.colour`."""
    pixels, _ = colour(values, signed=signed, cmap=cmap, scale=scale)
    return Image.fromarray(pixels)


def overlay(
    image: Image.Image,
    values: MapLike,
    *,
    opacity: float = 0.55,
    signed: bool | None = None,
    cmap: str | None = None,
    scale: Scale | None = None,
) -> Image.Image:
    """A map over its picture.

    The colour gets denser with the strength of the evidence, so what is irrelevant stays readable. The
    picture's own colours are muted, so that a warm picture does not look like evidence. Regions that the model never
    saw are dimmed and hatched.

    Args:
        image: The picture.
        values: A map of the picture's size, shape (H, W).
        opacity: How dense the strongest colour is, from 0 to 1.
        signed: As in `colour`.
        cmap: As in `colour`.
        scale: As in `colour`.

    Raises:
        OutputError: The map and the picture differ in size, or the opacity is out of range.
    """
    if not 0 <= opacity <= 1:
        raise OutputError(f"opacity is {opacity}; it must lie between 0 and 1")
    array = _matching(image, values)
    if signed is None:
        signed = is_signed(array) if scale is None else is_symmetric(scale)
    pixels, scale = colour(array, signed=signed, cmap=cmap, scale=scale)
    density = opacity * strength(array, scale, signed=signed) ** _DENSITY_EXPONENT
    density[np.isnan(array)] = 1 - _UNSEEN
    muted = ImageEnhance.Color(image.convert("RGB")).enhance(1 - _MUTED)
    return _mixed(np.asarray(muted), pixels, density)


def composite(
    image: Image.Image, maps: npt.NDArray[Any], shares: npt.NDArray[Any], *, opacity: float = 0.75
) -> Image.Image:
    """A picture in which each place has the colour of the class that wins it, as `class_colours` gives them.

    The clearer a class wins and the stronger its positive evidence, the denser its colour.

    Args:
        image: The picture.
        maps: One map per class in the picture's size, shape (K, H, W).
        shares: How the classes share each place, shape (K, H, W).
        opacity: How dense the strongest colour is, from 0 to 1.
    """
    winner = np.nan_to_num(shares).argmax(axis=0)  # (H, W)
    won, evidence = (np.take_along_axis(stack, winner[None], axis=0)[0] for stack in (shares, maps))
    array = _matching(image, evidence)
    chance = 1 / len(shares)
    clarity = np.clip((won - chance) / (1 - chance), 0, 1)
    scale = scale_of(np.maximum(array, 0), signed=False)._replace(low=0.0)
    density = opacity * strength(array, scale, signed=False) ** _DENSITY_EXPONENT * np.sqrt(clarity)
    unseen = np.isnan(array)
    density[unseen] = 1 - _UNSEEN
    pixels = np.array(class_colours(len(shares)), dtype=np.uint8)[winner]
    pixels[unseen] = hatch(*array.shape)[unseen]
    muted = ImageEnhance.Color(image.convert("RGB")).enhance(1 - _MUTED)
    return _mixed(np.asarray(muted), pixels, density)


def top_mask(image: Image.Image, values: MapLike, percent: float) -> Image.Image:
    """The picture with only the top `percent` % of the pixels that the model saw; the rest is dimmed.

    Pixels that tie with the last one kept are kept too, so a flat map hides nothing.

    Raises:
        OutputError: The map and the picture differ in size, or the percentage is out of range.
    """
    if not 0 < percent <= 100:
        raise OutputError(f"percent is {percent}; it must be above 0 and at most 100")
    array = _matching(image, values)
    seen = array[~np.isnan(array)]
    kept = np.zeros(array.shape, dtype=bool)
    if seen.size:
        count = max(1, round(seen.size * percent / 100))
        # Comparisons with NaN are false, so unseen pixels are dimmed.
        kept = array >= np.partition(seen, seen.size - count)[seen.size - count]
    pixels = np.asarray(image.convert("RGB"))
    return _mixed(pixels, np.zeros_like(pixels), np.where(kept, 0, 1 - _DIMMED))


def annotate(
    picture: Image.Image,
    *,
    title: str,
    subtitle: str = "",
    legend: tuple[float, float, str] | None = None,
    keys: Sequence[tuple[tuple[int, int, int], str]] = (),
) -> Image.Image:
    """Adds a caption strip below a picture.

    Args:
        picture: Any size; pictures of a few pixels are enlarged by a whole factor to be seen at all.
        title: First line, such as the class and its probability. Too long lines end in an ellipsis.
        subtitle: Second line, such as the method.
        legend: Low value, high value and colour map of a colour bar, as in the `Scale` from `colour`.
        keys: Colours and what they stand for, one line each.
    """
    factor = max(1, _MIN_CAPTION // max(picture.size))
    shown = picture.convert("RGB").resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
    width = max(shown.width, _MIN_CAPTION)
    size = max(_MIN_FONT, min(width // 26, shown.height // 12))
    line, margin = round(size * 1.4), round(size * 0.6)
    rows = 1 + bool(subtitle) + bool(legend) + len(keys)
    canvas = Image.new("RGB", (width, shown.height + 2 * margin + rows * line), _PAPER)
    canvas.paste(shown, ((width - shown.width) // 2, 0))
    draw = ImageDraw.Draw(canvas)
    inner = width - 2 * margin
    # Rows are placed by the middle of the text, which looks even whatever its letters.
    middle = shown.height + margin + line // 2
    large, small = ImageFont.load_default(size), ImageFont.load_default(round(size * 0.85))
    draw.text((margin, middle), _shortened(title, large, inner), fill=_INK, font=large, anchor="lm")
    if subtitle:
        middle += line
        draw.text((margin, middle), _shortened(subtitle, small, inner), fill=_FAINT_INK, font=small, anchor="lm")
    if legend:
        middle += line
        _draw_legend(canvas, legend, (margin, middle), inner, small)
    for key, text in keys:
        middle += line
        draw.rectangle((margin, middle - size // 2, margin + size, middle + size // 2), fill=key)
        left = margin + 2 * size
        draw.text((left, middle), _shortened(text, small, width - margin - left), fill=_INK, font=small, anchor="lm")
    return canvas


def with_bar(picture: Image.Image, scale: Scale) -> Image.Image:
    """A picture above one colour bar with its numbers, for maps that share a scale."""
    width = max(picture.width, _MIN_CAPTION)
    size = max(_MIN_FONT, min(width // 40, 18))
    canvas = Image.new("RGB", (width, picture.height + 2 * size), _PAPER)
    canvas.paste(picture.convert("RGB"), ((width - picture.width) // 2, 0))
    font = ImageFont.load_default(size)
    _draw_legend(canvas, scale, (size, picture.height + size), width - 2 * size, font)
    return canvas


def contact_sheet(
    rows: Sequence[Sequence[Image.Image]],
    *,
    row_labels: Sequence[str] = (),
    column_labels: Sequence[str] = (),
) -> Image.Image:
    """Pictures in a grid with labels to the left and on top.

    Rows may be of different length and pictures of different size; each is centred in its cell.

    Raises:
        OutputError: There are no pictures, or the labels do not fit their number.
    """
    columns = max((len(row) for row in rows), default=0)
    if columns == 0:
        raise OutputError("a contact sheet needs at least one image")
    for labels, count, what in ((row_labels, len(rows), "rows"), (column_labels, columns, "columns")):
        if labels and len(labels) != count:
            raise OutputError(f"{len(labels)} labels for {count} {what} of a contact sheet")
    widths = [max((row[i].width for row in rows if i < len(row)), default=0) for i in range(columns)]
    heights = [max((image.height for image in row), default=0) for row in rows]
    size = max(_MIN_FONT, max(widths) // 16)
    font, gap = ImageFont.load_default(size), max(4, size // 2)
    titles = [_two_lines(label, font, width) for label, width in zip(column_labels, widths, strict=False)]
    header = max((len(lines) for lines in titles), default=0) * round(size * 1.4) + (gap if titles else 0)
    longest = max((font.getlength(_one_line(label)) for label in row_labels), default=0)
    side = min(round(longest) + 1, max(widths)) + gap if row_labels else 0
    lefts = _starts(gap + side, widths, gap)
    tops = _starts(gap + header, heights, gap)
    canvas = Image.new("RGB", (lefts[-1], tops[-1]), _PAPER)
    draw = ImageDraw.Draw(canvas)
    for lines, left, width in zip(titles, lefts, widths, strict=False):
        middle = (left + width // 2, gap + header // 2)
        draw.multiline_text(middle, "\n".join(lines), fill=_INK, font=font, anchor="mm", align="center")
    for label, top, height in zip(row_labels, tops, heights, strict=False):
        text = _shortened(label, font, side - gap)
        draw.text((side, top + height // 2), text, fill=_INK, font=font, anchor="rm")
    for row, top, height in zip(rows, tops, heights, strict=False):
        for image, left, width in zip(row, lefts, widths, strict=False):
            corner = (left + (width - image.width) // 2, top + (height - image.height) // 2)
            canvas.paste(image.convert("RGB"), corner)
    return canvas


def _starts(first: int, lengths: Sequence[int], gap: int) -> list[int]:
    """Where cells of these lengths begin, and where the last of them and its gap end."""
    starts = [first]
    for length in lengths:
        starts.append(starts[-1] + length + gap)
    return starts


def _matching(image: Image.Image, values: MapLike) -> npt.NDArray[np.float64]:
    array = as_array(values)
    if array.shape != (image.height, image.width):
        there, here = f"{array.shape[1]} x {array.shape[0]}", f"{image.width} x {image.height}"
        raise OutputError(f"the map has {there} pixels but the image {here}; resize it to the image's size")
    return array


def _mixed(under: npt.NDArray[Any], over: npt.NDArray[Any], density: npt.NDArray[np.float64]) -> Image.Image:
    weight = density[..., None].astype(np.float32)
    return Image.fromarray(np.rint(under * (1 - weight) + over * weight).astype(np.uint8))


def _draw_legend(
    canvas: Image.Image, legend: tuple[float, float, str], place: tuple[int, int], width: int, font: Font
) -> None:
    """Draws low value, colour bar and high value in one row, whose left middle is at `place`."""
    low, high, cmap = legend
    left, middle = place
    draw = ImageDraw.Draw(canvas)
    low_text, high_text = f"{low:.3g}", f"{high:.3g}"
    draw.text((left, middle), low_text, fill=_FAINT_INK, font=font, anchor="lm")
    draw.text((left + width, middle), high_text, fill=_FAINT_INK, font=font, anchor="rm")
    cap = round(font.getbbox("0", anchor="ls")[3] - font.getbbox("0", anchor="ls")[1])
    start = left + round(font.getlength(low_text)) + cap
    stop = left + width - round(font.getlength(high_text)) - cap
    table = lookup_table(cmap)
    bar = np.broadcast_to(table[np.linspace(0, len(table) - 1, stop - start).astype(np.intp)], (cap, stop - start, 3))
    canvas.paste(Image.fromarray(np.ascontiguousarray(bar)), (start, middle - cap // 2))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _two_lines(text: str, font: Font, width: float) -> list[str]:
    """The text in one line if it fits, else in two, divided where the parameters of a method begin, or at a space."""
    text = _one_line(text)
    breaks = [place.end() for place in re.finditer(r"[( ]", text) if font.getlength(text[: place.end()]) <= width]
    if font.getlength(text) <= width or not breaks:
        return [_shortened(text, font, width)]
    return [text[: breaks[-1]].rstrip(), _shortened(text[breaks[-1] :], font, width)]


def _shortened(text: str, font: Font, width: float) -> str:
    """The text, or as much of its beginning as fits the width with an ellipsis."""
    text = _one_line(text)
    if font.getlength(text) <= width:
        return text
    fitting = bisect_right(range(len(text)), width, key=lambda count: font.getlength(text[:count] + "…"))
    return text[: max(0, fitting - 1)].rstrip() + "…"

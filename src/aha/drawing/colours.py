"""From the values of a map to colours.

Maps without negative evidence get a sequential colour map, signed maps a diverging one that is symmetric
about zero, so that its neutral colour always means "no evidence". Both grow evenly in lightness.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from aha.core.registry import nearest_names
from aha.errors import OutputError, UnknownName

SEQUENTIAL = "inferno"
DIVERGING = "RdBu_r"

MapLike: TypeAlias = npt.NDArray[Any] | torch.Tensor
"""One map of shape (H, W); NaN marks pixels that the model never saw."""

Pixels: TypeAlias = npt.NDArray[np.uint8]

# Interpolation overshoots zero a little; a map counts as signed from this share of its absolute mass on.
_SIGNED_SHARE = 0.01
# Ranges this much smaller than the values themselves are rounding noise.
_FLAT = 1e-6
_HATCH_GREYS = (176, 200)


# Okabe and Ito's colours, which also colour-blind people tell apart; grey for black, which would not show.
_CLASS_COLOURS = (
    (230, 159, 0),
    (0, 114, 178),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (213, 94, 0),
    (240, 228, 66),
    (120, 120, 120),
)


class Scale(NamedTuple):
    """Which values the ends of a colour map stand for; also the legend of a rendered map."""

    low: float
    high: float
    cmap: str


def is_signed(values: MapLike) -> bool:
    """Whether a map has a meaningful share of negative evidence."""
    array = as_array(values)
    finite = array[np.isfinite(array)]
    return bool(np.abs(finite[finite < 0]).sum() > _SIGNED_SHARE * np.abs(finite).sum())


def scale_of(
    values: MapLike, *, signed: bool | None = None, cmap: str | None = None, clip_percentile: float = 99.5
) -> Scale:
    """The scale on which a map is drawn.

    Args:
        values: A map of shape (H, W).
        signed: Whether the scale is symmetric about zero; None decides from the data.
        cmap: Name of a matplotlib colour map; None picks one that fits the sign.
        clip_percentile: Values beyond this percentile share the end colours, so that a few outliers do not darken the
            rest. The full range is used for maps so sparse that nothing else would be left.

    Raises:
        OutputError: The map has no two dimensions, or the percentile is out of range.
    """
    if not 50 < clip_percentile <= 100:
        raise OutputError(f"clip_percentile is {clip_percentile}; it must be above 50 and at most 100")
    array = as_array(values)
    finite = array[np.isfinite(array)]
    if signed is None:
        signed = is_signed(array)
    name = cmap or (DIVERGING if signed else SEQUENTIAL)
    if finite.size == 0:
        return Scale(0.0, 0.0, name)
    if signed:
        size = np.abs(finite)
        limit = float(np.percentile(size, clip_percentile)) or float(size.max())
        return Scale(-limit, limit, name)
    low, high = (float(end) for end in np.percentile(finite, [100 - clip_percentile, clip_percentile]))
    if low == high:
        low, high = float(finite.min()), float(finite.max())
    if high - low <= _FLAT * max(abs(low), abs(high)):
        high = low
    return Scale(low, high, name)


def shared_scale(maps: Iterable[MapLike], *, signed: bool | None = None, cmap: str | None = None) -> Scale:
    """The scale of several maps together, so that one colour means one value in all of them."""
    values = [as_array(each).ravel() for each in maps]
    if not values:
        raise OutputError("a shared scale needs at least one map")
    return scale_of(np.concatenate(values)[None], signed=signed, cmap=cmap)


def colour(
    values: MapLike,
    *,
    signed: bool | None = None,
    cmap: str | None = None,
    clip_percentile: float = 99.5,
    scale: Scale | None = None,
) -> tuple[Pixels, Scale]:
    """Colours a map; takes the arguments of `scale_of`, or a scale that it has in common with others.

    A flat map is uniformly in the lowest colour, or in the neutral one if it is signed and zero everywhere.
    NaN becomes a grey hatch.

    Returns:
        RGB pixels of shape (H, W, 3), and the scale they were drawn on.
    """
    array = as_array(values)
    scale = scale or scale_of(array, signed=signed, cmap=cmap, clip_percentile=clip_percentile)
    if scale.low == scale.high:
        places = np.full(array.shape, 0.5 if signed else 0.0)
    else:
        places = np.clip((array - scale.low) / (scale.high - scale.low), 0, 1)
    unseen = np.isnan(array)
    table = lookup_table(scale.cmap)
    pixels = table[np.rint(np.where(unseen, 0, places) * (len(table) - 1)).astype(np.intp)]
    pixels[unseen] = hatch(array.shape[0], array.shape[1])[unseen]
    return pixels, scale


def is_symmetric(scale: Scale) -> bool:
    """Was the scale made for signed maps?"""
    return scale.low < 0 and scale.low == -scale.high


def strength(values: MapLike, scale: Scale, *, signed: bool) -> npt.NDArray[np.float64]:
    """How much each value stands out, from 0 to 1: its distance from zero if signed, else from the low end.

    NaN stands out as little as can be.
    """
    array = as_array(values)
    if scale.low == scale.high:
        return np.zeros(array.shape)
    distance = np.abs(array) / scale.high if signed else (array - scale.low) / (scale.high - scale.low)
    return np.nan_to_num(np.clip(distance, 0, 1), nan=0.0)


def class_colours(count: int) -> list[tuple[int, int, int]]:
    """One colour per class; the first eight are easily told apart, then they become darker."""
    rounds = (divmod(index, len(_CLASS_COLOURS)) for index in range(count))
    chosen = ((again + 1, _CLASS_COLOURS[place]) for again, place in rounds)
    return [(red // by, green // by, blue // by) for by, (red, green, blue) in chosen]


def hatch(height: int, width: int) -> Pixels:
    """Diagonal grey stripes, shape (height, width, 3), wide enough to be seen when all of it is shown."""
    stripe = max(2, min(height, width) // 48)
    rows, columns = np.ogrid[:height, :width]
    dark = ((rows + columns) // stripe) % 2 == 0
    return np.repeat(np.where(dark, *_HATCH_GREYS).astype(np.uint8)[..., None], 3, axis=-1)


@lru_cache(maxsize=16)
def lookup_table(cmap: str) -> Pixels:
    """The RGB colours of a matplotlib colour map from its low to its high end, shape (256, 3).

    Raises:
        UnknownName: There is no such colour map.
    """
    # Imported here because it is slow and only rendering needs it.
    from matplotlib import colormaps

    if cmap not in colormaps:
        hints = nearest_names(cmap, colormaps)
        raise UnknownName(f"unknown colour map {cmap!r}; try {', '.join(hints or [SEQUENTIAL, DIVERGING])}")
    table: Pixels = colormaps[cmap](np.linspace(0, 1, 256), bytes=True)[:, :3]
    return table


def as_array(values: MapLike) -> npt.NDArray[np.float64]:
    """A map as an array in double precision.

    Raises:
        OutputError: It is not a map of shape (H, W).
    """
    array: npt.NDArray[np.float64]
    if isinstance(values, torch.Tensor):
        array = values.detach().to("cpu", torch.float64).numpy()
    else:
        array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or array.size == 0:
        raise OutputError(f"a map of shape {array.shape} cannot be drawn; give one of shape (H, W)")
    return array

"""Pictures rebuilt from some of their pixels, and the information in them: the mathematics of information curves.

The numpy border of this package, for scipy and Pillow. Shapes: pictures (H, W, C) uint8; masks (H, W) bool.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Picture = NDArray[np.uint8]
Mask = NDArray[np.bool_]
Curve = NDArray[np.float64]

POINTS = 1000  # of the resampled curve, without its end


def interpolated(picture: Picture, known: Mask) -> Picture:
    """The picture rebuilt from its known pixels and its corners, linearly over their Delaunay triangles.

    One triangulation serves all channels. Pixels outside every triangle, by rounding at most, get the mean colour.
    """
    from scipy.interpolate import LinearNDInterpolator

    known = known.copy()
    known[[0, 0, -1, -1], [0, -1, 0, -1]] = True
    if known.all():
        return picture
    linear: Any = LinearNDInterpolator(np.argwhere(known), picture[known].astype(np.float64))
    found = linear(np.argwhere(~known))  # (n, C)
    found = np.where(np.isnan(found), picture.mean(axis=(0, 1)), found)
    result = picture.copy()
    # In single precision, as the published code: a half that double precision misses by a hair is then a half.
    result[~known] = np.round(found.astype(np.float32)).astype(np.uint8)
    return result


def webp_bytes(picture: Picture) -> int:
    """Information in a picture: the length of its lossless WebP."""
    buffer = io.BytesIO()
    Image.fromarray(picture.squeeze(axis=2) if picture.shape[2] == 1 else picture).save(
        buffer, format="webp", lossless=True, quality=100
    )
    return buffer.tell()


def information_area(information: Curve, performance: Curve) -> float:
    """Area under performance over information, both in [0, 1] and in the order of the thresholds.

    Performance is made monotone along the thresholds before the points are sorted by information. The ends come last
    in a stable sort, as in the published code: points that added no information do not lift the start.
    """
    rising = np.maximum.accumulate(performance)
    x, y = np.append(information, [0.0, 1.0]), np.append(rising, [0.0, 1.0])
    order = np.argsort(x, kind="stable")
    grid = np.linspace(0.0, 1.0, POINTS + 1)
    heights = np.interp(grid, x[order], y[order])
    return float((heights[1:] + heights[:-1]).sum() / 2 / POINTS)

"""Results as they are kept: records for the page, arrays for its canvases, and the way back to an `Explanation`."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aha.errors import MetricError
from aha.perturb.perturbation import rank_pixels
from aha.results.viewer.records import Drawn, drawn
from aha.web.cache import Cache, Gone

SEED = 0
"""Of random methods and of the order among equal values; the page cannot choose another."""


def map_record(values: Tensor) -> Drawn:
    """How to draw a map (H, W): its size, and the ends of the colours with and without sign.

    Raises:
        MetricError: It has values that are not finite.
    """
    if not bool(values.isfinite().all()):
        raise MetricError("the map has values that are not finite")
    return drawn(values)


def packed(arrays: Mapping[str, NDArray[Any]]) -> dict[str, bytes]:
    """Arrays as the file of a result."""
    buffer, named = io.BytesIO(), dict[str, Any](arrays)
    np.savez(buffer, **named)  # with `allow_pickle=False`, NumPy 2.1 would store an array of that name
    return {"npz": buffer.getvalue()}


def unit_of(values: NDArray[Any]) -> float:
    """The largest absolute value: half precision holds the rest as shares of it, however small the unit of a map."""
    return float(np.abs(values).max()) or 1.0


def served_array(store: Cache, key: str, name: str) -> bytes:
    """An array of a result as little-endian bytes.

    `values`, `maps` and `won` are float16 shares of the record's unit, `shares` float16; `ranks` is the uint32 order in
    which a map's pixels leave or enter, the very one that its curves were measured with.
    """
    if name == "ranks":
        order = rank_pixels(torch.from_numpy(store.array(key, "values")), seed=SEED)
        return order.numpy().astype("<u4").tobytes()
    if name == "shares":
        return store.array(key, name).astype("<f2").tobytes()
    if name in ("values", "maps", "won"):
        values = store.array(key, name)
        return (values / unit_of(values)).astype("<f2").tobytes()
    raise Gone(f"result {key} has no array {name[:40]!r}")

"""What every viewer of a map needs, on a page of its own and in the explorer: how to draw it, and its curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from torch import Tensor

from aha.drawing.colours import is_signed, scale_of
from aha.results.cards import Curves


class Drawn(TypedDict):
    """How to draw a map: its size, its unit, and the ends of the colours with and without sign."""

    height: int
    width: int
    unit: float  # the largest absolute value: half precision holds the rest as shares of it
    low: float
    high: float
    limit: float
    signed: bool
    flat: bool


class CurvesRecord(TypedDict):
    """Deletion and insertion with one reference, or their average over several."""

    fractions: Sequence[float]
    deletion: Sequence[float]
    insertion: Sequence[float]
    ins_del: float


def drawn(values: Tensor) -> Drawn:
    """How to draw a finite map (H, W)."""
    plain, signed = (scale_of(values, signed=choice) for choice in (False, True))
    return {
        "height": values.shape[0],
        "width": values.shape[1],
        "unit": float(values.abs().max()) or 1.0,
        "low": plain.low,
        "high": plain.high,
        "limit": signed.high,
        "signed": is_signed(values),
        "flat": bool(values.min() == values.max()),
    }


def curves_record(curves: Curves) -> CurvesRecord:
    """Curves with the number that they come to."""
    return {
        "fractions": curves.fractions,
        "deletion": curves.deletion,
        "insertion": curves.insertion,
        "ins_del": curves.ins_del,
    }

"""Which points of perturbation curves to ask about next, and how far their areas may be off.

Along a sequence of perturbed images the model's answers move like a random walk: over four times as many steps they
come twice as far. So a gap between two points adds the error of a walk that is tied down at both of its ends; how fast
it moves is read off the points of this gap and of its two neighbours, and of the whole curve. Errors of different gaps
add like random numbers. Where a curve only rises or only falls, it cannot be off by more than half of what it moves in
a gap times the width of the gap, and this estimate follows that bound: what moves is looked at, even if it looks
straight. What happens wholly between two neighbouring points cannot be seen from them: a spike that is narrower than
the first gaps may be missed, and the area then lacks that of the spike at most.

Places are whole numbers 0 ... last in rising order, the steps of the finest curve; heights and margins are the values
there. Errors are in units of height times the whole width, one for each gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FINEST = 224  # steps among which points are chosen: those of the protocol `aha`
_FIRST_GAPS = 7  # 224 = 7 * 32: all of them can be halved down to single steps
_NEAR = (1.0, 2.0, 1.0)  # how much a gap's neighbours and the gap itself tell about how fast the curve moves in it
_SHARE = 0.7  # of the squared error that is dealt with in one round


def first_places(last: int) -> list[int]:
    """Where to begin: both ends and a few places between, evenly."""
    gaps = min(_FIRST_GAPS, last)
    return [round(gap * last / gaps) for gap in range(gaps + 1)]


def further_places(
    places: Sequence[Sequence[int]], errors: Sequence[Sequence[float]], tolerance: float
) -> list[list[int]]:
    """For each curve the places to ask about next, in the middle of the worst gaps; none if the mean is sure enough."""
    gaps = [(error, curve, gap) for curve, own in enumerate(errors) for gap, error in enumerate(own)]
    left = sum(error**2 for error, _, _ in gaps)
    enough = (tolerance * len(places)) ** 2
    further: list[list[int]] = [[] for _ in places]
    if left <= enough:
        return further
    goal = max(enough, (1 - _SHARE) * left)
    for error, curve, gap in sorted(gaps, reverse=True):
        if left <= goal or error == 0:
            break
        further[curve].append((places[curve][gap] + places[curve][gap + 1]) // 2)
        left -= error**2
    return further


def height_errors(places: Sequence[int], heights: Sequence[float]) -> list[float]:
    """How far the area over each gap of a curve between 0 and 1 may be off; single steps are sure."""
    x, y = np.asarray(places, dtype=float), np.asarray(heights, dtype=float)
    widths, middles = np.diff(x), (y[1:] + y[:-1]) / 2
    # Few points may lie level by chance. A probability moves fastest in the middle of its range, and as fast on the
    # whole as the whole curve says: this counts half.
    expected = (middles * (1 - middles)) ** 2
    expected *= np.sum(np.diff(y) ** 2) / max(float(np.sum(widths * expected)), 1e-12)
    speeds = (_speeds(places, heights) + expected) / 2
    # The sum of a walk's inner steps that starts and ends at zero: variance w (w^2 - 1) / 12 times that of a step.
    variances = speeds * widths * (widths**2 - 1) / 12
    return list(np.sqrt(variances) / (places[-1] - places[0]))


def filled_in(places: Sequence[int], heights: Sequence[float]) -> NDArray[np.float64]:
    """The curve at every step: smooth through its points, and between two of them never beyond them.

    Fritsch and Carlson's monotone cubics, which leave the ends along the chords of the outermost gaps. Straight lines
    would lie above a curve that falls ever more slowly, as deletion curves do, everywhere.
    """
    from scipy.interpolate import CubicHermiteSpline, PchipInterpolator

    x, y = np.asarray(places, dtype=float), np.asarray(heights, dtype=float)
    tangents = PchipInterpolator(x, y).derivative()(x)
    tangents[[0, -1]] = (np.diff(y) / np.diff(x))[[0, -1]]
    return np.asarray(CubicHermiteSpline(x, y, tangents)(np.arange(places[0], places[-1] + 1)))


def recognition(places: Sequence[int], margins: Sequence[float]) -> NDArray[np.float64]:
    """How probable it is, at every step, that the margin of the class is above zero: 0 or 1 where it is known.

    Between two known margins the others are those of a random walk that has to end there. Margins, in nats, are taken
    by their inverse hyperbolic sine: how far ahead or behind a class is, when it is far, says little about when that
    will change.
    """
    known, values = np.asarray(places, dtype=float), np.arcsinh(margins)
    steps = np.arange(places[0], places[-1] + 1)
    gap = np.clip(np.searchsorted(known, steps, side="right") - 1, 0, len(known) - 2)
    before, after = known[gap], known[gap + 1]
    spread = np.sqrt(_speeds(places, values)[gap] * (steps - before) * (after - steps) / (after - before))
    line = np.interp(steps, known, values)
    is_open = spread > 0
    result: NDArray[np.float64] = (line > 0).astype(np.float64)
    result[is_open] = [0.5 * math.erfc(-z / math.sqrt(2)) for z in (line[is_open] / spread[is_open])]
    return result


def recognition_errors(places: Sequence[int], margins: Sequence[float]) -> list[float]:
    """How far the share of steps at which the class is recognised may be off, for each gap."""
    chance = recognition(places, margins)
    doubt = np.sqrt(chance * (1 - chance))
    starts = np.asarray(places[:-1]) - places[0]
    return list(np.add.reduceat(doubt[:-1], starts) / (places[-1] - places[0]))


def _speeds(places: Sequence[int], values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """For each gap the variance of a walk's single step, from how far the values move in it and in its neighbours."""
    widths, moves = (np.diff(np.asarray(numbers, dtype=float)) for numbers in (places, values))
    padded, present = (np.pad(own, 1) for own in (moves**2 / widths, np.ones_like(widths)))
    return np.asarray(np.convolve(padded, _NEAR, "valid") / np.convolve(present, _NEAR, "valid"))

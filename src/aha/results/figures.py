"""Figures of scores. They are made as objects, without pyplot, so that no global state of the caller's changes."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from aha.metrics import ARROWS, directions
from aha.metrics.curves.base import AVERAGE

if TYPE_CHECKING:
    from aha.results.score_table import CurveRow, Scores

_GRID = np.linspace(0, 1, 101)
_COLOURS = 10  # of matplotlib's usual cycle
_OFFSETS = [sign * step for step in range(3, 200, 7) for sign in (1.0, -1.0)]  # of names from points, in pixels
_APART = 22  # pixels between the end of a bar and the name of another point
_REMOTENESS = 0.1  # what a pixel between a name and its point costs, in covered ones
Line = tuple[tuple[float, float], tuple[float, float]]


class ShownFigure(Figure):
    """A figure that a notebook shows where it is the last thing of a cell, as one made by pyplot would be."""

    def _repr_png_(self) -> bytes:
        return as_bytes(self, "png")


def plot_curves(scores: Scores) -> ShownFigure:
    """Mean deletion and insertion curves of every method with their standard errors, one column per reference."""
    rows = scores.curves()
    if not rows:
        raise ValueError("no deletion or insertion curves were measured")
    kinds = list(dict.fromkeys(row.kind for row in rows))
    references = list(dict.fromkeys(row.reference for row in rows))
    figure = ShownFigure(figsize=(4.2 * len(references), 3.4 * len(kinds)), layout="constrained")
    axes = figure.subplots(len(kinds), len(references), squeeze=False, sharex=True, sharey=True)
    for i, kind in enumerate(kinds):
        for j, reference in enumerate(references):
            chosen = [row for row in rows if (row.kind, row.reference) == (kind, reference)]
            _draw_curves(axes[i, j], chosen)
            arrow = ARROWS[directions().get(kind, "neither")]
            axes[i, j].set_title(f"{kind} {arrow} · {reference}")
            if i == len(kinds) - 1:
                axes[i, j].set_xlabel("share of pixels " + ("removed" if kind == "deletion" else "inserted"))
        axes[i, 0].set_ylabel("class score")
    # Below the panels: inside one of them it would hide curves.
    handles, labels = axes[0, 0].get_legend_handles_labels()
    columns = max(1, min(len(labels), 3 * len(references)))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
    figure.suptitle(_title(scores, {row.protocol for row in rows}), fontsize="medium", wrap=True)
    return figure


def _draw_curves(axis: object, rows: Sequence[CurveRow]) -> None:
    by_method: dict[str, dict[str, list[NDArray[np.float64]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        by_method[row.method][row.image].append(np.interp(_GRID, row.fractions, row.scores))
    for number, (method, of_images) in enumerate(by_method.items()):
        curves = [np.mean(own, axis=0) for own in of_images.values()]  # classes of an image are no images of their own
        mean = np.mean(curves, axis=0)
        error = np.std(curves, axis=0, ddof=1) / np.sqrt(len(curves)) if len(curves) > 1 else np.zeros_like(mean)
        dashes = "-" if number < _COLOURS else "--"  # colours come again then
        (line,) = axis.plot(  # type: ignore[attr-defined]
            _GRID, mean, dashes, color=f"C{number % _COLOURS}", label=f"{method} (n={len(curves)})"
        )
        axis.fill_between(  # type: ignore[attr-defined]
            _GRID, mean - error, mean + error, color=line.get_color(), alpha=0.2, linewidth=0
        )


def plot_bars(scores: Scores) -> ShownFigure:
    """Means of every metric with 95 % intervals, one panel each; the average over references where there is one."""
    summary = scores.summary()
    averaged = {(row.metric, row.protocol) for row in summary if row.reference == AVERAGE}
    shown = [r for r in summary if r.reference == AVERAGE or (r.metric, r.protocol) not in averaged]
    panels = list(dict.fromkeys((row.metric, row.protocol, row.reference) for row in shown))
    methods = list(dict.fromkeys(row.method for row in shown))
    figure = ShownFigure(figsize=(6.4, (0.9 + 0.3 * len(methods)) * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axis, (metric, protocol, reference) in zip(axes, panels, strict=True):
        own = {r.method: r for r in shown if (r.metric, r.protocol, r.reference) == (metric, protocol, reference)}
        means = [own[m].mean if m in own else np.nan for m in methods]
        errors = [own[m].high - own[m].mean if m in own else np.nan for m in methods]
        axis.barh(range(len(methods)), means, xerr=np.nan_to_num(errors), color="#5b7db1", ecolor="#333333", capsize=2)
        axis.set_yticks(range(len(methods)), methods)
        axis.invert_yaxis()
        arrow = ARROWS[directions().get(metric, "neither")]
        axis.set_title(f"{metric} {arrow} · {protocol}{f' · {reference}' if reference else ''}", fontsize="medium")
    figure.suptitle(_title(scores, {row.protocol for row in shown}))
    return figure


def plot_trade_off(
    points: Mapping[str, tuple[float, float, float]], *, quality: str, direction: str, title: str
) -> ShownFigure:
    """Quality over the seconds that a map takes, on a logarithmic axis; the front of the best is drawn through.

    Args:
        points: method -> seconds, mean quality, its standard error.
        quality: name of the vertical axis.
        direction: "higher" or "lower" quality is better.
        title: of the figure.
    """
    figure = ShownFigure(figsize=(7.2, 4.6), layout="constrained")
    axis = figure.subplots()
    best: float | None = None
    front: list[tuple[float, float]] = []
    for seconds, mean, error in sorted(points.values()):
        if best is None or (mean > best if direction == "higher" else mean < best):
            best = mean
            front.append((seconds, mean))
        colour = "#b4431c" if (seconds, mean) in front else "#5b7db1"
        axis.errorbar(seconds, mean, yerr=np.nan_to_num(error), fmt="o", capsize=2, color=colour)
    axis.step(*zip(*front, strict=True), where="post", color="#999999", linewidth=1, linestyle="--", zorder=0)
    lines = [((x, y), (other[0], y)) for (x, y), other in pairwise(front)]
    lines += [((x, y), (x, other[1])) for (_, y), other in pairwise(front) for x in other[:1]]
    bars = {name: ((x, y - error), (x, y + error)) for name, (x, y, error) in points.items() if np.isfinite(error)}
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if _decades(points.values()) < 2 else (1,)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())  # the marks between them would run into each other
    axis.set_xlabel("seconds per map")
    axis.set_ylabel(f"{quality} {ARROWS[direction]}")
    axis.margins(x=0.12, y=0.12)  # room for names
    fastest, slowest = (pick(seconds for seconds, _, _ in points.values()) for pick in (min, max))
    if slowest < 1.01 * fastest:  # an axis of no length cannot be drawn, nor scaled to its points before
        axis.set_autoscalex_on(False)
        axis.set_xlim(fastest / 2, 2 * slowest)
    axis.grid(color="#eeeeee")
    axis.set_axisbelow(True)
    figure.suptitle(title, fontsize="medium", wrap=True)
    figure.draw_without_rendering()  # so that places in pixels are those of the figure
    _name_points(axis, {name: (seconds, mean) for name, (seconds, mean, _) in points.items()}, bars, lines)
    return figure


def _decades(points: Iterable[tuple[float, float, float]]) -> float:
    """How many powers of ten the seconds of some points span."""
    seconds = [own for own, _, _ in points]
    return float(np.log10(max(seconds) / min(seconds)))


def _name_points(
    axis: Axes, points: Mapping[str, tuple[float, float]], bars: Mapping[str, Line], lines: Sequence[Line]
) -> None:
    """Writes each name as near to its point as it stays inside and covers nothing: no point, name, line or error bar.

    Nor does it stand at the end of another point's bar, as if it were that one's. Lines are level or upright. A name
    that is further away is joined to its point.
    """
    places = {name: axis.transData.transform(point) for name, point in points.items()}  # pixels
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y in places.values()]
    taken += [_box_of(axis, line) for line in lines]
    inside, in_points = axis.bbox.extents, 72 / axis.figure.dpi
    for name, (x, y) in sorted(places.items(), key=lambda item: -item[1][1]):
        others = [_box_of(axis, bar, 2 if own == name else _APART) for own, bar in bars.items()]
        text = axis.annotate(
            name, points[name], xytext=(0, 0), textcoords="offset points", fontsize="small", va="bottom"
        )
        text.set_in_layout(False)  # the panel shall not shrink for the sake of a name
        extent = text.get_window_extent()
        width, height = extent.width, extent.height
        best = min(
            ((dx, dy) for dy in _OFFSETS for dx in (7.0, -width - 7, -width / 2)),
            key=lambda side: (
                _cost((x + side[0], y + side[1], x + side[0] + width, y + side[1] + height), [*taken, *others], inside)
                + _REMOTENESS * abs(side[1] + height / 2)
            ),
        )
        taken.append((x + best[0], y + best[1], x + best[0] + width, y + best[1] + height))
        text.set_position((best[0] * in_points, best[1] * in_points))
        if abs(best[1]) > 2 * height:
            start = (x, y + best[1] + (height if best[1] < 0 else 0))
            end = axis.transData.inverted().transform(start)
            axis.plot(*zip(points[name], end, strict=True), color="#bbbbbb", linewidth=0.6, zorder=0, scalex=False)


def _box_of(axis: Axes, line: Line, beyond: float = 2) -> tuple[float, float, float, float]:
    """The pixels of a line, and so many beyond its ends."""
    (left, low), (right, high) = (axis.transData.transform(end) for end in line)
    return min(left, right) - 2, min(low, high) - beyond, max(left, right) + 2, max(low, high) + beyond


def _cost(box: Sequence[float], taken: Iterable[Sequence[float]], inside: Sequence[float]) -> float:
    """How bad it is to write into a box: what it covers, and even more what of it is outside."""
    whole = (box[2] - box[0]) * (box[3] - box[1])
    return sum(_overlap(box, other) for other in taken) + 3 * (whole - _overlap(box, inside))


def _overlap(a: Sequence[float], b: Sequence[float]) -> float:
    """Common area of two boxes (left, bottom, right, top)."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


def as_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as a file of this kind, "svg" or "png"; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "aha", "svg.fonttype": "none"}):
        metadata = {"Date": None} if kind == "svg" else {}
        figure.savefig(buffer, format=kind, dpi=110, metadata=metadata)
    return buffer.getvalue()


def _title(scores: Scores, protocols: set[str]) -> str:
    return f"{scores.model} · protocol {', '.join(sorted(protocols))}"

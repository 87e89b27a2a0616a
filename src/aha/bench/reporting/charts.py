"""The figures of a report, saved as files and given as pictures that a page can hold."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from aha.bench.reporting.tables import better, headline, summary_tables
from aha.bench.run_reader import Group
from aha.results.figures import as_bytes, plot_curves, plot_trade_off
from aha.results.score_table import Scores

Save = Callable[[str, bytes], None]
"""Takes the name and the content of a file."""
_MOST_CURVES = 12


def draw_curves(group: Group, anchor: str, save: Save) -> list[str]:
    """Deletion and insertion curves, a figure per protocol, as data URIs."""
    return [
        _figure(plot_curves(scores), f"curves-{anchor}-{number}", save)
        for number, scores in enumerate(_curve_scores(group))
    ]


def _curve_scores(group: Group) -> Iterable[Scores]:
    """Curves of each protocol; of many methods, those that score best, and behind them those without a score."""
    chosen = headline(group)
    values = {} if chosen is None else group.values[chosen]
    sign = 1 if chosen is None or better(chosen[1][0]) == "higher" else -1
    merit = {method: sign * mean_of(list(own.values())) for method, own in values.items()}
    for protocol in dict.fromkeys(row.protocol for row in group.scores.curve_rows):
        rows = [row for row in group.scores.curve_rows if row.protocol == protocol]
        methods = list(dict.fromkeys(row.method for row in rows))
        if len(methods) > _MOST_CURVES:
            best = sorted(methods, key=lambda method: -merit.get(method, -math.inf))[:_MOST_CURVES]
            rows = [row for row in rows if row.method in best]
        yield Scores(curve_rows=rows, model=group.model)


def _figure(figure: Any, name: str, save: Save) -> str:
    """Saves a figure in both forms and gives it as a data URI."""
    drawn = as_bytes(figure, "svg")
    save(f"figures/{name}.svg", drawn)
    save(f"figures/{name}.png", as_bytes(figure, "png"))
    return "data:image/svg+xml;base64," + base64.b64encode(drawn).decode()


def draw_trade_off(group: Group, anchor: str, save: Save) -> str:
    """Quality over seconds as a data URI; nothing where either is unknown."""
    chosen = headline(group)
    if chosen is None:
        return ""
    table = next((t for t in summary_tables(group, each_reference=True) if t.protocol == chosen[0]), None)
    points = {
        method: (
            mean_of(group.seconds[method]),
            table.rows[method][chosen[1]].mean,
            table.rows[method][chosen[1]].error,
        )
        for method in group.methods
        if table is not None and chosen[1] in table.rows.get(method, {}) and group.seconds.get(method)
    }
    points = {method: point for method, point in points.items() if point[0] > 0}
    if not points:
        return ""
    quality = " ".join(part for part in (chosen[1][0], f"({chosen[1][1]})" if chosen[1][1] else "") if part)
    figure = plot_trade_off(
        points, quality=quality, direction=better(chosen[1][0]), title=f"{group.model} · {quality} · {chosen[0]}"
    )
    return _figure(figure, f"trade-off-{anchor}", save)


def mean_of(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return math.fsum(values) / len(values) if values else math.nan

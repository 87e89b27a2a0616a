"""Images that tell methods apart, or on which all of them fail: what a report shows of the maps that were kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from aha.bench.records import MapPlace
from aha.bench.reporting.tables import better, headline
from aha.bench.run_reader import Group, Run
from aha.bench.store import read_map, read_picture
from aha.drawing.render import overlay
from aha.results.gallery import embedded
from aha.results.headroom import HEADROOM, worst_tenth

_MOST_CASES, _MOST_COLUMNS = 6, 8
_WIDTH = 320  # twice what the page shows, for dense screens


@dataclass(frozen=True)
class ExampleImage:
    """An image that tells methods apart, or on which all of them fail."""

    why: str
    image: str
    target: str
    score: float
    picture: str
    cells: Sequence[tuple[str, str, float | None]]


def example_images(run: Run, group: Group, methods: Sequence[str] = ()) -> list[ExampleImage]:
    """Images on which methods disagree most, or reach least of what is possible, or fail; needs kept maps.

    With `methods`, only these are looked at.
    """
    chosen = headline(group)
    if chosen is None or not group.maps:
        return []
    sign = 1 if better(chosen[1][0]) == "higher" else -1
    by_image: dict[tuple[str, int], dict[str, float]] = {}
    for method, found in group.values[chosen].items():
        if methods and method not in methods:
            continue
        for name, value in found.items():
            _, drawn = group.maps.get(name[0], {}).get(method, ([], None))
            if drawn == name[1] and name[0] in group.pictures:  # of several classes, the one whose map is known
                by_image.setdefault(name, {})[method] = value
    full = {name: found for name, found in by_image.items() if len(found) > 1}
    apart = sorted(full, key=lambda name: min(full[name].values()) - max(full[name].values()))
    hopeless = sorted(full, key=lambda name: max(sign * value for value in full[name].values()))
    if len(full) <= _MOST_CASES < len(group.facts):  # there is no choice
        picked = dict.fromkeys(full, "one of the first pictures")
    else:
        picked = dict.fromkeys(apart[: _MOST_CASES // 2], "where the methods disagree most")
    for name, method in _least_reached(group, chosen[0]).items():
        if name in full:
            picked.setdefault(name, f"of the tenth on which {method} reaches least of what is possible")
    for name in hopeless[:_MOST_CASES]:
        if len(picked) < _MOST_CASES:
            picked.setdefault(name, "where even the best method scores least")
    cases = []
    for (image, target), why in picked.items():
        values = full[image, target]
        order = sorted(values, key=lambda method: -sign * values[method])
        if len(order) > _MOST_COLUMNS:
            order = [*order[: _MOST_COLUMNS // 2], *order[-_MOST_COLUMNS // 2 :]]
        try:
            picture = read_picture(run.folder, group.pictures[image])
            cells = [(method, _drawn(run, picture, group.maps[image][method][0]), values[method]) for method in order]
        except (OSError, ValueError):
            continue  # maps that were moved away are no reason for not having a report
        label, score = run.class_name(group.model, target), group.facts[image, target].score
        cases.append(ExampleImage(why, image, label, score, embedded(picture, _WIDTH), cells))
    return cases


def _least_reached(group: Group, protocol: str) -> dict[tuple[str, int], str]:
    """A few images of the worst tenth by headroom, of the method with most of it on average."""
    known = [values for (name, column), values in group.values.items() if (name, column[0]) == (protocol, HEADROOM)]
    if not known:
        return {}
    shares = known[0]
    best = max(shares, key=lambda method: sum(shares[method].values()) / len(shares[method]))
    return dict.fromkeys(worst_tenth(shares[best])[: _MOST_CASES // 3], best)


def _drawn(run: Run, picture: Image.Image, where: MapPlace) -> str:
    return embedded(overlay(picture, np.nan_to_num(read_map(run.folder, where)), opacity=0.7), _WIDTH)

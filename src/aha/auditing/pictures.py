"""The best and the worst images of an audit, with their maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from aha.auditing.checks import Shown
from aha.auditing.evidence import AuditEvidence, paired
from aha.auditing.plans import KNOWN, UNSEEN, ins_del
from aha.bench.store import read_map, read_picture
from aha.drawing.render import overlay
from aha.metrics.curves.base import AVERAGE
from aha.results.gallery import embedded

MOST = 10
_WIDTH = 320  # twice what the page shows, for dense screens


@dataclass(frozen=True)
class DrawnMap:
    """An image with its map.

    Attributes:
        lead: its Ins-Del above that of random pixels, averaged over both kinds of references.
    """

    image: str
    label: str
    score: float
    lead: float
    picture: str
    map: str


def leads(evidence: AuditEvidence) -> dict[Shown, float]:
    """Ins-Del above random pixels, averaged over both kinds of references."""
    methods = (None, "random_map")
    of_each = [
        paired(*(evidence.values("ins_del", ins_del(references, evidence.asked.steps), AVERAGE, m) for m in methods))
        for references in (KNOWN, UNSEEN)
    ]
    common = set.intersection(*map(set, of_each))
    return {name: sum(own[name] for own in of_each) / len(of_each) for name in of_each[0] if name in common}


def best_and_worst(evidence: AuditEvidence) -> tuple[list[DrawnMap], list[DrawnMap]]:
    """At most ten images of each, none in both; the best and the worst come first."""
    found = leads(evidence)
    order = sorted(found, key=lambda shown: -found[shown])
    most = min(MOST, (len(order) + 1) // 2)
    best = order[:most]
    worst = order[::-1][: min(MOST, len(order) - most)]
    return list(_drawn(evidence, best, found)), list(_drawn(evidence, worst, found))


def _drawn(evidence: AuditEvidence, names: Sequence[Shown], found: dict[Shown, float]) -> Iterator[DrawnMap]:
    run, group = evidence.run, evidence.group
    for image, target in names:
        place, drawn = group.maps.get(image, {}).get(evidence.asked.method, (None, None))
        if place is None or drawn != target or image not in group.pictures:
            continue
        try:
            picture = read_picture(run.folder, group.pictures[image])
            values = np.nan_to_num(read_map(run.folder, place))
        except (OSError, ValueError):
            continue  # maps that were moved away are no reason for not having a page
        yield DrawnMap(
            image,
            run.class_name(group.model, target),
            group.facts[image, target].score,
            found[image, target],
            embedded(picture, _WIDTH),
            embedded(overlay(picture, values, opacity=0.7), _WIDTH),
        )

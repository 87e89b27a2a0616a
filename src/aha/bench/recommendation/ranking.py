"""Who is ahead in a race, by the rows of its folder."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from aha.bench.recommendation.record import Race
from aha.bench.reporting.tables import differences
from aha.bench.run_reader import Group, read_run
from aha.metrics.curves.base import AVERAGE
from aha.metrics.protocols import load_protocols
from aha.results.score_table import Scores

FAITHFULNESS = "ins_del(steps=10)"


def own_group(folder: Path, race: Race) -> Group:
    """What a race's folder has for it; an empty group where that is nothing yet."""
    kind, digest = race.settings["targets"][0], race.settings["digest"]
    found = [g for g in read_run(folder, race.cells).groups if (g.digest, g.target_kind) == (digest, kind)]
    return found[0] if found else Group("", digest, kind, Scores())


def faithfulness(group: Group) -> dict[str, dict[tuple[str, int], float]]:
    """Method -> image and class -> Ins-Del, mean of the references."""
    (protocol,) = load_protocols(FAITHFULNESS)
    return group.values.get((protocol.name, ("ins_del", AVERAGE)), {})


def ranking(values: Mapping[str, Mapping[tuple[str, int], float]], methods: Sequence[str]) -> list[str]:
    """Methods, the best first: those that came to the last round before those that left in earlier ones.

    Whoever left a round early has few images, and may have been lucky with them. Inside a round, methods stand by how
    far they are ahead of the one with most images, on those that both have.
    """
    rounds = _rounds(values, methods)
    return [method for reached in sorted(rounds, reverse=True) for method in _by_lead(values, rounds[reached])]


def last_round(values: Mapping[str, Mapping[tuple[str, int], float]], methods: Sequence[str]) -> list[str]:
    """Those that came to the last round: the best is one of them."""
    rounds = _rounds(values, methods)
    return rounds[max(rounds)] if rounds else []


def _rounds(values: Mapping[str, Mapping[tuple[str, int], float]], methods: Sequence[str]) -> dict[int, list[str]]:
    """Round that was reached -> methods."""
    rounds: dict[int, list[str]] = {}
    for method in methods:
        if values.get(method):
            # Each round has twice as many images: with 9 to 16, of which some may have failed, it came to the same one.
            rounds.setdefault(math.ceil(math.log2(len(values[method]))), []).append(method)
    return rounds


def _by_lead(values: Mapping[str, Mapping[tuple[str, int], float]], methods: Sequence[str]) -> list[str]:
    base = max(methods, key=lambda method: len(values[method]))

    def lead(method: str) -> float:
        found = differences(values[method], values[base])
        return math.fsum(found) / len(found) if found else -math.inf

    return sorted(methods, key=lambda method: -lead(method))


def median(values: Sequence[float]) -> float | None:
    """The middle value, of an even number the mean of both."""
    return statistics.median(values) if values else None

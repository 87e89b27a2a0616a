"""Headroom: how much of what is possible on an image a method reaches.

(method - random) / (oracle - random) of Insertion minus Deletion on the same image, where the oracle is the best order
that `search` found. It is derived from scores that are there: where `search` and `random_map` are scored beside
other methods, tables have it, and its name says what the oracle was allowed to spend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from aha.errors import AhaError
from aha.methods import load_method
from aha.methods.patch_order.search import Search

HEADROOM, WORST_TENTH = "headroom", "headroom_worst_tenth"
ORACLE, FLOOR = "search", "random_map"
LEAST_ROOM = 0.02  # an oracle that is hardly above random leaves nothing to share out

Shown = tuple[str, int]
"""An image and a class of it."""


class Headroom(NamedTuple):
    """What a group of methods reaches.

    Attributes:
        oracle: text of the search that was the measure.
        shares: method -> image -> headroom; images on which the oracle is hardly above random are left out.
    """

    oracle: str
    shares: dict[str, dict[Shown, float]]


def is_oracle(method: str) -> bool:
    """Is it a search, which measures others instead of competing with them?"""
    return method.partition("(")[0] == ORACLE


def oracle_of(methods: Iterable[str]) -> str | None:
    """The search with the largest budget, if there is one; of those that look for Ins-Del, if there are."""
    budgets: dict[str, tuple[bool, int]] = {}
    for text in methods:
        if is_oracle(text):
            try:
                found = load_method(text)
            except AhaError:
                continue  # written by another version
            if isinstance(found, Search):
                budgets[text] = (found.objective == "ins_del", found.budget)
    return max(budgets, key=lambda text: budgets[text], default=None)


def headroom_of(values: Mapping[str, Mapping[Shown, float]]) -> Headroom | None:
    """Shares of all methods, from their Ins-Del by image; None without an oracle or without random maps."""
    oracle = oracle_of(values)
    floor = next((text for text in values if text.partition("(")[0] == FLOOR), None)
    if oracle is None or floor is None:
        return None
    shares: dict[str, dict[Shown, float]] = {}
    for method, own in values.items():
        if not is_oracle(method) and method != floor:
            found = {name: share(value, name, values[floor], values[oracle]) for name, value in own.items()}
            shares[method] = {name: value for name, value in found.items() if value is not None}
    return Headroom(oracle, {method: found for method, found in shares.items() if found})


def share(value: float, image: Shown, floor: Mapping[Shown, float], ceiling: Mapping[Shown, float]) -> float | None:
    """Where a value lies between random and oracle: 0 and 1 are theirs; None where they do not say."""
    if image not in floor or image not in ceiling or ceiling[image] - floor[image] < LEAST_ROOM:
        return None
    return (value - floor[image]) / (ceiling[image] - floor[image])


def worst_tenth(shares: Mapping[Shown, float]) -> list[Shown]:
    """The tenth of the images, at least one, on which least is reached; the worst first."""
    return sorted(shares, key=lambda image: shares[image])[: max(1, len(shares) // 10)]

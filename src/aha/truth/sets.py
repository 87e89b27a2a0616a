"""Names of the sets, and the trials each of them stands for."""

from __future__ import annotations

from aha.core.registry import nearest_names
from aha.errors import SpecError
from aha.truth.pasted import Pasted
from aha.truth.photographs import read_grey, read_photographs
from aha.truth.scenes import BACKGROUNDS, KINDS, SIDES, Background, Kind, Scene
from aha.truth.shortcuts import MARKS, STRENGTHS, Mark, Shortcut
from aha.truth.trials import Trial

PREFIX = "truth:"
LIST = "list"
PASTED, SHORTCUTS = "pasted", "shortcuts"
SIDE = 64
"""Of photographs."""
SEEDS = 3
"""Networks of each mark and strength."""

_SCENES: dict[str, tuple[Kind, Background, int]] = {
    f"{kind}-{background}-{side}": (kind, background, side)
    for side in SIDES
    for kind in KINDS
    for background in BACKGROUNDS
}
_MARKS: dict[str, Mark] = {f"shortcut-{mark}": mark for mark in MARKS}
_GROUPS = {f"scenes-{side}": [name for name in _SCENES if name.endswith(f"-{side}")] for side in SIDES}


def names_of_sets() -> list[str]:
    """What may stand behind `truth:`."""
    return [*_SCENES, *_GROUPS, *_MARKS, SHORTCUTS, PASTED]


def trials_of(text: str, data: str | None, seed: int = 0) -> list[Trial]:
    """The trials of `truth:NAME`; photographs come from the user."""
    name = text.removeprefix(PREFIX)
    if name not in names_of_sets():
        hints = nearest_names(name, names_of_sets())
        known = f"did you mean {hints[0]}?" if hints and name != LIST else "known: " + ", ".join(names_of_sets())
        raise SpecError(f"unknown set {name!r}; {known}")
    if name in _MARKS or name in (SHORTCUTS, PASTED):
        photographs = read_photographs(_needed(text, data), SIDE, with_objects=name == PASTED)
        if name == PASTED:
            return [Pasted(PASTED, photographs, seed=seed)]
        return [
            Shortcut(f"shortcut-{mark}-{strength:g}-{number}", mark, strength, photographs, seed=seed + number)
            for mark in ([_MARKS[name]] if name in _MARKS else MARKS)
            for strength in STRENGTHS
            for number in range(SEEDS)
        ]
    return [_scene(text, each, data, seed) for each in _GROUPS.get(name, [name])]


def _scene(text: str, name: str, data: str | None, seed: int) -> Scene:
    kind, background, side = _SCENES[name]
    if background != "photographic":
        return Scene(name, kind, background, side, seed=seed)
    grey, key = read_grey(_needed(text, data), side * 2)
    return Scene(name, kind, background, side, grey, key, seed=seed)


def _needed(text: str, data: str | None) -> str:
    if data is None:
        raise SpecError(f"{text} needs photographs: --data FOLDER, or --data FILE.csv")
    return data

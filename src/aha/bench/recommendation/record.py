"""What is known of a race, as its folder keeps it."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aha.core.store import read_record, write_record
from aha.errors import DamageWarning

RACE = "race.json"


@dataclass
class Race:
    """Rounds, costs and who is out, so that a race goes on where it was.

    Attributes:
        settings: what its numbers depend on; a folder belongs to one of them.
        model_text: how the model is written in a call.
        methods: all that started.
        rounds: methods and number of images of each.
        out: method -> why it left.
        costs: method -> passes, seconds and images that they were for, scoring included.
        must_be_below: seconds that a map may take.
        budget: what it was allowed to spend when it was last run.
        finished: the budget with which it came to its end.
        pictures: digest of those that were scored.
        cells: keys of its rows: those of the same pictures, so that one which is damaged later is missed, and rows of
            pictures that have changed since do not count.
    """

    settings: dict[str, Any]
    methods: list[str]
    model_text: str = ""
    rounds: list[tuple[list[str], int]] = field(default_factory=list)
    out: dict[str, str] = field(default_factory=dict)
    costs: dict[str, list[float]] = field(default_factory=dict)
    must_be_below: float | None = None
    budget: dict[str, Any] | None = None
    finished: dict[str, Any] | None = None
    pictures: str = ""
    cells: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> Race | None:
        """The race of a folder, if it holds one."""
        try:
            content = read_record(folder / RACE)
        except FileNotFoundError:
            return None
        if content is None:
            # All that it says follows from the rows and the account, which are guarded by themselves.
            warnings.warn(f"{folder / RACE} is damaged; the race is decided again", DamageWarning, stacklevel=3)
            return None
        race = cls(**content)
        race.rounds = [(methods, images) for methods, images in race.rounds]
        return race

    def write(self, folder: Path) -> None:
        """Keeps it."""
        write_record(folder / RACE, asdict(self))

    def cost(self, method: str) -> tuple[float, float]:
        """Passes and seconds for one image."""
        # Where a process was killed before it noted them: as much as all others together, on average.
        known = [self.costs[method]] if method in self.costs else list(self.costs.values())
        passes, seconds, images = map(sum, zip([0.0, 0.0, 1e-9], *known, strict=True))
        return passes / images, seconds / images

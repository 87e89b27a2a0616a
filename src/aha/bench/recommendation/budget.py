"""A budget of model passes or of time that cannot be overrun, and a record of what was spent that outlives the process.

run/
  spent.json    passes and seconds so far, and their checksum; written before each pass, so that a killed process has
                paid for what it did
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aha.core.interrupts import ended_by
from aha.core.store import read_record, write_record
from aha.errors import OutputError, SpecError

SPENT = "spent.json"
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


class BudgetSpent(BaseException):
    """The next pass would go beyond what is allowed; no handler of a method's own errors takes it for one of them."""


@dataclass(frozen=True)
class Budget:
    """What may be spent altogether: images through the model, forwards and backwards; seconds; or both."""

    passes: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.passes is None and self.seconds is None:
            raise SpecError("give a budget: a time such as 30min, or a number of passes")
        if (self.passes is not None and self.passes < 1) or (self.seconds is not None and self.seconds <= 0):
            raise SpecError("a budget must be positive")

    def covers(self, other: Budget) -> bool:
        """Is there nothing that the other one allows and this one does not?"""
        return all(
            mine is None or (theirs is not None and theirs <= mine)
            for mine, theirs in ((self.passes, other.passes), (self.seconds, other.seconds))
        )

    def shared(self, share: float) -> Budget:
        """A share of it."""
        passes = None if self.passes is None else max(1, int(share * self.passes))
        return Budget(passes, None if self.seconds is None else share * self.seconds)


def read_duration(text: str) -> float:
    """Seconds of a text such as 30min, 90s, 1.5h or 100ms."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|h)\s*", text)
    if found is None or float(found[1]) <= 0:
        raise SpecError(f"{text!r} is not a time; write 30min, 90s, 2h or 100ms")
    return float(found[1]) * {**_UNITS, "ms": 0.001}[found[2]]


class Account:
    """What a folder's work has cost so far, over all processes that did it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / SPENT
        self.passes, self.seconds = 0, 0.0
        if self._file.is_file():
            found = read_record(self._file)
            if found is None:
                raise OutputError(f"{self._file} is damaged: the spent budget is unknown; choose another folder")
            self.passes, self.seconds = found["passes"], found["seconds"]

    def note(self, passes: int, seconds: float) -> None:
        """Takes over new totals."""
        self.passes, self.seconds = passes, seconds
        write_record(self._file, {"passes": passes, "seconds": seconds})

    def left(self, budget: Budget) -> tuple[float, float]:
        """Passes and seconds that a budget leaves; infinite where it says nothing."""
        passes = float("inf") if budget.passes is None else budget.passes - self.passes
        return passes, float("inf") if budget.seconds is None else budget.seconds - self.seconds


@contextmanager
def metered(account: Account, passes: float, seconds: float) -> Iterator[None]:
    """Inside the block at most so many passes more are made, and none after so many seconds.

    Those of any network: randomised copies of a model and encoders of explainers are paid for too.
    """
    start, before = time.monotonic(), account.seconds
    most = account.passes + passes

    def note(images: int, _counts: object) -> None:
        spent = time.monotonic() - start
        if account.passes + images > most or spent > seconds:
            raise BudgetSpent
        if images:
            account.note(account.passes + images, before + spent)

    try:
        with ended_by(note):
            yield
    finally:
        account.note(account.passes, max(account.seconds, before + time.monotonic() - start))

"""How far a long computation is, reported to a listener through however many loops lie between.

A loop that knows how many rounds it will take says so by `in_parts`, or by `part` around each round; loops inside it
then share that round. So no callback is handed down, and code without a listener costs next to nothing. A listener
may raise, KeyboardInterrupt for one, to end the work; between the parts a Ctrl-C that waits takes effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

from aha.core.interrupts import checkpoint
from aha.errors import SpecError

T = TypeVar("T")

Listener = Callable[[float], None]
"""Called with the share of the work that is done, from 0 to 1, never less than before."""


@dataclass
class _Work:
    """The stretch of the whole, `low` to `high`, that is being worked on, and the share last reported."""

    listener: Listener
    low: float = 0.0
    high: float = 1.0
    reported: float = -1.0

    def tell(self, share: float) -> None:
        if share > self.reported:
            self.reported = share
            self.listener(share)


_CURRENT: ContextVar[_Work | None] = ContextVar("work in progress", default=None)


@contextmanager
def heard_by(listener: Listener | None) -> Iterator[None]:
    """The work inside is reported to the listener: 0 at the start, 1 at the end; with None, nothing is reported."""
    if listener is not None and not callable(listener):
        raise SpecError(f"progress must be a function, not a {type(listener).__name__}")
    work = None if listener is None else _Work(listener)
    before = _CURRENT.set(work)
    try:
        if work is not None:
            work.tell(0.0)
        yield
        if work is not None:
            work.tell(1.0)
    finally:
        _CURRENT.reset(before)


def is_heard() -> bool:
    """Whether somebody listens to the work at hand."""
    return _CURRENT.get() is not None


@contextmanager
def part(start: float, end: float, total: float) -> Iterator[None]:
    """The work inside is the stretch from `start` to `end` of a loop of length `total`, and done when it ends."""
    checkpoint()
    work = _CURRENT.get()
    if work is None:
        yield
        return
    low, high = work.low, work.high
    work.low, work.high = (low + (high - low) * place / total for place in (start, end))
    try:
        yield
        # The end of a whole loop is for its owner to tell: another loop may follow it there.
        if end < total:
            work.tell(work.high)
    finally:
        work.low, work.high = low, high


def in_shares(items: Iterable[T], weights: Sequence[float]) -> Iterator[T]:
    """The items one by one; what is done about each is a part of the work at hand as large as its weight."""
    ends = list(accumulate(weights))
    for item, end, weight in zip(items, ends, weights, strict=True):
        with part(end - weight, end, ends[-1]):
            yield item


def in_parts(items: Sequence[T]) -> Iterator[T]:
    """The items one by one; what is done about each is an equal part of the work at hand."""
    return parts_of_known(items, len(items))


def parts_of_known(items: Iterable[T], count: int) -> Iterator[T]:
    """The same for items that come one by one, of which there are `count`."""
    for number, item in enumerate(items):
        with part(number, number + 1, count):
            yield item

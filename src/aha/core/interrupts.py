"""Ctrl-C at moments that suit: between two passes, and never in the middle of putting things back.

Python raises KeyboardInterrupt between any two instructions, those of a `finally` included, so that no code can restore
by itself what it has changed and be sure of it. Inside `interrupts_wait()` a Ctrl-C is only noted. The work looks for
notes at its own `checkpoint()`s and raises there, where all that was changed will be undone on the way out. There, too,
a listener may end it: `ended_by`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

_PATIENCE = 3  # the third Ctrl-C is obeyed at once: the model itself may hang


class _Notes:
    """How often Ctrl-C was pressed, and what would have handled it."""

    def __init__(self, former: Callable[[int, FrameType | None], object]) -> None:
        self.former, self.count = former, 0

    def take(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count >= _PATIENCE:
            self.former(number, frame)

    def hand_over(self) -> None:
        if self.count:
            self.count = 0
            self.former(signal.SIGINT, None)


_notes: _Notes | None = None  # of the main thread, the only one that Python interrupts


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Ctrl-C takes effect at the next `checkpoint()` inside the block, or at its end."""
    global _notes
    former = signal.getsignal(signal.SIGINT)
    if _notes is not None or threading.current_thread() is not threading.main_thread() or not callable(former):
        yield
        return
    notes = _Notes(former)
    signal.signal(signal.SIGINT, notes.take)  # from here on nothing is raised in between
    try:
        _notes = notes
        yield
    finally:
        _notes = None
        signal.signal(signal.SIGINT, former)
        notes.hand_over()


Listener = Callable[[int, object], object]
"""Told, before they go, how many images go through a model, and the count that they will be added to; 0 and None at
other moments. It raises what is to end the work."""

_LISTENER: ContextVar[Listener | None] = ContextVar("who may end the work", default=None)


@contextmanager
def ended_by(listener: Listener) -> Iterator[None]:
    """The work inside asks the listener at each `checkpoint()`, after those who listen already."""
    outer = _LISTENER.get()

    def both(images: int, counts: object) -> None:
        if outer is not None:
            outer(images, counts)
        listener(images, counts)

    before = _LISTENER.set(both)
    try:
        yield
    finally:
        _LISTENER.reset(before)


def checkpoint(images: int = 0, counts: object = None) -> None:
    """A moment at which the work may be ended: by Ctrl-C, or by a listener, who hears of images about to go."""
    if _notes is not None and threading.current_thread() is threading.main_thread():
        _notes.hand_over()
    listener = _LISTENER.get()
    if listener is not None:
        listener(images, counts)

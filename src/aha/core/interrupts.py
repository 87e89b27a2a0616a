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
    """How often a signal came, and what would have handled it."""

    def __init__(self, number: int, former: Callable[[int, FrameType | None], object]) -> None:
        self.number, self.former, self.count, self.wait = number, former, 0, True

    def take(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count >= _PATIENCE or not self.wait:
            self.former(number, frame)

    def hand_over(self) -> None:
        if self.count:
            self.count = 0
            self.former(self.number, None)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # the latter where a program handles it, as our commands do
_notes: tuple[_Notes, ...] = ()  # of the main thread, the only one that Python interrupts


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Ctrl-C takes effect at the next `checkpoint()` inside the block, or at its end."""
    global _notes
    formers = [(number, signal.getsignal(number)) for number in _SIGNALS]
    notes = tuple(_Notes(number, former) for number, former in formers if callable(former))
    if _notes or threading.current_thread() is not threading.main_thread() or not notes:
        yield
        return
    try:
        for note in notes:
            signal.signal(note.number, note.take)  # from here on nothing is raised in between
        _notes = notes
        yield
    finally:
        _notes = ()
        for note in notes:
            signal.signal(note.number, note.former)
        for note in notes:
            note.wait = False  # whatever the next line raises, none is lost
            note.hand_over()


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
    if _notes and threading.current_thread() is threading.main_thread():
        for note in _notes:
            note.hand_over()
    listener = _LISTENER.get()
    if listener is not None:
        listener(images, counts)

"""A line with the share that is done and the time that is left, for people at a terminal or a notebook.

Only work that takes a while gets one, and it is gone when the work is: quick calls and programs see nothing of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from aha.core.progress import Listener, heard_by, is_heard

_SECONDS_BEFORE = 2.0  # that work takes before anything is said
_SECONDS_BETWEEN = 0.25


class ProgressLine:
    """A listener that writes one line over and over.

    Args:
        task: what is done, in one word.
        stream: where the line goes.
        clock: seconds that never run backwards.
    """

    def __init__(self, task: str, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._task, self._stream, self._clock = task, stream, clock
        self._started = clock()
        self._written = self._started + _SECONDS_BEFORE - _SECONDS_BETWEEN
        self._width = 0

    def __call__(self, share: float) -> None:
        """Called with how far the work is."""
        now = self._clock()
        if now - self._written < _SECONDS_BETWEEN:
            return
        self._written = now
        left = (now - self._started) * (1 - share) / share if share > 0 else None
        text = f"{self._task} {share:4.0%}" + ("" if left is None else f", {duration(left)} left")
        self._write(text)

    def close(self) -> None:
        """Takes the line away."""
        if self._width:
            self._write("")
            self._stream.write("\r")
            self._stream.flush()

    def _write(self, text: str) -> None:
        self._stream.write(f"\r{text:<{self._width}}")
        self._stream.flush()
        self._width = len(text)


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def is_watched() -> bool:
    """Whether somebody looks on: stderr is a terminal, or a notebook shows it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel") or sys.stderr.isatty()


@contextmanager
def shown(progress: Listener | bool | None, task: str) -> Iterator[None]:
    """The work inside is reported to a listener, or shown as a line.

    A line is drawn with True, and with None where somebody looks on; never with False, and never in the midst of work
    that somebody listens to already, who goes on listening.
    """
    if callable(progress):
        with heard_by(progress):
            yield
        return
    if not progress and (progress is False or is_heard() or not is_watched()):
        yield
        return
    line = ProgressLine(task, sys.stderr)
    try:
        with heard_by(line):
            yield
    finally:
        line.close()

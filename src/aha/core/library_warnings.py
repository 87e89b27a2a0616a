"""Warnings of other libraries, hushed in one thread.

Python's filters are one list for all threads: who replaces it for a while, as `warnings.catch_warnings` does, throws
away what another thread puts there meanwhile. A filter here is put there once, and matches only in threads that are
inside the block.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast


class _HushedHere(threading.local):
    """In place of the pattern that a warning's text must match."""

    depth = 0

    def match(self, _text: str) -> bool:
        return self.depth > 0


_HERE = _HushedHere()
_FILTER = ("ignore", _HERE, Warning, None, 0)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Inside the block this thread warns of nothing; others do as before."""
    filters = cast("list[Any]", warnings.filters)
    if not filters or filters[0] is not _FILTER:  # the first that matches counts
        filters.insert(0, _FILTER)
    _HERE.depth += 1
    try:
        yield
    finally:
        _HERE.depth -= 1

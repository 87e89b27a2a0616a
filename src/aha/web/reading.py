"""Threads that read pictures: few, since each may take hundreds of megabytes, and shared fairly.

Addresses take turns, and so do the visitors behind each, so that many pictures of one do not keep those of others
waiting. What nobody waits for any more, and has not begun, is never begun.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from aha.web.jobs import Busy

T = TypeVar("T")
_MOST_WAITING, _MOST_OF_ONE = 256, 64


class Asker(NamedTuple):
    """Who waits for a picture."""

    address: str = ""
    visitor: str = ""


HERE = Asker()
"""The explorer's own work."""


class Readers:
    """So many threads, and what waits for them."""

    def __init__(self, count: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(count, name)
        self._lock = threading.Lock()
        # Address -> visitor -> what waits; the first of each is the next.
        self._waiting: dict[str, dict[str, deque[tuple[Future[Any], list[Callable[[], Any]]]]]] = {}

    def ask(self, work: Callable[[], T], asker: Asker = HERE) -> Future[T]:
        """The answer of some work, soon; cancelling it takes the work back unless it has begun.

        Raises:
            Busy: Too much is waiting.
        """
        future: Future[T] = Future()
        kept: list[Callable[[], Any]] = [work]
        future.add_done_callback(lambda _: kept.clear())  # lets go of the bytes of what is cancelled
        with self._lock:
            self._refuse_too_many(asker)
            self._waiting.setdefault(asker.address, {}).setdefault(asker.visitor, deque()).append((future, kept))
        self._threads.submit(self._do_next)
        return future

    def _refuse_too_many(self, asker: Asker) -> None:
        waiting = [one for of in self._waiting.values() for queue in of.values() for one, _ in queue]
        own = [one for queue in self._waiting.get(asker.address, {}).values() for one, _ in queue]
        for futures, most in ((waiting, _MOST_WAITING), (own, _MOST_OF_ONE)):
            if asker != HERE and sum(not future.cancelled() for future in futures) >= most:
                raise Busy("too many images are waiting to be read; try again in a while")

    def _do_next(self) -> None:
        """One piece of work for each call, which is what comes next by turns."""
        with self._lock:
            address, visitors = _turned(self._waiting)
            visitor, queue = _turned(visitors)
            future, kept = queue.popleft()
            if not queue:
                del visitors[visitor]
            if not visitors:
                del self._waiting[address]
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(kept[0]())
        except BaseException as error:  # whatever a decoder does, the reader goes on
            future.set_exception(error)


def _turned(waiting: dict[str, T]) -> tuple[str, T]:
    """The first entry, which becomes the last."""
    name = next(iter(waiting))
    waiting[name] = waiting.pop(name)
    return name, waiting[name]

"""Connections that waste no room: those that do not get on with a request make way for those that do.

A connection waits while no request on it is under way: new ones until their headers have arrived, old ones until the
next request. Waiting has an end, and only so many may wait at once; beyond that the client who keeps most of them
waiting loses its oldest. What is under way is the business of `aha.web.requests` and of the guard.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS_TO_WAIT = 10.0
SECONDS_TO_TAKE = 60.0  # after which a client must have read some of its answer, or is given up
LEAST_BYTES_A_SECOND = 32 * 1024
MOST_WAITING = 128


class Connection(H11Protocol):
    """One connection of the server."""

    waiting_since: float | None = None
    _end_of_waiting: asyncio.TimerHandle | None = None
    _end_of_taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        self._wait()
        self._make_room()

    def handle_events(self) -> None:
        """Bytes have arrived; perhaps they complete the headers of a request."""
        super().handle_events()
        if self._is_at_work:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        """A request is answered; the next one may be at work already."""
        super().on_response_complete()
        if not self._is_at_work:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left, or was sent away."""
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered."""
        super().pause_writing()
        self._watch_taking()

    def resume_writing(self) -> None:
        """It has caught up."""
        super().resume_writing()
        if self._end_of_taking is not None:
            self._end_of_taking.cancel()
            self._end_of_taking = None

    def _watch_taking(self) -> None:
        """Looks again in a while: who takes next to nothing is given up, who only has a slow line is not."""
        left = self.transport.get_write_buffer_size()

        def look() -> None:
            if left - self.transport.get_write_buffer_size() < LEAST_BYTES_A_SECOND * SECONDS_TO_TAKE:
                self.give_up()
            else:
                self._watch_taking()

        self._end_of_taking = self.loop.call_later(SECONDS_TO_TAKE, look)

    def give_up(self) -> None:
        """Ends the connection at once, whatever is still to be sent."""
        self._stop_waiting()
        self.transport.abort()

    @property
    def _is_at_work(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait(self) -> None:
        self._stop_waiting()
        self.waiting_since = self.loop.time()
        self._end_of_waiting = self.loop.call_later(SECONDS_TO_WAIT, self.give_up)

    def _stop_waiting(self) -> None:
        self.waiting_since = None
        if self._end_of_waiting is not None:
            self._end_of_waiting.cancel()
            self._end_of_waiting = None

    def _make_room(self) -> None:
        waiting = [one for one in self.connections if isinstance(one, Connection) and one.waiting_since is not None]
        if len(waiting) <= MOST_WAITING:
            return
        of_client = Counter(one.client and one.client[0] for one in waiting)
        busiest, _ = of_client.most_common(1)[0]
        own = [one for one in waiting if (one.client and one.client[0]) == busiest]
        min(own, key=lambda one: one.waiting_since or 0.0).give_up()

"""Requests read with limits, and answers in JSON."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from inspect import Parameter
from typing import Any, TypeVar, get_args, get_origin

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from aha.core.validation import JSON, Range, checked
from aha.errors import AhaError, SpecError
from aha.web.reading import Asker

MAX_JSON = 64 * 2**10
SECONDS_BETWEEN_PARTS = 10.0  # of a body that is arriving
_BYTES_PER_SECOND = 32 * 2**10  # of a body, on average, after that time
_OWNER = re.compile(r"[A-Za-z0-9-]{1,64}")

T = TypeVar("T")
_MISSING: Any = object()
_NUMBERS = Range(-(2**31), 2**31)


class Refused(AhaError):
    """A request that cannot be answered, with its HTTP status."""

    def __init__(self, status: int, line: str) -> None:
        super().__init__(line)
        self.status = status


def answer(value: Any, status: int = 200) -> Response:
    """A value as JSON, in plain ASCII: names may hold anything."""
    return Response(json.dumps(value, allow_nan=False), status, media_type="application/json")


def binary(content: bytes, kind: str, *, name: str = "", lasting: bool = False) -> Response:
    """Bytes of a known kind; `lasting` where the address says all about the content, `name` for a download."""
    headers = {"cache-control": "private, max-age=31536000, immutable"} if lasting else {}
    if name:
        headers["content-disposition"] = f'attachment; filename="{name}"'
    return Response(content, media_type=kind, headers=headers)


class Room:
    """Memory for bodies, all visitors together: what has arrived takes room, what is announced does not."""

    def __init__(self, most: int) -> None:
        self._left = most

    def take(self, count: int) -> None:
        """Room for so many bytes more."""
        if count > self._left:
            raise Refused(503, "too many uploads at once; try again in a few seconds")
        self._left -= count

    def give_back(self, count: int) -> None:
        """They are no longer needed."""
        self._left += count


@asynccontextmanager
async def body_of(request: Request, most: int, room: Room) -> AsyncIterator[bytes]:
    """The body, read no further than allowed; its room is free again at the end of the block."""
    length = request.headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit():
        raise Refused(400, "the content length is not a number")
    too_large = Refused(413, f"too large; at most {most // 2**10:,} KB are accepted")
    if len(length) > 15 or int(length) > most:
        raise too_large
    content = bytearray()
    try:
        async for part in _in_time(request):
            if len(content) + len(part) > most:
                raise too_large
            room.take(len(part))
            content += part
        yield bytes(content)
    finally:
        room.give_back(len(content))


async def _in_time(request: Request) -> AsyncIterator[bytes]:
    """The parts of a body, as long as they keep coming."""
    parts, clock = aiter(request.stream()), asyncio.get_running_loop()
    start, arrived = clock.time(), 0
    try:
        while True:
            async with asyncio.timeout(SECONDS_BETWEEN_PARTS):
                part = await anext(parts)
            yield part
            arrived += len(part)
            if arrived < _BYTES_PER_SECOND * (clock.time() - start - SECONDS_BETWEEN_PARTS):
                raise TimeoutError
    except StopAsyncIteration:
        return
    except TimeoutError:
        raise Refused(408, "the request took too long to arrive") from None
    except ClientDisconnect:
        raise Refused(400, "the request broke off") from None


_QUESTIONS = Room(512 * MAX_JSON)


class Fields:
    """The fields of a JSON object, taken one by one; what is left over at the end is an error."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._left = value

    @classmethod
    async def of(cls, request: Request) -> Fields:
        """The body of a request, which must be a JSON object and say so."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise Refused(415, "send JSON, as application/json")
        async with body_of(request, MAX_JSON, _QUESTIONS) as content:
            try:
                value = json.loads(content)
            except (ValueError, RecursionError):
                raise Refused(400, "the body is not JSON") from None
        if not isinstance(value, dict):
            raise Refused(400, "the body is not a JSON object")
        return cls(value)

    def take(self, name: str, kind: type[T], default: Any = _MISSING) -> T:
        """A field of the given type; whole numbers and texts within reason."""
        value = self._left.pop(name, default)
        if value is _MISSING:
            raise Refused(400, f"{name} is missing")
        try:
            fitted: T = checked(value, kind, name, _NUMBERS, JSON)
        except SpecError as error:
            raise Refused(400, str(error)) from None
        if isinstance(fitted, str) and "\0" in fitted:
            raise Refused(400, f"{name} holds a NUL")
        return fitted

    def take_list(self, name: str, kind: type[T], default: Any = _MISSING) -> list[T]:
        """A list of values of the given type."""
        values: list[Any] = self.take(name, list, default)
        return [Fields({name: value}).take(name, kind) for value in values]

    def take_for(self, parameter: Parameter, name: str) -> Any:
        """The field of this name as a parameter of a function wants it."""
        default = _MISSING if parameter.default is Parameter.empty else parameter.default
        if get_origin(parameter.annotation) is not Sequence:
            return self.take(name, parameter.annotation, default)
        (kind,) = get_args(parameter.annotation)
        return self.take_list(name, kind, default if default is _MISSING else list(default))

    def end(self) -> None:
        """Refuses fields that are left over."""
        if self._left:
            raise Refused(400, f"unknown field {next(iter(self._left))[:40]!r}")


def owner_of(request: Request) -> str:
    """Which visitor asks: a text that the page makes up, so that one does not cancel what another waits for."""
    owner = request.headers.get("x-aha-visitor", "")
    return owner if _OWNER.fullmatch(owner) else "anybody"


def asker_of(request: Request) -> Asker:
    """Who waits for a picture: the address, which cannot be made up, and the visitor there."""
    return Asker(request.client.host if request.client else "", owner_of(request))


async def unless_gone(request: Request, answer: Future[T]) -> T:
    """Waits for an answer as long as the client does; work that nobody waits for is taken back."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    leaving, found = asyncio.ensure_future(gone()), asyncio.wrap_future(answer)
    either: set[asyncio.Future[Any]] = {leaving, found}
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not found.done():
            raise Refused(400, "the client has left")
        return found.result()
    finally:
        found.cancel()
        leaving.cancel()


def number(text: str) -> int:
    """A whole number in an address."""
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise Refused(404, "there is nothing here")
    return int(text)

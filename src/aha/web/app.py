"""The application: its addresses, its errors as one line each, and its guard around both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from aha.errors import AhaError
from aha.web.cache import Gone
from aha.web.guard import Guard
from aha.web.jobs import Busy
from aha.web.requests import Refused, answer
from aha.web.routes import all_routes
from aha.web.runs import ServedRun
from aha.web.workbench import Workbench


def create_app(
    bench: Workbench,
    runs: Sequence[ServedRun] = (),
    *,
    token: str = "",
    report: Callable[[str], None] = lambda line: None,
    on_end: Callable[[], None] = lambda: None,
) -> Guard:
    """The application, behind its guard; `report` is called with unexpected errors, `on_end` last."""

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(on_end)

    app = Starlette(
        routes=all_routes(bench, runs),
        exception_handlers={AhaError: _explain, HTTPException: _explain, Exception: _explain},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # there is one spelling of each address
    return Guard(app, token=token, report=report)


async def _explain(_request: Request, error: Exception) -> Response:
    """Every error as one line with its status."""
    if isinstance(error, HTTPException):
        response = answer({"error": error.detail.lower()}, error.status_code)
        response.headers.update(error.headers or {})
        return response
    if not isinstance(error, AhaError):  # raised again by Starlette after the answer, and reported by the guard
        return answer({"error": "something went wrong inside; the server goes on"}, 500)
    response = answer({"error": " ".join(str(error).split())}, _status(error))
    if isinstance(error, Refused) and error.status in (408, 413, 503):
        response.headers["connection"] = "close"  # the rest of the body is not waited for
    if isinstance(error, Busy):
        response.headers["retry-after"] = "5"
    return response


def _status(error: AhaError) -> int:
    if isinstance(error, Refused):
        return error.status
    return 429 if isinstance(error, Busy) else 404 if isinstance(error, Gone) else 422

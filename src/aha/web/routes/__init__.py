"""The addresses of the explorer, by purpose. All of them translate, none of them computes.

An endpoint that only looks something up is a plain function, which Starlette runs in a thread; one that reads a body is
a coroutine.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import Route

from aha.web.routes.page import page_routes
from aha.web.routes.pictures import picture_routes
from aha.web.routes.questions import question_routes
from aha.web.routes.results import result_routes
from aha.web.routes.runs import run_routes
from aha.web.routes.sharing import sharing_routes
from aha.web.runs import ServedRun
from aha.web.workbench import Workbench


def all_routes(bench: Workbench, runs: Sequence[ServedRun]) -> list[Route]:
    """Every address with its endpoint."""
    return [
        *page_routes(bench, runs),
        *picture_routes(bench),
        *question_routes(bench),
        *result_routes(bench),
        *sharing_routes(bench),
        *run_routes(bench, runs),
    ]

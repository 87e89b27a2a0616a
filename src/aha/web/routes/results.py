"""Jobs under way, and what they found."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aha.web.payloads import State
from aha.web.records import served_array
from aha.web.requests import Refused, answer, binary, owner_of
from aha.web.workbench import Workbench


def result_routes(bench: Workbench) -> list[Route]:
    """States of jobs, records, and their arrays as bytes."""

    def job(request: Request) -> Response:
        """How far a job is; with its result once it is done."""
        key = request.path_params["key"]
        found = bench.jobs.get(key)
        if found is not None:
            return answer(bench.state(found))
        # Of an earlier life of the server, perhaps.
        known: State = {"key": key, "status": "done", "result": bench.store.get("results", key)}
        return answer(known)

    def cancel(request: Request) -> Response:
        """Takes a wish back."""
        found = bench.jobs.cancel(request.path_params["key"], owner_of(request))
        if found is None:
            raise Refused(404, "there is no such job")
        return answer(bench.state(found))

    def result(request: Request) -> Response:
        return answer(bench.store.get("results", request.path_params["key"]))

    def array(request: Request) -> Response:
        content = served_array(bench.store, request.path_params["key"], request.path_params["array"])
        return binary(content, "application/octet-stream", lasting=True)

    return [
        Route("/api/jobs/{key}", job, methods=["GET"]),
        Route("/api/jobs/{key}", cancel, methods=["DELETE"]),
        Route("/api/results/{key}", result, methods=["GET"]),
        Route("/api/results/{key}/{array}", array, methods=["GET"]),
    ]

"""Finished evaluations and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aha.web.requests import Fields, Refused, answer, asker_of, binary, number, unless_gone
from aha.web.runs import ServedRun
from aha.web.workbench import Workbench

_SANDBOX = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; sandbox"


def run_routes(bench: Workbench, runs: Sequence[ServedRun]) -> list[Route]:
    """Tables of runs, their images, and the way from one of these to its picture."""

    def chosen(request: Request) -> ServedRun:
        place = number(request.path_params["number"])
        if place >= len(runs):
            raise Refused(404, "there is no such run")
        return runs[place]

    def overview(request: Request) -> Response:
        return answer(chosen(request).overview())

    def images(request: Request) -> Response:
        """Its images by one method and metric; their classes in words if its model is on offer."""
        run = chosen(request)
        method, metric = (request.query_params.get(name, "") for name in ("method", "metric"))
        reference, protocol = (request.query_params.get(name) for name in ("reference", "protocol"))
        found = run.images(method, metric, reference, protocol)
        if (served := bench.served.get(run.model)) is not None:
            known = range(served.model.num_classes if served.kind == "class" else 0)
            for one in found:
                one["label"] = served.model.class_name(one["target"]) if one["target"] in known else ""
        return answer({"images": found})

    def report(request: Request) -> Response:
        """Its own page, in a sandbox."""
        return _page(chosen(request).report, "this run has no report")

    def audit(request: Request) -> Response:
        """The page of an audit, in a sandbox."""
        return _page(chosen(request).audit, "this run is no audit")

    async def open_image(request: Request) -> Response:
        """Takes an image of a run as a picture."""
        run, fields = chosen(request), await Fields.of(request)
        image = fields.take("image", str)
        fields.end()
        reading = await run_in_threadpool(lambda: bench.pictures.add_listed(run.picture(image), asker_of(request)))
        return answer(await unless_gone(request, reading), 201)

    return [
        Route("/api/runs/{number}", overview, methods=["GET"]),
        Route("/api/runs/{number}/images", images, methods=["GET"]),
        Route("/api/runs/{number}/images", open_image, methods=["POST"]),
        Route("/api/runs/{number}/report", report, methods=["GET"]),
        Route("/api/runs/{number}/audit", audit, methods=["GET"]),
    ]


def _page(path: Path | None, why_not: str) -> Response:
    """A page of a run's folder: no script of it runs, and it loads nothing."""
    if path is None:
        raise Refused(404, why_not)
    response = binary(path.read_bytes(), "text/html")
    response.headers["content-security-policy"] = _SANDBOX
    return response

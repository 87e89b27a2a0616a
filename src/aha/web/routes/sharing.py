"""Links that bring a view back, and downloads."""

from __future__ import annotations

import json

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aha.core.disk import result_key
from aha.web.bundles import bundle, snippet
from aha.web.payloads import Session
from aha.web.requests import Fields, answer, binary
from aha.web.workbench import Workbench


def sharing_routes(bench: Workbench) -> list[Route]:
    """Sessions, bundles and snippets."""

    def keep(pictures: list[str], view: dict[str, object]) -> str:
        for picture in pictures:
            bench.pictures.record(picture)
        session: Session = {"pictures": pictures, "view": view}
        key = result_key("session", json.dumps(session, sort_keys=True))
        bench.store.put("sessions", key, session)
        return key

    async def keep_session(request: Request) -> Response:
        """Keeps a visitor's pictures and view, so that a short link brings them back."""
        fields = await Fields.of(request)
        pictures, view = fields.take_list("pictures", str), fields.take("view", dict)
        fields.end()
        return answer({"key": await run_in_threadpool(keep, pictures, view)}, 201)

    def session(request: Request) -> Response:
        """A session that was kept, with the records of the pictures that are still here."""
        kept = bench.store.get("sessions", request.path_params["key"])
        found = [bench.store.find("pictures", key) for key in kept["pictures"]]
        return answer({"view": kept["view"], "pictures": [record for record in found if record is not None]})

    def maps_bundle(request: Request) -> Response:
        return binary(bundle(bench, _maps(request)), "application/zip", name="aha-maps.zip")

    def maps_snippet(request: Request) -> Response:
        return binary(snippet(bench, _maps(request)).encode(), "text/plain; charset=utf-8")

    return [
        Route("/api/sessions", keep_session, methods=["POST"]),
        Route("/api/sessions/{key}", session, methods=["GET"]),
        Route("/api/bundle", maps_bundle, methods=["GET"]),
        Route("/api/snippet", maps_snippet, methods=["GET"]),
    ]


def _maps(request: Request) -> list[str]:
    return request.query_params.get("maps", "").split(",")

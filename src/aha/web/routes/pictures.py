"""Pictures: taking them in, and showing them whole, as the model sees them, and without their pixels."""

from __future__ import annotations

import torch
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from torch import Tensor

from aha.models import TargetModel
from aha.models.loading.preprocessing import Geometry
from aha.web import pictures as limits
from aha.web.pictures import as_png, model_view, seen_window
from aha.web.policy import allowed_reference
from aha.web.requests import Refused, Room, answer, asker_of, binary, body_of, number, unless_gone
from aha.web.workbench import Workbench

_ARRIVING = 8  # uploads of the largest size that fit into memory at once, or many more that are smaller


def picture_routes(bench: Workbench) -> list[Route]:
    """Uploads, examples, and views of both."""
    pictures = bench.pictures
    room = Room(_ARRIVING * limits.MAX_UPLOAD)

    async def upload(request: Request) -> Response:
        """Takes the body as a picture, whatever its name says."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not (kind.startswith("image/") or kind == "application/octet-stream"):
            raise Refused(415, "send the file itself, as image/... or application/octet-stream")
        async with body_of(request, limits.MAX_UPLOAD, room) as content:
            name = request.query_params.get("name", "")
            record = await unless_gone(request, pictures.arriving(lambda: content, name, asker_of(request)))
        return answer(record, 201)

    async def prepared(request: Request) -> tuple[Tensor, Geometry, TargetModel]:
        model = bench.model(request.query_params.get("model", "")).model
        reading = pictures.prepared(request.path_params["key"], model, asker_of(request))
        return *(await unless_gone(request, reading)), model

    def record(request: Request) -> Response:
        return answer(pictures.record(request.path_params["key"]))

    async def whole(request: Request) -> Response:
        reading = pictures.thumbnail(request.path_params["key"], asker_of(request))
        return binary(await unless_gone(request, reading), "image/jpeg", lasting=True)

    async def window(request: Request) -> Response:
        """Which part of it the model sees."""
        _, geometry, _ = await prepared(request)
        return answer(seen_window(geometry))

    async def seen(request: Request) -> Response:
        """What the model sees of it."""
        inputs, _, model = await prepared(request)
        return binary(await run_in_threadpool(lambda: as_png(model_view(inputs, model))), "image/png")

    async def reference(request: Request) -> Response:
        """What stands in for its removed pixels."""
        chosen = allowed_reference(request.query_params.get("reference", ""))
        inputs, _, model = await prepared(request)

        def drawn() -> bytes:
            return as_png(chosen(model, model_view(inputs, model)[None], torch.zeros(1, dtype=torch.int64))[0])

        return binary(await run_in_threadpool(drawn), "image/png")

    async def example_thumbnail(request: Request) -> Response:
        place = number(request.path_params["number"])
        if place >= len(pictures.examples):
            raise Refused(404, "there is no such example")
        reading = pictures.example_thumbnail(place, asker_of(request))
        return binary(await unless_gone(request, reading), "image/jpeg")

    async def open_example(request: Request) -> Response:
        reading = pictures.open_example(number(request.path_params["number"]), asker_of(request))
        return answer(await unless_gone(request, reading), 201)

    return [
        Route("/api/pictures", upload, methods=["POST"]),
        Route("/api/pictures/{key}", record, methods=["GET"]),
        Route("/api/pictures/{key}/thumbnail", whole, methods=["GET"]),
        Route("/api/pictures/{key}/window", window, methods=["GET"]),
        Route("/api/pictures/{key}/input", seen, methods=["GET"]),
        Route("/api/pictures/{key}/reference", reference, methods=["GET"]),
        Route("/api/examples/{number}/thumbnail", example_thumbnail, methods=["GET"]),
        Route("/api/examples/{number}", open_example, methods=["POST"]),
    ]

"""Questions about a picture: each is answered at once if the answer is known, else with a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aha.web.requests import Fields, answer, owner_of
from aha.web.served import Served
from aha.web.workbench import ROUNDS, STEPS, Workbench

_MOST_FOUND = 24


def question_routes(bench: Workbench) -> list[Route]:
    """Classes, maps, curves, refinements and contrasts."""

    def find_classes(request: Request) -> Response:
        served = bench.model(request.query_params.get("model", ""))
        return answer({"classes": _matching(served, request.query_params.get("search", "")[:100])})

    return [
        Route("/api/classes", find_classes, methods=["GET"]),
        _question("/api/classes", bench.ask_classes, _subject),
        _question(
            "/api/maps",
            bench.ask_map,
            lambda fields: (*_subject(fields), fields.take("method", str), fields.take("target", int)),
        ),
        _question(
            "/api/curves",
            bench.ask_curves,
            lambda fields: (
                fields.take("map", str),
                fields.take_list("references", str, ["black", "mean", "blur"]),
                fields.take("steps", int, STEPS),
            ),
        ),
        _question(
            "/api/refinements",
            bench.ask_refinement,
            lambda fields: (
                *_subject(fields),
                fields.take("target", int),
                fields.take("rounds", int, ROUNDS),
                fields.take("explainer", str, ""),
            ),
        ),
        _question(
            "/api/contrasts",
            bench.ask_contrast,
            lambda fields: (*_subject(fields), fields.take("method", str), fields.take_list("classes", int)),
        ),
    ]


def _subject(fields: Fields) -> tuple[str, str]:
    return fields.take("picture", str), fields.take("model", str)


def _question(path: str, ask: Callable[..., dict[str, Any]], taken: Callable[[Fields], tuple[Any, ...]]) -> Route:
    """Reads the fields in the order in which `ask` wants them, after the name of the visitor."""

    async def asked(request: Request) -> Response:
        fields = await Fields.of(request)
        values = taken(fields)
        fields.end()
        state = await run_in_threadpool(ask, owner_of(request), *values)
        return answer(state, 200 if state["status"] == "done" else 202)

    return Route(path, asked, methods=["POST"])


def _matching(served: Served, search: str) -> list[dict[str, Any]]:
    """Classes whose name or number fits a text, names that begin with it first."""
    model, wanted = served.model, search.strip().lower()
    if wanted.isascii() and wanted.isdigit() and len(wanted) < 8 and int(wanted) < model.num_classes:
        return [{"index": int(wanted), "label": model.class_name(int(wanted))}]
    names = [model.class_name(index) for index in range(model.num_classes)]
    found = [(not name.lower().startswith(wanted), index) for index, name in enumerate(names) if wanted in name.lower()]
    return [{"index": index, "label": names[index]} for _, index in sorted(found)[:_MOST_FOUND]]

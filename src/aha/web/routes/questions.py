"""Questions about a picture: each is answered at once if the answer is known, else with a job."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aha.models.loading.class_names import perhaps_meant, synonyms_of, with_words
from aha.web.payloads import ClassSearch, NamedClass, SeveralMaps, State
from aha.web.questions.change import ask_change
from aha.web.questions.classes import ask_classes
from aha.web.questions.contrast import ask_contrast
from aha.web.questions.curves import STEPS, ask_curves
from aha.web.questions.maps import ask_map, ask_maps
from aha.web.questions.painting import ask_painted
from aha.web.questions.refinement import ROUNDS, ask_refinement
from aha.web.questions.targets import ask_target
from aha.web.requests import Fields, answer, owner_of
from aha.web.served import Served
from aha.web.workbench import Workbench

_MOST_FOUND = 24
_SECONDS_TO_ANSWER = 0.25  # that a quick question is waited for, rather than asked about again


def question_routes(bench: Workbench) -> list[Route]:
    """Classes, maps, curves, refinements, contrasts, and what changes when pixels go."""

    def find_classes(request: Request) -> Response:
        served = bench.model(request.query_params.get("model", ""))
        served.check_classes()
        search = request.query_params.get("search", "")[:100]
        found: ClassSearch = {"classes": _matching(served, search), "near": _near(served, search)}
        return answer(found)

    return [
        Route("/api/classes", find_classes, methods=["GET"]),
        _question("/api/classes", partial(ask_classes, bench), _subject),
        _question(
            "/api/maps",
            partial(ask_map, bench),
            lambda fields: (*_subject(fields), fields.take("method", str), fields.take("target", int)),
        ),
        _question(
            "/api/targets",
            partial(ask_target, bench),
            lambda fields: (
                *_subject(fields),
                fields.take("method", str),
                fields.take("target", str, ""),
                fields.take("class", str, ""),
                (fields.take("rows", int, 0), fields.take("columns", int, 0)),
                fields.take("bits", str, ""),
            ),
        ),
        _question(
            "/api/maps/several",
            partial(ask_maps, bench),
            lambda fields: (*_subject(fields), fields.take_list("methods", str), fields.take("target", int)),
        ),
        _question(
            "/api/paintings",
            partial(_answered_soon, bench, partial(ask_painted, bench)),
            lambda fields: (
                *_subject(fields),
                (fields.take("rows", int), fields.take("columns", int)),
                fields.take("bits", str),
                fields.take("reference", str),
                fields.take_list("classes", int, []),
            ),
        ),
        _question(
            "/api/changes",
            partial(ask_change, bench),
            lambda fields: (
                fields.take("contrast", str),
                fields.take("first", int),
                fields.take("second", int),
                fields.take("reference", str, "blur"),
            ),
        ),
        _question(
            "/api/curves",
            partial(ask_curves, bench),
            lambda fields: (
                fields.take("map", str),
                fields.take_list("references", str, ["black", "mean", "blur"]),
                fields.take("steps", int, STEPS),
            ),
        ),
        _question(
            "/api/refinements",
            partial(ask_refinement, bench),
            lambda fields: (
                *_subject(fields),
                fields.take("target", int),
                fields.take("rounds", int, ROUNDS),
                fields.take("explainer", str, ""),
            ),
        ),
        _question(
            "/api/contrasts",
            partial(ask_contrast, bench),
            lambda fields: (*_subject(fields), fields.take("method", str), fields.take_list("classes", int)),
        ),
    ]


def _subject(fields: Fields) -> tuple[str, str]:
    return fields.take("picture", str), fields.take("model", str)


def _answered_soon(bench: Workbench, ask: Callable[..., State], *values: Any) -> State:
    """The answer itself if it comes within a moment: what follows a brush must not wait for a second request."""
    state = ask(*values)
    if state["status"] == "done":
        return state
    job = bench.jobs.wait(state["key"], _SECONDS_TO_ANSWER)
    return state if job is None else bench.state(job)


def _question(path: str, ask: Callable[..., State | SeveralMaps], taken: Callable[[Fields], tuple[Any, ...]]) -> Route:
    """Reads the fields in the order in which `ask` wants them, after the name of the visitor."""

    async def asked(request: Request) -> Response:
        fields = await Fields.of(request)
        values = taken(fields)
        fields.end()
        state = await run_in_threadpool(ask, owner_of(request), *values)
        return answer(state, 200 if state["status"] == "done" else 202)

    return Route(path, asked, methods=["POST"])


def _near(served: Served, search: str) -> list[str]:
    """Names that were perhaps meant, where nothing fits."""
    names = [served.model.class_name(index) for index in range(served.model.num_classes)]
    return [] if _matching(served, search) else perhaps_meant(search, names)


def _matching(served: Served, search: str) -> list[NamedClass]:
    """Classes whose name or number fits a text: first those that have its words, as a name or another word for it."""
    model, wanted = served.model, search.strip().lower()
    if wanted.isascii() and wanted.isdigit() and len(wanted) < 8 and int(wanted) < model.num_classes:
        return [{"index": int(wanted), "label": model.class_name(int(wanted))}]
    names = [model.class_name(index) for index in range(model.num_classes)]
    by_word = with_words(wanted, synonyms_of(tuple(names)))
    begin = [index for index, name in enumerate(names) if name.lower().startswith(wanted)]
    contain = [index for index, name in enumerate(names) if wanted in name.lower()]
    found = list(dict.fromkeys([*by_word, *begin, *contain]))  # "cat": tabby, tiger cat, ..., and then catamaran
    return [{"index": index, "label": names[index]} for index in found[:_MOST_FOUND]]

"""Questions about a picture: each is answered at once if the answer is known, else with a job."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aha.models.loading.class_names import perhaps_meant, synonyms_of, with_words
from aha.web.payloads import NamedClass
from aha.web.questions.change import ask_change
from aha.web.questions.classes import ask_classes
from aha.web.questions.contrast import ask_contrast
from aha.web.questions.curves import ask_curves
from aha.web.questions.maps import ask_map, ask_maps
from aha.web.questions.painting import ask_painted
from aha.web.questions.refinement import ask_refinement
from aha.web.questions.targets import ask_target
from aha.web.requests import Fields, answer, owner_of
from aha.web.served import Served
from aha.web.workbench import Workbench

_MOST_FOUND = 24
_NAMES = {"cls": "class", "key_of_map": "map"}  # of fields, where Python has another one
_SECONDS_TO_ANSWER = 0.25  # that a quick question is waited for, rather than asked about again


def question_routes(bench: Workbench) -> list[Route]:
    """Classes, maps, curves, refinements, contrasts, and what changes when pixels go."""

    def find_classes(request: Request) -> Response:
        served = bench.model(request.query_params.get("model", ""))
        served.check_classes()
        search = request.query_params.get("search", "")[:100]
        return answer({"classes": _matching(served, search), "near": _near(served, search)})

    def question(path: str, ask: Callable[..., Any], *, is_quick: bool = False) -> Route:
        """Reads as fields what `ask` takes besides the workbench and the visitor, by their names and types."""
        _, _, *wanted = signature(ask, eval_str=True).parameters.values()

        def answered(owner: str, values: dict[str, Any]) -> Any:
            state = ask(bench, owner, **values)
            # What follows a brush must not wait for a second request.
            if is_quick and state["status"] != "done" and (job := bench.jobs.wait(state["key"], _SECONDS_TO_ANSWER)):
                return bench.state(job)
            return state

        async def asked(request: Request) -> Response:
            fields = await Fields.of(request)
            values = {each.name: fields.take_for(each, _NAMES.get(each.name, each.name)) for each in wanted}
            fields.end()
            state = await run_in_threadpool(answered, owner_of(request), values)
            return answer(state, 200 if state["status"] == "done" else 202)

        return Route(path, asked, methods=["POST"])

    return [
        Route("/api/classes", find_classes, methods=["GET"]),
        question("/api/classes", ask_classes),
        question("/api/maps", ask_map),
        question("/api/targets", ask_target),
        question("/api/maps/several", ask_maps),
        question("/api/paintings", ask_painted, is_quick=True),
        question("/api/changes", ask_change),
        question("/api/curves", ask_curves),
        question("/api/refinements", ask_refinement),
        question("/api/contrasts", ask_contrast),
    ]


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

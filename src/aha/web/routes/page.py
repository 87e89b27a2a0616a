"""The page itself, and what it needs to know at its start."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aha import __version__
from aha.catalogue import first_line
from aha.drawing.colours import lookup_table
from aha.methods import METHODS, list_methods
from aha.methods.var import Var
from aha.web import pictures as limits
from aha.web.policy import REFERENCES
from aha.web.questions.curves import COARSE_STEPS, STEPS
from aha.web.questions.refinement import ROUNDS
from aha.web.requests import Refused, answer, binary
from aha.web.runs import ServedRun
from aha.web.served import Served
from aha.web.workbench import MOST_CLASSES, Workbench

COLOUR_MAPS = ("inferno", "viridis", "cividis", "magma", "turbo", "RdBu_r", "PuOr_r", "coolwarm")
"""Those that the page offers, sequential ones first."""

SUGGESTED = ("grad_cam", "integrated_gradients(steps=20)", "smooth(gradient)")
"""Methods that are shown at first, as far as they fit the model."""

_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


def page_routes(bench: Workbench, runs: Sequence[ServedRun]) -> list[Route]:
    """The page, its scripts and styles, its colours."""
    # Read once: a request picks a name from this list and never makes a path.
    folders = [files(package) / "static" for package in ("aha.results.viewer", "aha.web")]
    static = {entry.name: entry.read_bytes() for folder in folders for entry in folder.iterdir() if entry.is_file()}

    async def page(_request: Request) -> Response:
        return binary(static["index.html"], "text/html")

    async def static_file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in static:
            raise Refused(404, "there is nothing here")
        return binary(static[name], _KINDS.get(name.rpartition(".")[2], "application/octet-stream"))

    def about(_request: Request) -> Response:
        return answer(_about(bench, runs))

    def colours(request: Request) -> Response:
        """A colour map as 256 times red, green, blue."""
        name = request.path_params["name"]
        if name not in COLOUR_MAPS:
            raise Refused(404, "the explorer has no such colour map")
        return binary(lookup_table(name).tobytes(), "application/octet-stream", lasting=True)

    return [
        Route("/", page, methods=["GET"]),
        Route("/static/{name}", static_file, methods=["GET"]),
        Route("/api/about", about, methods=["GET"]),
        Route("/api/colours/{name}", colours, methods=["GET"]),
    ]


def _about(bench: Workbench, runs: Sequence[ServedRun]) -> dict[str, Any]:
    """Everything on offer, and its limits."""
    return {
        "version": __version__,
        "models": [_describe(served) for served in bench.served.values()],
        "references": REFERENCES,
        "colour_maps": COLOUR_MAPS,
        "examples": [example.title for example in bench.pictures.examples],
        "runs": [{"name": run.name, "model": run.model} for run in runs],
        "curve_steps": {"coarse": COARSE_STEPS, "fine": STEPS},
        "rounds": ROUNDS,
        "most_classes": MOST_CLASSES,
        "max_upload": limits.MAX_UPLOAD,
        "max_pixels": limits.MAX_PIXELS,
    }


def _describe(served: Served) -> dict[str, Any]:
    """A model for the page: what it is, and the methods that fit it."""
    model, fitting = served.model, served.fitting
    height, width = model.stated_preprocessing().size
    methods = [_method(name, name) for name in list_methods(fitting) if name not in ("aha", Var.name)]
    wrapped = [_method("smooth(gradient)", "smooth")]
    learned = [_method(str(one), "aha", f" Explainer: {one.facts(model)['explainer']}.") for one in served.explainers]
    known = {method["text"] for method in methods}
    suggested = [text for text in SUGGESTED if text.partition("(")[0] in known]
    return {
        "name": served.name,
        "kind": served.kind,
        "classes": model.num_classes if served.kind == "class" else 0,
        "height": height,
        "width": width,
        "score": fitting.score.name,
        "is_probability": fitting.score.is_probability,
        "digest": model.digest[:12],
        "methods": [*learned, *(one for one in methods if one["text"] != "smooth"), *wrapped],
        "suggested": [*(one["text"] for one in learned[:1]), *suggested],
        "explainers": [one.explainer for one in served.explainers],
    }


def _method(text: str, name: str, more: str = "") -> dict[str, str]:
    return {"text": text, "family": METHODS[name].family, "summary": first_line(METHODS[name]) + more}

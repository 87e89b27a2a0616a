"""The addresses of the explorer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any

import torch
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from aha import __version__
from aha.catalogue import first_line
from aha.colours import lookup_table
from aha.errors import AhaError
from aha.images import read_image
from aha.methods import METHODS, list_methods
from aha.methods.var import Var
from aha.results import result_key
from aha.web import pictures as picture_limits
from aha.web.bundles import bundle, snippet
from aha.web.guard import Guard
from aha.web.jobs import Busy
from aha.web.pictures import as_png, model_view, thumbnail
from aha.web.policy import REFERENCES, allowed_reference
from aha.web.records import served_array
from aha.web.requests import Fields, Refused, answer, binary, body_of, number, owner_of
from aha.web.runs import Run
from aha.web.store import Gone
from aha.web.workbench import MOST_CLASSES, ROUNDS, STEPS, Served, Workbench

COLOUR_MAPS = ("inferno", "viridis", "cividis", "magma", "turbo", "RdBu_r", "PuOr_r", "coolwarm")
"""Those that the page offers, sequential ones first."""

SUGGESTED = ("grad_cam", "integrated_gradients(steps=20)", "smooth(gradient)")
"""Methods that are shown at first, as far as they fit the model."""

_KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_MOST_FOUND = 24
_SANDBOX = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; sandbox"

Endpoint = Callable[[Request], Awaitable[Response]]


def create_app(
    bench: Workbench,
    runs: Sequence[Run] = (),
    *,
    token: str = "",
    report: Callable[[str], None] = lambda line: None,
    on_end: Callable[[], None] = lambda: None,
) -> Guard:
    """The application, behind its guard; `report` hears of errors that nobody foresaw, `on_end` is called last."""
    explorer = Explorer(bench, runs)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(on_end)

    app = Starlette(
        routes=explorer.routes(),
        exception_handlers={AhaError: _explain, HTTPException: _explain, Exception: _explain},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # there is one spelling of each address
    return Guard(app, token=token, report=report)


class Explorer:
    """The endpoints; all of them translate, none of them computes."""

    def __init__(self, bench: Workbench, runs: Sequence[Run]) -> None:
        self.bench, self.runs = bench, list(runs)
        folder = files("aha.web") / "static"
        # Read once: a request picks a name from this list and never makes a path.
        self._static = {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}

    def routes(self) -> list[Route]:
        """Every address with its endpoint."""
        get: list[tuple[str, Endpoint]] = [
            ("/", self.page),
            ("/static/{name}", self.static),
            ("/api/about", self.about),
            ("/api/classes", self.find_classes),
            ("/api/colours/{name}", self.colours),
            ("/api/pictures/{key}", self.picture),
            ("/api/pictures/{key}/thumbnail", self.thumbnail),
            ("/api/pictures/{key}/input", self.input),
            ("/api/pictures/{key}/reference", self.reference),
            ("/api/examples/{number}/thumbnail", self.example_thumbnail),
            ("/api/results/{key}", self.result),
            ("/api/results/{key}/{array}", self.array),
            ("/api/jobs/{key}", self.job),
            ("/api/sessions/{key}", self.session),
            ("/api/bundle", self.bundle),
            ("/api/snippet", self.snippet),
            ("/api/runs/{number}", self.run),
            ("/api/runs/{number}/images", self.run_images),
            ("/api/runs/{number}/report", self.run_report),
        ]
        post: list[tuple[str, Endpoint]] = [
            ("/api/pictures", self.upload),
            ("/api/examples/{number}", self.open_example),
            ("/api/classes", self.ask_classes),
            ("/api/maps", self.ask_map),
            ("/api/curves", self.ask_curves),
            ("/api/refinements", self.ask_refinement),
            ("/api/contrasts", self.ask_contrast),
            ("/api/sessions", self.keep_session),
            ("/api/runs/{number}/images", self.open_run_image),
        ]
        return [
            *(Route(path, endpoint, methods=["GET"]) for path, endpoint in get),
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in post),
            Route("/api/jobs/{key}", self.cancel, methods=["DELETE"]),
        ]

    # The page

    async def page(self, request: Request) -> Response:
        """The page itself."""
        return binary(self._static["index.html"], "text/html")

    async def static(self, request: Request) -> Response:
        """Scripts and styles."""
        name = request.path_params["name"]
        if name not in self._static:
            raise Refused(404, "there is nothing here")
        return binary(self._static[name], _KINDS.get(name.rpartition(".")[2], "application/octet-stream"))

    async def about(self, request: Request) -> Response:
        """Everything that the page needs to know at its start."""
        pictures = self.bench.pictures
        return answer(
            {
                "version": __version__,
                "models": [_describe(served) for served in self.bench.served.values()],
                "references": REFERENCES,
                "colour_maps": COLOUR_MAPS,
                "examples": [example.title for example in pictures.examples],
                "runs": [{"name": run.name, "model": run.model} for run in self.runs],
                "steps": STEPS,
                "rounds": ROUNDS,
                "most_classes": MOST_CLASSES,
                "max_upload": picture_limits.MAX_UPLOAD,
                "max_pixels": picture_limits.MAX_PIXELS,
            }
        )

    async def colours(self, request: Request) -> Response:
        """A colour map as 256 times red, green, blue."""
        name = request.path_params["name"]
        if name not in COLOUR_MAPS:
            raise Refused(404, "the explorer has no such colour map")
        table = await run_in_threadpool(lookup_table, name)
        return binary(table.tobytes(), "application/octet-stream", lasting=True)

    # Pictures

    async def upload(self, request: Request) -> Response:
        """Takes the body as a picture, whatever its name says."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if not (kind.startswith("image/") or kind == "application/octet-stream"):
            raise Refused(415, "send the file itself, as image/... or application/octet-stream")
        content = await body_of(request, picture_limits.MAX_UPLOAD)
        name = request.query_params.get("name", "")
        return answer(await run_in_threadpool(self.bench.pictures.add, content, name), 201)

    async def picture(self, request: Request) -> Response:
        """Name and size."""
        return answer(await run_in_threadpool(self.bench.pictures.record, request.path_params["key"]))

    async def thumbnail(self, request: Request) -> Response:
        """The whole picture, small."""

        def make() -> bytes:
            return thumbnail(self.bench.pictures.image(request.path_params["key"]))

        return binary(await run_in_threadpool(make), "image/jpeg", lasting=True)

    async def input(self, request: Request) -> Response:
        """What the model sees of it."""

        def make() -> bytes:
            served = self.bench.model(request.query_params.get("model", ""))
            return as_png(model_view(self.bench.pictures.batch(request.path_params["key"], served.model), served.model))

        return binary(await run_in_threadpool(make), "image/png", lasting=True)

    async def reference(self, request: Request) -> Response:
        """What stands in for its removed pixels."""

        def make() -> bytes:
            served = self.bench.model(request.query_params.get("model", ""))
            chosen = allowed_reference(request.query_params.get("reference", ""))
            batch = self.bench.pictures.batch(request.path_params["key"], served.model)
            pixels = model_view(batch, served.model)[None]
            return as_png(chosen(served.model, pixels, torch.zeros(1, dtype=torch.int64))[0])

        return binary(await run_in_threadpool(make), "image/png", lasting=True)

    async def example_thumbnail(self, request: Request) -> Response:
        """An example, small."""
        examples, place = self.bench.pictures.examples, number(request.path_params["number"])
        if place >= len(examples):
            raise Refused(404, "there is no such example")
        content = await run_in_threadpool(lambda: thumbnail(read_image(examples[place].path), 160))
        return binary(content, "image/jpeg")

    async def open_example(self, request: Request) -> Response:
        """Takes an example as a picture."""
        place = number(request.path_params["number"])
        return answer(await run_in_threadpool(self.bench.pictures.open_example, place), 201)

    # Questions

    async def find_classes(self, request: Request) -> Response:
        """Classes whose name or number fits a text."""
        served = self.bench.model(request.query_params.get("model", ""))
        return answer({"classes": _matching(served, request.query_params.get("search", "")[:100])})

    async def ask_classes(self, request: Request) -> Response:
        """The best classes of a picture."""
        fields = await Fields.of(request)
        ask = partial(self.bench.ask_classes, owner_of(request), fields.take("picture", str), fields.take("model", str))
        return await _asked(fields, ask)

    async def ask_map(self, request: Request) -> Response:
        """A map."""
        fields = await Fields.of(request)
        ask = partial(
            self.bench.ask_map,
            owner_of(request),
            fields.take("picture", str),
            fields.take("model", str),
            fields.take("method", str),
            fields.take("target", int),
        )
        return await _asked(fields, ask)

    async def ask_curves(self, request: Request) -> Response:
        """The curves of a map."""
        fields = await Fields.of(request)
        ask = partial(
            self.bench.ask_curves,
            owner_of(request),
            fields.take("map", str),
            fields.take_list("references", str, ["black", "mean", "blur"]),
            fields.take("steps", int, STEPS),
        )
        return await _asked(fields, ask)

    async def ask_refinement(self, request: Request) -> Response:
        """AHA's maps step by step."""
        fields = await Fields.of(request)
        ask = partial(
            self.bench.ask_refinement,
            owner_of(request),
            fields.take("picture", str),
            fields.take("model", str),
            fields.take("target", int),
            fields.take("rounds", int, ROUNDS),
            fields.take("explainer", str, ""),
        )
        return await _asked(fields, ask)

    async def ask_contrast(self, request: Request) -> Response:
        """How classes share the picture."""
        fields = await Fields.of(request)
        ask = partial(
            self.bench.ask_contrast,
            owner_of(request),
            fields.take("picture", str),
            fields.take("model", str),
            fields.take("method", str),
            fields.take_list("classes", int),
        )
        return await _asked(fields, ask)

    # Answers

    async def job(self, request: Request) -> Response:
        """How far a job is; with its result once it is done."""
        key = request.path_params["key"]
        found = self.bench.jobs.get(key)
        if found is not None:
            return answer(await run_in_threadpool(self.bench.state, found))
        result = await run_in_threadpool(self.bench.store.get, "results", key)  # of an earlier life of the server
        return answer({"key": key, "status": "done", "result": result})

    async def cancel(self, request: Request) -> Response:
        """Takes a wish back."""
        found = self.bench.jobs.cancel(request.path_params["key"], owner_of(request))
        if found is None:
            raise Refused(404, "there is no such job")
        return answer(self.bench.state(found))

    async def result(self, request: Request) -> Response:
        """A record."""
        return answer(await run_in_threadpool(self.bench.store.get, "results", request.path_params["key"]))

    async def array(self, request: Request) -> Response:
        """An array of a record, as bytes."""
        key, name = request.path_params["key"], request.path_params["array"]
        content = await run_in_threadpool(served_array, self.bench.store, key, name)
        return binary(content, "application/octet-stream", lasting=True)

    # Sharing and downloads

    async def keep_session(self, request: Request) -> Response:
        """Keeps a visitor's pictures and view, so that a short link brings them back."""
        fields = await Fields.of(request)
        pictures, view = fields.take_list("pictures", str), fields.take("view", dict)
        fields.end()
        for key in pictures:
            await run_in_threadpool(self.bench.pictures.record, key)
        session = {"pictures": pictures, "view": view}
        key = result_key("session", json.dumps(session, sort_keys=True))
        await run_in_threadpool(self.bench.store.put, "sessions", key, session)
        return answer({"key": key}, 201)

    async def session(self, request: Request) -> Response:
        """A session that was kept, with the records of the pictures that are still here."""
        session = await run_in_threadpool(self.bench.store.get, "sessions", request.path_params["key"])
        found = [self.bench.store.find("pictures", key) for key in session["pictures"]]
        return answer({"view": session["view"], "pictures": [record for record in found if record is not None]})

    async def bundle(self, request: Request) -> Response:
        """Maps with pictures, manifest and snippet."""
        content = await run_in_threadpool(bundle, self.bench, request.query_params.get("maps", "").split(","))
        return binary(content, "application/zip", name="aha-maps.zip")

    async def snippet(self, request: Request) -> Response:
        """Python that makes the maps again."""
        text = await run_in_threadpool(snippet, self.bench, request.query_params.get("maps", "").split(","))
        return binary(text.encode(), "text/plain; charset=utf-8")

    # Runs

    async def run(self, request: Request) -> Response:
        """A run's table."""
        return answer(await run_in_threadpool(self._run(request).overview))

    async def run_images(self, request: Request) -> Response:
        """A run's images by one method and metric."""
        method, metric = (request.query_params.get(name, "") for name in ("method", "metric"))
        return answer({"images": await run_in_threadpool(self._run(request).images, method, metric)})

    async def run_report(self, request: Request) -> Response:
        """A run's own page, in a sandbox."""
        path = self._run(request).report
        if path is None:
            raise Refused(404, "this run has no report")
        response = binary(await run_in_threadpool(path.read_bytes), "text/html")
        response.headers["content-security-policy"] = _SANDBOX
        return response

    async def open_run_image(self, request: Request) -> Response:
        """Takes an image of a run as a picture."""
        run, fields = self._run(request), await Fields.of(request)
        image = fields.take("image", str)
        fields.end()
        return answer(await run_in_threadpool(lambda: self.bench.pictures.add_file(run.picture(image))), 201)

    def _run(self, request: Request) -> Run:
        place = number(request.path_params["number"])
        if place >= len(self.runs):
            raise Refused(404, "there is no such run")
        return self.runs[place]


async def _asked(fields: Fields, ask: Callable[[], dict[str, Any]]) -> Response:
    """The answer to a question: done at once if it is known, else a job."""
    fields.end()
    state = await run_in_threadpool(ask)
    return answer(state, 200 if state["status"] == "done" else 202)


def _describe(served: Served) -> dict[str, Any]:
    """A model for the page: what it is, and the methods that fit it."""
    model = served.model
    height, width = model.stated_preprocessing().size
    methods = [
        {"text": name, "family": METHODS[name].family, "summary": first_line(METHODS[name])}
        for name in list_methods(model)
        if name not in ("aha", Var.name)
    ]
    wrapped = [{"text": "smooth(gradient)", "family": "wrapper", "summary": first_line(METHODS["smooth"])}]
    learned = [
        {"text": str(one), "family": one.family, "summary": first_line(METHODS["aha"])} for one in served.explainers
    ]
    known = {method["text"] for method in methods}
    suggested = [text for text in SUGGESTED if text.partition("(")[0] in known]
    return {
        "name": served.name,
        "classes": model.num_classes,
        "height": height,
        "width": width,
        "score": model.score.name,
        "is_probability": model.score.is_probability,
        "digest": model.digest[:12],
        "methods": [*learned, *(one for one in methods if one["text"] != "smooth"), *wrapped],
        "suggested": [*(one["text"] for one in learned[:1]), *suggested],
        "explainers": [one.explainer for one in served.explainers],
    }


def _matching(served: Served, search: str) -> list[dict[str, Any]]:
    model, wanted = served.model, search.strip().lower()
    if wanted.isascii() and wanted.isdigit() and len(wanted) < 8 and int(wanted) < model.num_classes:
        return [{"index": int(wanted), "label": model.class_name(int(wanted))}]
    names = [model.class_name(index) for index in range(model.num_classes)]
    found = [(not name.lower().startswith(wanted), index) for index, name in enumerate(names) if wanted in name.lower()]
    return [{"index": index, "label": names[index]} for _, index in sorted(found)[:_MOST_FOUND]]


async def _explain(_request: Request, error: Exception) -> Response:
    """Every error as one line with its status."""
    if isinstance(error, HTTPException):
        response = answer({"error": error.detail.lower()}, error.status_code)
        response.headers.update(error.headers or {})
        return response
    if not isinstance(error, AhaError):  # raised again by Starlette after the answer, and reported by the guard
        return answer({"error": "something went wrong inside; the server goes on"}, 500)
    response = answer({"error": " ".join(str(error).split())}, _status(error))
    if isinstance(error, Busy):
        response.headers["retry-after"] = "5"
    return response


def _status(error: AhaError) -> int:
    if isinstance(error, Refused):
        return error.status
    return 429 if isinstance(error, Busy) else 404 if isinstance(error, Gone) else 422

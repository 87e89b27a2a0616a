"""`aha serve`: models loaded, folders read, and the application given to a server."""

from __future__ import annotations

import re
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import uvicorn
from platformdirs import user_cache_path

from aha.demo import MODEL, PHOTOGRAPHS, photographs
from aha.errors import MissingExtra, ModelError, OutputError, SpecError
from aha.learned.explainer import Explainer
from aha.learned.library import load_explainer
from aha.methods.aha import AHA
from aha.methods.base import first_fitting
from aha.models import TargetModel, load_model
from aha.web.app import create_app
from aha.web.cache import Cache
from aha.web.connections import Connection
from aha.web.guard import Guard, is_loopback
from aha.web.jobs import Jobs
from aha.web.pictures import Example, Pictures, find_examples
from aha.web.runs import read_runs
from aha.web.served import Served
from aha.web.workbench import Workbench

PORT = 8642
_TOKEN_BYTES = 24
_BACKLOG = 256
_FIRST = "camera.png"


@dataclass(frozen=True)
class ServerSettings:
    """What the command line says.

    Attributes:
        models: spec texts; the demo's model if there are none.
        weights: files for the models, in their order; None for one that has its own.
        pretrained: False gives random weights, for trying things out.
        explainers: folders of trained explainers.
        runs: folders of finished evaluations and benchmarks.
        images: folders whose pictures are offered, and may be opened from runs.
        cache: where results are kept.
    """

    models: Sequence[str] = ()
    weights: Sequence[Path | None] = ()
    pretrained: bool = True
    explainers: Sequence[Path] = ()
    runs: Sequence[Path] = ()
    images: Sequence[Path] = ()
    cache: Path | None = None
    device: str | None = None
    batch_size: int = 16


def make_app(settings: ServerSettings, *, token: str = "", report: Callable[[str], None] = lambda line: None) -> Guard:
    """Everything that can be wrong is found here, before the first visitor."""
    runs = [run for folder in settings.runs for run in read_runs(folder)]
    examples = find_examples(settings.images) if settings.images else _demo_examples()
    store = Cache(settings.cache or user_cache_path("aha", appauthor=False) / "explorer")
    folders = [*settings.images, *settings.runs]
    served = _with_explainers(_load(settings), settings.explainers)
    jobs = Jobs(report=report)
    bench = Workbench(served, Pictures(store, examples, folders), store, jobs)
    return create_app(bench, runs, token=token, report=report, on_end=jobs.close)


def chosen_token(host: str, token: str) -> str:
    """The token that visitors must know: none on this machine alone, unless one is named."""
    if token and not re.fullmatch(r"[A-Za-z0-9_-]{8,128}", token):  # it travels in addresses and cookies
        raise SpecError("a token has 8 to 128 letters, digits, - and _")
    return token or ("" if is_loopback(host) else secrets.token_urlsafe(_TOKEN_BYTES))


def serve(app: Guard, host: str, port: int, on_ready: Callable[[str], None] = lambda address: None) -> None:
    """Serves until interrupted; `on_ready` is called with the address when the port is open.

    Raises:
        OutputError: The port cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # now: visitors may come before the server is ready
    except OSError as error:
        listener.close()
        raise OutputError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; try another --port"
        ) from None
    shown = f"[{host}]" if ":" in host else host
    on_ready(f"http://{shown}:{listener.getsockname()[1]}/")
    with listener, suppress(KeyboardInterrupt):  # Ctrl-C is how it ends
        uvicorn.Server(server_config(app)).run(sockets=[listener])


def server_config(app: Guard) -> uvicorn.Config:
    """How the application is served."""
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
    )


def _load(settings: ServerSettings) -> list[Served]:
    names = list(settings.models) or [MODEL]
    if len(settings.weights) > len(names):
        raise ModelError(f"{len(settings.weights)} weights files for {len(names)} models; name them in the same order")
    served = []
    for place, name in enumerate(names):
        options: dict[str, Any] = {}
        if place < len(settings.weights) and settings.weights[place] is not None:
            options["weights"] = str(settings.weights[place])
        elif not settings.pretrained:
            options["pretrained"] = False
        model = load_model(name, device=settings.device, batch_size=settings.batch_size, **options)
        if model.preprocessing is not None and model.preprocessing.is_measured:
            raise ModelError(f"{name} reads {model.preprocessing.reads}, the explorer photographs; use aha explain")
        earlier = names[:place].count(name)
        served.append(Served(f"{name} #{earlier + 1}" if earlier else name, model, options))
    return served


def _with_explainers(served: Sequence[Served], folders: Sequence[Path]) -> list[Served]:
    """Each model with the explainers that can read it, named ones first."""
    named = {folder: load_explainer(str(folder), torch.device("cpu")) for folder in folders}
    result = []
    for one in served:
        own = [AHA(explainer=str(folder)) for folder, found in named.items() if _belongs(found, one.model)]
        own += [AHA()] if first_fitting(["aha"], one.fitting) else []
        result.append(Served(one.name, one.model, one.options, own))
    used = {method.explainer for one in result for method in one.explainers}
    for folder in folders:
        if str(folder) not in used:
            raise ModelError(
                f"the explainer in {folder} was trained for {named[folder].config.target}, which is not served here"
            )
    return result


def _belongs(explainer: Explainer, model: TargetModel) -> bool:
    return explainer.config.target_digest == model.digest


def _demo_examples() -> list[Example]:
    """The demo's photographs, where they are installed; first the one of which the demo's model is surest."""
    try:
        paths = sorted(photographs(), key=lambda path: path.name != _FIRST)
    except MissingExtra:
        return []
    return [Example(path, PHOTOGRAPHS[path.name]) for path in paths if path.is_file()]

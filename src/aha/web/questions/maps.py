"""One method's map for one class, and several of them, cheap ones first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from aha.api import explain
from aha.errors import AhaError, SpecError
from aha.methods import Method
from aha.web.jobs import Busy, Job
from aha.web.payloads import AskedTarget, MapResult, State
from aha.web.records import SEED, map_record, packed
from aha.web.served import Served
from aha.web.workbench import Workbench

MOST_METHODS = 12


def ask_map(bench: Workbench, owner: str, picture: str, model: str, method: str, target: int) -> State:
    """One method's map for one class."""
    served = bench.model(model)
    chosen = served.method(method)
    bench.check(picture, served, [target])
    key = map_key(bench, served, picture, chosen, target)

    def work(job: Job) -> None:
        batch = bench.pictures.batch(picture, served.model)
        found = explain(served.model, batch, chosen, target, seed=SEED)
        bench.costs.learn(served, chosen, job.count_images())
        label = served.model.class_name(target)
        put_map(
            bench, served, picture, key, chosen, target, label, found.maps[0], float(found.scores[0]), found.seconds
        )

    return bench.ask(key, str(chosen), served, work, owner, bench.place_of(served, chosen))


def ask_maps(
    bench: Workbench, owner: str, picture: str, model: str, methods: Sequence[str], target: int
) -> dict[str, Any]:
    """Several methods' maps, cheap ones first; one answer for each, in their order: a state, or why not."""
    if not 1 <= len(methods) <= MOST_METHODS:
        raise SpecError(f"name 1 to {MOST_METHODS} methods")
    served = bench.model(model)
    bench.check(picture, served, [target])
    answers: dict[str, dict[str, Any]] = {}
    costs: dict[str, int] = {}
    for text in methods:
        try:
            costs[text] = bench.costs.of(served, served.method(text))
        except AhaError as error:
            answers[text] = _refusal(text, error)
    for text in sorted(costs, key=costs.__getitem__):  # the worker takes the first of them at once
        try:
            answers[text] = {"method": text, **ask_map(bench, owner, picture, model, text, target)}
        except Busy:
            raise  # nothing is wrong with the method
        except AhaError as error:
            answers[text] = _refusal(text, error)
    return {"status": "done", "answers": [answers[text] for text in methods]}


def put_map(
    bench: Workbench,
    served: Served,
    picture: str,
    key: str,
    method: Method,
    target: int,
    label: str,
    values: Tensor,
    score: float,
    seconds: float,
    asked: AskedTarget | None = None,
) -> None:
    """Keeps a map under its key."""
    record: MapResult = {
        "kind": "map",
        "key": key,
        "picture": picture,
        "model": bench.identity_of(served),
        "method": str(method),
        "target": target,
        "label": label,
        "score": score,
        "seconds": seconds,
        "asked": asked,
        **map_record(values),
    }
    bench.store.put("results", key, record, packed({"values": values.numpy()}))


def known_map(bench: Workbench, key: str) -> MapResult:
    """The record of a map that was made before."""
    record = bench.store.get("results", key)
    if record["kind"] != "map":
        raise SpecError(f"{key} is not a map")
    return record


def map_key(bench: Workbench, served: Served, picture: str, method: Method, target: int) -> str:
    """What a map is known by."""
    # By all it depends on: results outlive neither a change of defaults nor the training of another explainer.
    return bench.key_of(served, "map", picture, method.fingerprint(served.model), target, SEED)


def _refusal(method: str, error: AhaError) -> dict[str, Any]:
    return {"method": method, "error": " ".join(str(error).split())}

"""The map of a target that is no class: its text, or a region that was brushed on the picture."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from aha.api import explain
from aha.errors import SpecError
from aha.metrics import Sample
from aha.models.loading.preprocessing import Geometry
from aha.targets.base import Held, Objective, Shown
from aha.targets.regions import Region
from aha.web.jobs import Job
from aha.web.payloads import AskedTarget, MapResult, State
from aha.web.policy import allowed_target
from aha.web.questions.maps import put_map
from aha.web.questions.painting import unpacked
from aha.web.records import SEED
from aha.web.served import Served
from aha.web.workbench import Workbench


def ask_target(
    bench: Workbench,
    owner: str,
    picture: str,
    model: str,
    method: str,
    target: str = "",
    cls: str = "",
    rows: int = 0,
    columns: int = 0,
    bits: str = "",
) -> State:
    """One method's map of a target.

    Args:
        bench: where it is asked.
        owner: the visitor.
        picture: key of the picture.
        model: name of the model.
        method: as text.
        target: as text, in pixels of the picture; or empty, for a region that is brushed.
        cls: class of a brushed region, by name or number; the best one there if it is empty.
        rows, columns: of a grid over the model's input.
        bits: the brushed cells, as in `ask_painted`.
    """
    served = bench.model(model)
    asked: AskedTarget = {"text": target, "cls": cls, "rows": rows, "columns": columns, "bits": bits}
    objective = target_of(served, asked, None)
    chosen = served.method(method, objective.view(served.model))
    bench.pictures.record(picture)
    key = bench.key_of(served, "target", picture, chosen.fingerprint(served.model), *asked.values(), SEED)

    def work(job: Job) -> None:
        batch = bench.pictures.batch(picture, served.model)
        bound = target_of(served, asked, batch.subjects[0].geometry)
        found = explain(served.model, batch, chosen, bound, seed=SEED)
        bench.costs.learn(served, chosen, job.count_images())
        number, score = int(found.targets[0]), float(found.scores[0])
        label = "the brushed region" if bits else found.labels[0]
        put_map(bench, served, picture, key, chosen, number, label, found.maps[0], score, found.seconds, asked)

    return bench.ask(key, str(chosen), served, work, owner, bench.place_of(served, chosen))


def sample_of(bench: Workbench, served: Served, record: MapResult) -> Sample:
    """The picture of a map as what metrics look at: where a target was asked about, its number."""
    sample, asked = bench.sample(served, record["picture"]), record.get("asked")
    if asked is None:
        return sample
    geometry = bench.pictures.prepared(record["picture"], served.model).result()[1]
    target = target_of(served, asked, geometry)
    return replace(sample, model=target.view(served.model, Shown(sample.inputs[None], geometry)))


def target_of(served: Served, asked: AskedTarget, geometry: Geometry | None) -> Objective:
    """The target of a question; without a geometry what is known before the picture is read."""
    if not asked["bits"]:
        return allowed_target(asked["text"], served.model)
    if asked["text"]:
        raise SpecError("give the text of a target or a brushed region, not both")
    cells = unpacked(asked["bits"], (asked["rows"], asked["columns"]))
    if not cells.any():
        raise SpecError("the brushed region is empty; brush some pixels first")
    if geometry is None:
        return Region(cls=_class(asked["cls"]), mask=Held.of(cells))
    return Region(cls=_class(asked["cls"]), mask=Held.of(_on_picture(cells, geometry)))


def _class(text: str) -> int | str | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else text or None


def _on_picture(cells: Tensor, geometry: Geometry) -> Tensor:
    """A grid (rows, columns) over the model's input as a mask over the picture's own pixels."""
    over_input = F.interpolate(cells[None, None].float(), size=geometry.model, mode="nearest")[0, 0]
    return geometry.to_original(over_input).nan_to_num() > 0.5

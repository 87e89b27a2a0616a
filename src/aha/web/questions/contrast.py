"""How several classes share a picture."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from aha.api import explain
from aha.drawing.colours import class_colours
from aha.errors import TargetError
from aha.methods.var import Var
from aha.web.jobs import Job
from aha.web.payloads import ContrastResult, State
from aha.web.records import SEED, packed, unit_of
from aha.web.workbench import MOST_CLASSES, Workbench


def ask_contrast(bench: Workbench, owner: str, picture: str, model: str, method: str, classes: Sequence[int]) -> State:
    """How several classes share the picture (VAR); the first of them is the one that is explained."""
    served = bench.model(model)
    inner = served.method(method)
    if isinstance(inner, Var):
        inner = inner.inner
    if not 2 <= len(set(classes)) == len(classes) <= MOST_CLASSES:
        raise TargetError(f"compare 2 to {MOST_CLASSES} different classes")
    bench.check(picture, served, classes)
    chosen = Var(inner, classes=tuple(classes))
    key = bench.key_of(served, "contrast", picture, chosen.fingerprint(served.model), classes[0])

    def work(_job: Job) -> None:
        batch = bench.pictures.batch(picture, served.model)
        explanation = explain(served.model, batch, chosen, classes[0], seed=SEED)
        (found,) = explanation.distribution
        won = torch.stack([found.discriminative(index) for index in range(len(found.classes))])
        outputs = served.model.outputs(batch.inputs)
        indices = torch.tensor(found.classes)
        scores = served.model.score(outputs.expand(len(indices), -1), indices)
        arrays = {"maps": found.maps.numpy(), "shares": found.shares.numpy(), "won": won.numpy()}
        record: ContrastResult = {
            "kind": "contrast",
            "picture": picture,
            "model": bench.identity_of(served),
            "method": str(chosen),
            "classes": [served.scored_class(c, float(s)) for c, s in zip(found.classes, scores, strict=True)],
            "colours": class_colours(len(found.classes)),
            "height": won.shape[1],
            "width": won.shape[2],
            "units": {name: unit_of(arrays[name]) for name in ("maps", "won")},
        }
        bench.store.put("results", key, record, packed(arrays))

    return bench.ask(key, str(chosen), served, work, owner, bench.place_of(served, chosen))

"""What the model says to a picture."""

from __future__ import annotations

from aha.data.targets import top_classes
from aha.web.jobs import Job
from aha.web.payloads import ClassesResult, State
from aha.web.workbench import QUICK, Workbench

TOP = 10


def ask_classes(bench: Workbench, owner: str, picture: str, model: str) -> State:
    """The model's best classes."""
    served = bench.model(model)
    bench.check(picture, served, [])
    key = bench.key_of(served, "classes", picture, TOP)

    def work(_job: Job) -> None:
        chosen, batch = served.model, bench.pictures.batch(picture, served.model)
        outputs = chosen.outputs(batch.inputs)
        classes = top_classes(outputs, min(TOP, chosen.num_classes), chosen.num_classes)[0]
        scores = chosen.score(outputs.expand(len(classes), -1), classes)
        found = [served.scored_class(int(c), float(s)) for c, s in zip(classes, scores, strict=True)]
        record: ClassesResult = {
            "kind": "classes",
            "picture": picture,
            "model": bench.identity_of(served),
            "classes": found,
        }
        bench.store.put("results", key, record)

    return bench.ask(key, "classes", served, work, owner, QUICK)

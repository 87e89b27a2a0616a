"""Why not the class I expected: what would have to change in the picture for the model to say it."""

from __future__ import annotations

import torch
from torch import Tensor

from aha.data.targets import top_classes
from aha.errors import SpecError, TargetError
from aha.metrics import Case
from aha.web.jobs import Job
from aha.web.payloads import ChangeResult, State
from aha.web.policy import allowed_reference
from aha.web.questions.curves import STEPS, curve_protocol
from aha.web.records import SEED, map_record, packed
from aha.web.workbench import MAPS, Workbench


def ask_change(bench: Workbench, owner: str, contrast: str, first: int, second: int, reference: str = "blur") -> State:
    """The scores of two classes while the pixels that speak for the first rather than the second go.

    Args:
        bench: where it is asked.
        owner: the visitor.
        contrast: key of a contrast that compares both.
        first: the class that the model says.
        second: the class that was expected.
        reference: what is shown where pixels are gone.
    """
    record = bench.store.get("results", contrast)
    if record["kind"] != "contrast":
        raise SpecError(f"{contrast} is not a contrast")
    compared = [one["index"] for one in record["classes"]]
    if first == second or not {first, second} <= set(compared):
        raise TargetError("name two different classes of the contrast")
    served = bench.model_of(record)
    chosen = allowed_reference(reference)
    protocol = curve_protocol([chosen], STEPS)
    key = bench.key_of(served, "change", contrast, first, second, protocol.in_full())

    def work(_job: Job) -> None:
        won = torch.from_numpy(bench.store.array(contrast, "won"))  # (classes, H, W)
        values = won[compared.index(first)] - won[compared.index(second)]
        sample, target = bench.sample(served, record["picture"]), served.model
        case = Case(sample, first, values.to(target.device), record["method"], seed=SEED)
        curve = protocol.curve(case, "delete", chosen)
        pair = torch.tensor([first, second], device=target.device)
        scores = torch.stack([target.score(curve.outputs, one.expand(len(curve.outputs))) for one in pair])  # (2, S)
        best = top_classes(curve.outputs, 1, target.num_classes)[:, 0]
        place = _overtaken(scores)
        found: ChangeResult = {
            "kind": "change",
            "key": key,
            "picture": record["picture"],
            "model": record["model"],
            "first": served.scored_class(first, float(scores[0, 0])),
            "second": served.scored_class(second, float(scores[1, 0])),
            "is_probability": target.score.is_probability,
            "fractions": curve.fractions.tolist(),
            "scores": scores.float().cpu().tolist(),
            "place": place,
            "says": None if place is None else target.class_name(int(best[place])),
            **map_record(values),
        }
        bench.store.put("results", key, found, packed({"values": values.numpy()}))

    return bench.ask(key, "what would have to change", served, work, owner, MAPS)


def _overtaken(scores: Tensor) -> int | None:
    """The first step (of S) at which the second class beats the first; scores are (2, S)."""
    ahead = (scores[1] > scores[0]).nonzero().flatten().tolist()
    return ahead[0] if ahead else None

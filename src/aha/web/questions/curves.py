"""Deletion and insertion curves of a map, coarse ones first, which fine ones complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from aha.core.disk import result_key
from aha.errors import SpecError
from aha.evaluation.cards import reference_curves
from aha.metrics import Case, Sample
from aha.metrics.curves.base import AVERAGE
from aha.metrics.curves.ins_del import InsDel
from aha.perturb.perturbation import step_counts
from aha.perturb.references import Black, Blur, Mean, Reference
from aha.results.cards import Curves, average_curves
from aha.results.viewer.records import CurvesRecord, curves_record
from aha.web.jobs import Job
from aha.web.payloads import CurvesResult, MapResult, State
from aha.web.policy import allowed_reference
from aha.web.questions.maps import known_map
from aha.web.questions.targets import sample_of
from aha.web.records import SEED
from aha.web.workbench import COARSE_CURVES, FINE_CURVES, Workbench

STEPS, MOST_STEPS = 20, 64
COARSE_STEPS = 5  # of the curves that come first; their points are points of the fine ones too
MOST_REFERENCES = 4
STANDARD = (Black(), Mean(), Blur())


def ask_curves(
    bench: Workbench,
    owner: str,
    key_of_map: str,
    references: Sequence[str] = ("black", "mean", "blur"),
    steps: int = STEPS,
) -> State:
    """Deletion and insertion curves of a map that was made before."""
    record = known_map(bench, key_of_map)
    served = bench.model_of(record)
    protocol = curve_protocol([allowed_reference(text) for text in references], steps)
    key = _curves_key(key_of_map, protocol)

    def work(_job: Job) -> None:
        values = torch.from_numpy(bench.store.array(key_of_map, "values"))
        sample = sample_of(bench, served, record)
        put_curves(bench, key_of_map, record, sample, values, protocol)

    place = COARSE_CURVES if steps <= COARSE_STEPS else FINE_CURVES
    return bench.ask(key, f"curves of {record['method']}", served, work, owner, place)


def put_curves(
    bench: Workbench,
    key_of_map: str,
    record: MapResult,
    sample: Sample,
    values: Tensor,
    protocol: InsDel,
) -> str:
    """Measures the curves of a map and keeps them; their key."""
    key = _curves_key(key_of_map, protocol)
    chosen = sample.model
    case = Case(sample, record["target"], values.to(chosen.device), record["method"], seed=SEED)
    found = _sharpened(bench, case, key_of_map, protocol)
    found[AVERAGE] = average_curves(list(found.values()))
    curves: CurvesResult = {
        "kind": "curves",
        "key": key,
        "map": key_of_map,
        "protocol": str(protocol),
        "score": chosen.score.name,
        "is_probability": chosen.score.is_probability,
        "references": {name: curves_record(curve) for name, curve in found.items()},
    }
    bench.store.put("results", key, curves)
    return key


def _sharpened(bench: Workbench, case: Case, key_of_map: str, protocol: InsDel) -> dict[str, Curves]:
    """The curves by reference; the points that coarse curves of the same map have already are not asked again."""
    known = _coarse(bench, key_of_map, protocol)
    if not known or protocol.steps == "adaptive":
        return reference_curves(case, protocol)
    coarse, fine = (set(step_counts(case.num_pixels, steps)) for steps in (COARSE_STEPS, protocol.steps))
    missing = tuple(count / case.num_pixels for count in sorted(fine - coarse))
    between = reference_curves(case, replace(protocol, fractions=missing))
    return {name: known[name].joined(curves) for name, curves in between.items()}


def _coarse(bench: Workbench, key_of_map: str, protocol: InsDel) -> dict[str, Curves]:
    """Coarse curves for every reference of a protocol, if a job found them before: one for all, or one for each."""
    if protocol.steps == "adaptive" or protocol.steps % COARSE_STEPS or protocol.steps == COARSE_STEPS:
        return {}
    found = {}
    for reference in protocol.references:
        for references in (STANDARD, (reference,)):
            key = _curves_key(key_of_map, replace(protocol, steps=COARSE_STEPS, references=references))
            record = bench.store.find("results", key)
            if record is not None and record["kind"] == "curves" and str(reference) in record["references"]:
                found[str(reference)] = _curves_from_dict(record["references"][str(reference)])
    return found if len(found) == len(protocol.references) else {}


def _curves_key(key_of_map: str, protocol: InsDel) -> str:
    return result_key("curves", key_of_map, protocol.in_full())


def curve_protocol(references: Sequence[Reference], steps: int) -> InsDel:
    """Deletion and Insertion with these references, within reason."""
    if not 1 <= len(set(references)) == len(references) <= MOST_REFERENCES:
        raise SpecError(f"name 1 to {MOST_REFERENCES} different references")
    if not 2 <= steps <= MOST_STEPS:
        raise SpecError(f"curves have 2 to {MOST_STEPS} steps, not {steps}")
    return InsDel(steps=steps, references=tuple(references))


def _curves_from_dict(values: CurvesRecord) -> Curves:
    return Curves(tuple(values["fractions"]), tuple(values["deletion"]), tuple(values["insertion"]))

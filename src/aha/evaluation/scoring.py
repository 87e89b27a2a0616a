"""One map, scored: the perturbed images of all its metrics are shown to the model once, in one stream."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress

import torch

from aha.errors import AhaError
from aha.metrics import Case, Metric
from aha.metrics.case import Perturbation, ask_model
from aha.metrics.curves.base import CurveMetric
from aha.metrics.protocols import Protocol
from aha.results.score_table import CurveRow, Failure, Row, Scores


def score_case(case: Case, protocol: Protocol, faults: type[Exception] = AhaError) -> Scores:
    """What a protocol finds of a case; errors of the kind `faults` are recorded and do not stop the rest."""
    found = Scores()
    try:
        prepare([case], protocol.metrics)
    except faults as error:
        found.failures.append(Failure(case.sample.name, case.method, "", reason_of(error)))
        return found
    for chosen in protocol.metrics:
        try:
            chosen.check_volume(case)
            with torch.no_grad():
                values = chosen(case)
                curves = _curve_rows(case, chosen, protocol)
        except faults as error:
            found.failures.append(Failure(case.sample.name, case.method, chosen.name, reason_of(error)))
            continue
        if unknown := [v.column for v in values if not math.isfinite(v.value)]:
            why = f"{unknown[0]} is not a number: the model's scores of changed images are not finite"
            found.failures.append(Failure(case.sample.name, case.method, chosen.name, why))
            continue
        found.curve_rows += curves
        found.rows += [
            Row(case.sample.name, case.method, v.column, protocol.name, case.target, v.reference, v.value)
            for v in values
        ]
    return found


def reason_of(error: Exception) -> str:
    """What is recorded of an error; one that was not raised on purpose also says what it is."""
    return str(error) if isinstance(error, AhaError) else f"{type(error).__name__}: {error}"


def prepare(cases: Sequence[Case], metrics: Sequence[Metric]) -> None:
    """Asks the model what the metrics want to know, and what they want to know after that, until they want no more."""
    while wanted := [(case, p) for case in cases for chosen in metrics for p in _open(case, chosen)]:
        ask_model(wanted)


def prepared(cases: Iterable[Case], protocols: Sequence[Protocol]) -> Iterable[Case]:
    """The cases; curves whose steps follow from answers go on side by side, so that a batch is full in every round.

    What does not depend on answers is left to `prepare`: its batches are full for each case alone.
    """
    every = (chosen for protocol in protocols for chosen in protocol.metrics)
    adaptive = [chosen for chosen in every if isinstance(chosen, CurveMetric) and chosen.is_adaptive]
    if not adaptive:
        return cases
    cases = list(cases)
    with suppress(Exception):  # the case to blame will meet it again, and it alone
        prepare(cases, adaptive)
    return cases


def _open(case: Case, chosen: Metric) -> list[Perturbation]:
    """What the metric wants to know of the model and can be asked; what cannot, the metric will say itself."""
    wanted = []
    with suppress(AhaError):
        chosen.check_volume(case)
        for perturbation in chosen.perturbations(case):
            if not case.is_known(perturbation):
                case.sample.reference(perturbation.reference, case.target)
                wanted.append(perturbation)
    return wanted


def _curve_rows(case: Case, chosen: Metric, protocol: Protocol) -> list[CurveRow]:
    """The curves behind deletion and insertion; their outputs are known already."""
    if chosen.name not in ("deletion", "insertion") or not isinstance(chosen, CurveMetric):
        return []
    rows = []
    for reference in chosen.references:
        curve = chosen.curve(case, "delete" if chosen.name == "deletion" else "insert", reference)
        rows.append(
            CurveRow(
                case.sample.name,
                case.method,
                chosen.name,
                protocol.name,
                case.target,
                str(reference),
                tuple(curve.fractions.tolist()),
                tuple(case.scores(curve.outputs).tolist()),
            )
        )
    return rows

"""Fidelity: do the pixels that the map calls important carry the answer?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from aha.auditing.checks import AuditCheck, AuditPart, Shown, averaged
from aha.auditing.evidence import AuditEvidence, names_of, paired
from aha.auditing.plans import KNOWN, UNSEEN, curves, ins_del, search_of
from aha.metrics import load_metric
from aha.metrics.curves.base import AVERAGE
from aha.results.cards import BASELINES
from aha.results.headroom import HEADROOM

_WORDS = {"random_map": "random pixels", "center_map": "a blob in the centre", "edge_map": "edges of the image"}


def fidelity(evidence: AuditEvidence) -> AuditPart:
    """Leads over the baselines with both kinds of references, what the image carries, and the headroom."""
    checks = [check for references in (KNOWN, UNSEEN) for check in _leads(evidence, references)]
    checks.append(_drop(evidence))
    if search_of(evidence.asked):
        checks.append(_headroom(evidence))
    return AuditPart(
        "fidelity",
        "Do the pixels that the map calls important carry the answer?",
        checks,
        (
            "Ins-Del is Insertion minus Deletion: pixels are put back and removed in the order of the map. A lead "
            "counts from the lower end of its 95 % interval.",
            f"`aha train` uses {names_of(KNOWN)} by default; {names_of(UNSEEN)} are references that it does not use.",
        ),
    )


def _leads(evidence: AuditEvidence, references: tuple[str, ...]) -> Iterable[AuditCheck]:
    protocol = ins_del(references, evidence.asked.steps)
    own = evidence.values("ins_del", protocol, AVERAGE)
    for name in BASELINES:
        yield averaged(
            paired(own, evidence.values("ins_del", protocol, AVERAGE, name)),
            evidence.reasons(protocol),
            "low",
            name=f"lead over {name}: {', '.join(references)}",
            meaning=f"Ins-Del above that of {_WORDS[name]}, lower end of the interval; {names_of(references)}",
            side="least",
            limit=evidence.thresholds.fidelity.lead,
            shipped=evidence.shipped.fidelity.lead,
        )


def _drop(evidence: AuditEvidence) -> AuditCheck:
    """The share of the score that goes with the whole image: where there is none, no map could be faithful."""
    ends: dict[Shown, list[float]] = defaultdict(list)
    deletion = curves(KNOWN, evidence.asked.steps)[0]  # of the others, shuffled keeps what the image is made of
    protocol = str(load_metric(deletion))
    for row in evidence.group.scores.curve_rows:
        if (row.method, row.protocol) == (evidence.asked.method, protocol) and row.scores[0]:
            ends[row.image, row.target].append((row.scores[0] - row.scores[-1]) / abs(row.scores[0]))
    return averaged(
        {name: sum(own) / len(own) for name, own in ends.items()},
        evidence.reasons(deletion),
        name="drop",
        meaning=f"share of the class score that is lost when the whole image is replaced; {names_of(KNOWN)}",
        side="least",
        limit=evidence.thresholds.fidelity.drop,
        shipped=evidence.shipped.fidelity.drop,
    )


def _headroom(evidence: AuditEvidence) -> AuditCheck:
    protocol = ins_del(KNOWN, evidence.asked.steps)
    return averaged(
        evidence.values(HEADROOM, protocol, search_of(evidence.asked)),
        [*evidence.reasons(protocol), *evidence.reasons(protocol, search_of(evidence.asked))],
        name="headroom",
        meaning=f"share of the Ins-Del above random pixels that {search_of(evidence.asked)} finds possible",
        side="least",
        limit=evidence.thresholds.fidelity.headroom,
        shipped=evidence.shipped.fidelity.headroom,
    )

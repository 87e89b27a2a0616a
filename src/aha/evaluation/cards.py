"""Faithfulness cards, by the loop: the maps of explanations are scored next to the baselines, and to a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aha.data.batches import Batch
from aha.errors import MetricError
from aha.evaluation.ground_truth import GroundTruth
from aha.evaluation.loop import Loop
from aha.evaluation.map_sources import GivenMaps, MethodMaps
from aha.evaluation.sinks import MemorySink
from aha.methods import Method, load_method
from aha.metrics import Case
from aha.metrics.curves.base import CurveMetric
from aha.metrics.curves.deletion import Deletion
from aha.metrics.curves.ins_del import InsDel, both_curves
from aha.metrics.curves.insertion import Insertion
from aha.metrics.protocols import Protocol
from aha.models import TargetModel
from aha.perturb.references import Black, Blur, Mean
from aha.results.cards import BASELINES, Card, Curves, average_curves, lead_over
from aha.results.explanation import Explanation
from aha.results.score_table import Scores

PROTOCOL = InsDel(steps=20, references=(Black(), Mean(), Blur()))


def with_cards(
    model: TargetModel, batch: Batch, explanation: Explanation, *, seed: int = 0, oracle: str | Method | None = None
) -> Explanation:
    """The explanation of a batch with a card for each map."""
    return replace(explanation, cards=cards_of(model, batch, [explanation], seed=seed, oracle=oracle)[0])


def cards_of(
    model: TargetModel,
    batch: Batch,
    explanations: Sequence[Explanation],
    *,
    protocol: InsDel = PROTOCOL,
    seed: int = 0,
    oracle: str | Method | None = None,
) -> list[list[Card]]:
    """The cards of explanations of the same images and classes, for which baselines and oracle are measured once.

    Raises:
        MetricError: A map, or that of a baseline or the oracle, cannot be measured.
    """
    search = [] if oracle is None else [load_method(oracle)]
    known = {str(method): MethodMaps(model, method, seed) for method in (*map(load_method, BASELINES), *search)}
    shown = list(zip(map(id, explanations[0].subjects), explanations[0].targets.tolist(), strict=True))
    chosen = [[target for owner, target in shown if owner == id(subject)] for subject in batch.subjects]
    counts = [len(classes) for classes in chosen]
    given = [GivenMaps(own.method, list(own.maps), seed, counts) for own in explanations if own.method not in known]
    metrics = tuple(kind(steps=protocol.steps, references=protocol.references) for kind in (Deletion, Insertion))
    scores = Scores(protocols=(Protocol("card", metrics, ""),), model=model.spec)
    loop = Loop(model, [*given, *known.values()], scores.protocols, MemorySink(scores))
    placed = replace(batch, positions=list(range(len(counts))))
    loop.open(placed, GroundTruth(), lambda _batch, _outputs: {"": chosen}).score()
    if scores.failures:
        raise MetricError(scores.failures[0].reason)
    curves = {name: _curves_of(scores, name, len(protocol.references)) for name in map(str, loop.sources)}

    def card(method: str, place: int) -> Card:
        own, others = curves[method][place], {name: curves[name][place] for name in BASELINES}
        return Card(
            curves=average_curves(own),
            baselines={name: average_curves(theirs) for name, theirs in others.items()},
            leads={name: lead_over(own, theirs) for name, theirs in others.items()},
            protocol=str(protocol),
            score_name="probability" if model.score.is_probability else model.score.name,
            oracle=average_curves(curves[str(search[0])][place]) if search else None,
            oracle_name=str(search[0]) if search else "",
        )

    return [[card(own.method, place) for place in range(len(own))] for own in explanations]


def _curves_of(scores: Scores, method: str, references: int) -> list[list[Curves]]:
    """The curves of a method's maps, one after the other, each for every reference."""
    deletion, insertion = (
        [row for row in scores.curve_rows if (row.method, row.kind) == (method, kind)]
        for kind in ("deletion", "insertion")
    )
    every = [Curves(a.fractions, a.scores, b.scores) for a, b in zip(deletion, insertion, strict=True)]
    return [every[first : first + references] for first in range(0, len(every), references)]


def reference_curves(case: Case, protocol: CurveMetric) -> dict[str, Curves]:
    """The curves of a case for each reference of a protocol, by the reference's text; one stream of full batches."""
    return {
        str(reference): Curves(tuple(fractions.tolist()), *(tuple(own.tolist()) for own in scores))
        for reference, (fractions, scores) in both_curves(case, protocol).items()
    }

"""Insertion minus Deletion: one number for how well a map orders the pixels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from aha.errors import SpecError
from aha.metrics.base import Value, metric
from aha.metrics.case import Case, Kind
from aha.metrics.curves.base import CurveMetric, References, averaged
from aha.perturb.references import Reference


def both_curves(case: Case, protocol: CurveMetric) -> dict[Reference, tuple[Tensor, Tensor]]:
    """Shares of pixels (S,), and the scores of Deletion and Insertion (2, S), for each reference of a protocol."""
    case.prepare(protocol.perturbations(case))
    found = {}
    for reference in protocol.references:
        deletion, insertion = (protocol.curve(case, kind, reference) for kind in ("delete", "insert"))
        found[reference] = deletion.fractions, torch.stack([case.scores(c.outputs) for c in (deletion, insertion)])
    return found


@metric("ins_del", columns={"ins_del": "higher"}, bounds=(-1.0, 1.0), citation="AHA table 1")
@dataclass(frozen=True)
class InsDel(CurveMetric):
    """Insertion minus Deletion; about zero for an uninformative order.

    Attributes:
        insert_into: references of the insertion, where a protocol uses others than for the deletion.
        normalised: as in `deletion` and `insertion`.
    """

    insert_into: tuple[Reference, ...] = ()
    normalised: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.insert_into and len(self.insert_into) != len(self.references):
            raise SpecError("ins_del: insert_into needs one reference for each of references")

    def _sequences(self) -> Iterable[tuple[Kind, References]]:
        return (("delete", self.references), ("insert", self.insert_into or self.references))

    def __call__(self, case: Case) -> list[Value]:
        values = []
        for removed, empty in zip(self.references, self.insert_into or self.references, strict=True):
            difference = self.score_area(case, "insert", empty) - self.score_area(case, "delete", removed)
            name = str(removed) if removed == empty else f"{removed} / {empty}"
            values.append(Value("ins_del", difference, name))
        return averaged(values)

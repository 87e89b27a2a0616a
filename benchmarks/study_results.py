"""What the runs of the study say about each method: the numbers behind all pages of `docs/results`."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from aha.bench.runs import Group
from aha.bench.tables import differences
from aha.methods import load_method
from aha.metrics.curves import AVERAGE
from aha.results.headroom import headroom_of, is_oracle, worst_tenth
from aha.results.score_table import summarise

NAMES = {
    "resnet18": "ResNet-18",
    "efficientnet_lite0": "EfficientNet-Lite0",
    "vit_tiny": "ViT-Ti/16",
    "clip_vit_b16": "CLIP ViT-B/16",
}
BASE = "grad_cam"
FORMER_PROTOCOL = "ins_del in 4 or 8 steps"
SUMMARY = "scores_summary.csv"
TAIL = 20  # photographs at least for a worst tenth to be more than one of them


@dataclass(frozen=True)
class Result:
    """What a study says about one method on one model; `gap` is the mean difference to Grad-CAM on common images.

    `headroom` is the mean share of what `oracle` found, `worst_tenth` that of the images where least of it is
    reached; NaN without an oracle.
    """

    model: str
    method: str
    family: str
    n: int
    deletion: float
    insertion: float
    ins_del: float
    ins_del_se: float
    gap: float
    gap_se: float
    seconds: float
    forward: float
    backward: float
    headroom: float = math.nan
    worst_tenth: float = math.nan
    oracle: str = ""
    protocol: str = FORMER_PROTOCOL
    common: int = 0  # photographs that Grad-CAM was measured on too; 0 where it was not noted
    headroom_n: int = 0  # photographs that were searched too


def results_of(name: str, group: Group) -> list[Result]:
    """One result per method, the best first."""
    values = {column[0]: found for (_, column), found in group.values.items() if column[1] == AVERAGE}
    reached = headroom_of(values["ins_del"])
    protocol = next(name for (name, column) in group.values if column == ("ins_del", AVERAGE))
    found = []
    for method, own in values["ins_del"].items():
        shares = reached.shares.get(method, {}) if reached else {}
        score = summarise(method, "ins_del", "", AVERAGE, list(own.values()))
        gap = summarise(method, "ins_del", "", AVERAGE, differences(own, values["ins_del"][BASE]))
        found.append(
            Result(
                name,
                method,
                load_method(method).family,
                score.n,
                statistics.mean(values["deletion"][method].values()),
                statistics.mean(values["insertion"][method].values()),
                score.mean,
                score.standard_error,
                gap.mean,
                gap.standard_error,
                statistics.median(group.seconds[method]),
                statistics.mean(group.forward[method]),
                statistics.mean(group.backward[method]),
                statistics.mean(shares.values()) if shares else math.nan,
                statistics.mean(shares[image] for image in worst_tenth(shares)) if len(shares) >= TAIL else math.nan,
                reached.oracle if reached else "",
                protocol,
                gap.n,
                len(shares),
            )
        )
    return by_gap(found)


def by_gap(results: Iterable[Result]) -> list[Result]:
    """The best first; a search, which the others are measured by, before all of them."""
    return sorted(results, key=lambda result: (not is_oracle(result.method), -result.gap))


def joined(fresh: Sequence[Result], former: Sequence[Result]) -> list[Result]:
    """All that is known of a model, the best first: former results of methods that were not measured since.

    Gaps to Grad-CAM on common images can be compared across protocols, where the values themselves cannot. Explainers
    have been trained again, so that former results of AHA are those of nothing that exists.
    """
    measured = {result.method for result in fresh}
    kept = [r for r in former if r.method not in measured and not (fresh and "aha" in r.method)]
    return by_gap([*fresh, *kept])


def former_results(file: Path) -> dict[str, list[Result]]:
    """What the CSV says, by model."""
    found: dict[str, list[Result]] = {}
    for line in csv.DictReader(file.read_text(encoding="utf-8").splitlines()) if file.is_file() else ():
        values = {
            f.name: float(line[f.name]) if f.type == "float" else line[f.name]
            for f in fields(Result)
            if line.get(f.name)
        }
        counts = {name: int(line.get(name) or 0) for name in ("n", "common", "headroom_n")}
        found.setdefault(line["model"], []).append(Result(**{**values, **counts}))  # type: ignore[arg-type]
    return found


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"

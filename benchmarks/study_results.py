"""What the study says about each method: the numbers behind all pages of `docs/results`.

They are kept by parts, `scores_parts.csv`: a method on a block of photographs, which are known by their places in the
study's draw. Numbers of photographs that no two parts share are put together exactly, so that a study can go on
on another machine, without the rows of what was measured before.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

from aha.bench.reporting.tables import differences
from aha.bench.run_reader import Group
from aha.methods import load_method
from aha.metrics.curves.base import AVERAGE
from aha.results.headroom import Headroom, Shown, headroom_of, is_oracle, worst_tenth
from aha.results.score_table import summarise

NAMES = {
    "resnet18": "ResNet-18",
    "efficientnet_lite0": "EfficientNet-Lite0",
    "vit_tiny": "ViT-Ti/16",
    "clip_vit_b16": "CLIP ViT-B/16",
}
BASE, LEADER, REFINED = "grad_cam", "aha", "aha(refine=3)"
FORMER_PROTOCOL = "ins_del in 4 or 8 steps"
SUMMARY, PARTS = "scores_summary.csv", "scores_parts.csv"
BLOCK = 50  # photographs of a part at most
TAIL = 20  # photographs at least for a worst tenth to be more than one of them


class Spread(NamedTuple):
    """A mean over `n` photographs and its standard error, which is NaN for a single one."""

    n: int = 0
    mean: float = math.nan
    error: float = math.nan


def spread_of(values: Sequence[float]) -> Spread:
    """Of single numbers."""
    if not values:
        return Spread()
    found = summarise("", "", "", "", values)
    return Spread(found.n, found.mean, found.standard_error)


def pooled(parts: Iterable[Spread]) -> Spread:
    """Of all photographs of the parts together, as if their single numbers were known."""
    known = [part for part in parts if part.n]
    n = sum(part.n for part in known)
    if len(known) < 2:
        return known[0] if known else Spread()
    mean = math.fsum(part.n * part.mean for part in known) / n
    within = math.fsum(part.n * (part.n - 1) * part.error**2 for part in known if part.n > 1)
    between = math.fsum(part.n * (part.mean - mean) ** 2 for part in known)
    return Spread(n, mean, math.sqrt((within + between) / (n - 1) / n))


@dataclass(frozen=True)
class Result:
    """What a study says about one method on one model.

    `gap` is the mean difference to Grad-CAM and `behind` that to AHA, on `common` and `beside` photographs that both
    have. `headroom` is the mean share of what `oracle` found, `worst_tenth` that of the photographs where least of it
    is reached; NaN without an oracle. `photographs` are ranges of places in the draw.
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
    common: int = 0  # 0 where it was not noted
    headroom_n: int = 0  # photographs that were searched too
    behind: float = math.nan
    behind_se: float = math.nan
    beside: int = 0
    photographs: str = ""

    @property
    def places(self) -> set[int]:
        """Of its photographs in the draw; an interrupted part names more than it has."""
        ends = (piece.split("-") for piece in self.photographs.split())
        return {place for first, last in ends for place in range(int(first), int(last) + 1)}


ByImage = Mapping[Shown, float]


def parts_of(name: str, group: Group, place: Mapping[str, int]) -> list[Result]:
    """One result for each method and block of photographs; `place` is that of a photograph in the draw."""
    protocols = [protocol for (protocol, column) in group.values if column == ("ins_del", AVERAGE)]
    return [part for own in protocols for part in _parts_by(own, set(protocols) - {own}, name, group, place)]


def _parts_by(protocol: str, others: set[str], name: str, group: Group, place: Mapping[str, int]) -> list[Result]:
    """Those of one protocol; metrics that were measured alone are protocols of their own, and go with any."""
    values = {
        column[0]: found for (own, column), found in group.values.items() if column[1] == AVERAGE and own not in others
    }
    found = []
    for method in values["ins_del"]:
        costs = [statistics.median(group.seconds[method])]
        costs += [statistics.mean(numbers[method]) for numbers in (group.forward, group.backward)]
        for block in sorted({place[image] // BLOCK for image, _ in values["ins_del"][method]}):
            here = {
                metric: {m: _within(block, own, place) for m, own in by_method.items()}
                for metric, by_method in values.items()
                if metric in ("deletion", "insertion", "ins_del")
            }
            found.append(_part(name, method, here, protocol, costs, place))
    return found


def _within(block: int, values: ByImage, place: Mapping[str, int]) -> dict[Shown, float]:
    return {shown: value for shown, value in values.items() if place[shown[0]] // BLOCK == block}


def _part(
    name: str,
    method: str,
    values: Mapping[str, Mapping[str, ByImage]],
    protocol: str,
    costs: Sequence[float],
    place: Mapping[str, int],
) -> Result:
    scores = values["ins_del"]
    own = scores[method]
    score, gap, behind = (
        spread_of(numbers)
        for numbers in (
            list(own.values()),
            differences(own, scores.get(BASE, {})),
            differences(own, scores.get(LEADER, {})),
        )
    )
    reached = headroom_of({m: found for m, found in scores.items() if found})
    return Result(
        name,
        method,
        load_method(method).family,
        score.n,
        statistics.mean(values["deletion"][method].values()),
        statistics.mean(values["insertion"][method].values()),
        score.mean,
        score.error,
        gap.mean,
        gap.error,
        *costs,
        protocol=protocol,
        common=gap.n,
        behind=behind.mean,
        behind_se=behind.error,
        beside=behind.n,
        photographs=ranges(place[image] for image, _ in own),
        **_headroom(method, reached),  # type: ignore[arg-type]
    )


def _headroom(method: str, reached: Headroom | None) -> dict[str, float | str | int]:
    shares = reached.shares.get(method, {}) if reached else {}
    if reached is None or not shares:
        return {}
    lowest = [shares[image] for image in worst_tenth(shares)] if len(shares) >= TAIL else [math.nan]
    return {
        "headroom": statistics.mean(shares.values()),
        "worst_tenth": statistics.mean(lowest),
        "oracle": reached.oracle,
        "headroom_n": len(shares),
    }


def ranges(places: Iterable[int]) -> str:
    """Places as text: `0-49 100-149`."""
    found: list[list[int]] = []
    for place in sorted(set(places)):
        if found and place == found[-1][1] + 1:
            found[-1][1] = place
        else:
            found.append([place, place])
    return " ".join(f"{first}-{last}" for first, last in found)


def put_together(parts: Sequence[Result]) -> Result:
    """One method on one model, of parts that share no photograph: those that have most together.

    Parts of the earlier study have other curves, and count only where there is nothing else.
    """
    present = [part for part in parts if part.protocol != FORMER_PROTOCOL] or list(parts)
    chosen = _most_together(sorted(present, key=lambda part: -part.n))
    score, gap, behind = (
        pooled(spreads)
        for spreads in (
            [Spread(part.n, part.ins_del, part.ins_del_se) for part in chosen],
            [Spread(part.common, part.gap, part.gap_se) for part in chosen],
            [Spread(part.beside, part.behind, part.behind_se) for part in chosen],
        )
    )
    if not gap.n:  # how many it was of was not noted
        gap = Spread(0, chosen[0].gap, chosen[0].gap_se)

    def mean(name: str) -> float:
        return math.fsum(part.n * float(getattr(part, name)) for part in chosen) / score.n

    searched = [part for part in present if part.headroom_n]
    most = max(searched, key=lambda part: part.headroom_n, default=chosen[0])
    return replace(
        chosen[0],
        n=score.n,
        ins_del=score.mean,
        ins_del_se=score.error,
        gap=gap.mean,
        gap_se=gap.error,
        common=gap.n,
        behind=behind.mean,
        behind_se=behind.error,
        beside=behind.n,
        **{name: mean(name) for name in ("deletion", "insertion", "seconds", "forward", "backward")},
        # A worst tenth cannot be put together of parts: headroom is that of the part with most searched photographs.
        **{name: getattr(most, name) for name in ("headroom", "worst_tenth", "oracle", "headroom_n")},
        protocol=" and ".join(dict.fromkeys(part.protocol for part in sorted(chosen, key=_first))),
        photographs=ranges(place for part in chosen for place in part.places),
    )


def _most_together(parts: Sequence[Result]) -> list[Result]:
    """Parts without a photograph in common that have most together; of equals, those with the larger ones first."""
    if not parts:
        return []
    first, *others = parts
    with_it = [first, *_most_together([part for part in others if not part.places & first.places])]
    if not any(part.places & first.places for part in others):
        return with_it
    without = _most_together(others)
    return without if sum(part.n for part in without) > sum(part.n for part in with_it) else with_it


def _first(part: Result) -> int:
    return min(part.places, default=0)


def by_gap(results: Iterable[Result]) -> list[Result]:
    """The best first; a search, which the others are measured by, before all of them."""
    return sorted(results, key=lambda result: (not is_oracle(result.method), -result.gap))


def joined(fresh: Sequence[Result], former: Sequence[Result]) -> list[Result]:
    """All parts that are known; one measured anew, on the same photographs or more, takes the former one's place."""
    return [
        *fresh,
        *(
            part
            for part in former
            if not any(
                (new.model, new.method) == (part.model, part.method) and part.places <= new.places for new in fresh
            )
        ),
    ]


def read_results(file: Path) -> list[Result]:
    """What a CSV says."""
    found = []
    for line in csv.DictReader(file.read_text(encoding="utf-8").splitlines()) if file.is_file() else ():
        # An empty number is one that was not there to be measured; other empty fields have their defaults.
        values = {
            f.name: {"float": float, "int": int}.get(str(f.type), str)(line.get(f.name) or "nan")
            for f in fields(Result)
            if line.get(f.name) or str(f.type) == "float"
        }
        found.append(Result(**values))  # type: ignore[arg-type]
    return found


def write_results(file: Path, results: Iterable[Result], digits: int) -> None:
    """As CSV."""
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, [f.name for f in fields(Result)], lineterminator="\n")
        writer.writeheader()
        for result in results:
            rounded = {k: round(v, digits) if isinstance(v, float) else v for k, v in vars(result).items()}
            writer.writerow({k: "" if isinstance(v, float) and math.isnan(v) else v for k, v in rounded.items()})


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"

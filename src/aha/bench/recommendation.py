"""What a race says: one sentence, a table with intervals, how far metrics agree, and the call to paste."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

from aha.bench.examples import example_images
from aha.bench.race import Race, faithfulness, median, own_group, ranking
from aha.bench.report import REPORT
from aha.bench.runs import Group, read_run
from aha.bench.significance import LEVEL, holm, paired_p
from aha.bench.tables import better, differences
from aha.core.disk import write_atomically
from aha.errors import AhaError, OutputError
from aha.methods import load_method
from aha.metrics.statistics import spearman
from aha.results.score_table import markdown_table, summarise
from aha.results.templating import templates_of

PAGE = "recommendation.html"
METRIC_OF = {
    "faithfulness": "ins_del",
    "class": "class_sensitivity",
    "stability": "stability_spearman",
    "randomisation": "randomisation_spearman",
}
_PLAIN = {
    "faithfulness": "faithfulness",
    "class": "class sensitivity",
    "stability": "stability",
    "randomisation": "dependence on the weights",
    "cost": "cost",
}
_LEAST_COMMON = 4  # methods that two metrics must both have scored for their ranks to be compared
_CHEAPER = 4  # times, for a method to be named as the cheap one
_TOP = 3  # methods, and pictures, that the page shows side by side
_DISPUTED = 0.6  # of all places, between a method's best and worst rank


@dataclass(frozen=True)
class Standing:
    """How one method did.

    Attributes:
        n: images on which its faithfulness was measured.
        mean, low, high: Ins-Del and its 95 % interval.
        common: images that the best was measured on too.
        behind, behind_error: mean difference to the best on these, and its error; NaN for the best itself.
        p: corrected p-value of that difference.
        seconds, passes: median time of a map, and images through the model for it.
        checks: sanity metrics by their short names, where the budget allowed them.
        out: why it left the race, if it did.
    """

    method: str
    n: int
    mean: float
    low: float
    high: float
    common: int
    behind: float
    behind_error: float
    p: float
    seconds: float
    passes: float
    checks: Mapping[str, float] = field(default_factory=dict)
    out: str = ""

    @property
    def distance(self) -> str:
        """How far it is behind the best; a question mark where that may be chance, nothing for the best itself."""
        if math.isnan(self.behind):
            return ""
        return f"{-self.behind:.3f} ± {self.behind_error:.3f}{'' if self.is_significant else ' ?'}"

    @property
    def is_significant(self) -> bool:
        """Is it behind the best by more than chance?"""
        return self.p < LEVEL


@dataclass(frozen=True)
class Recommendation:
    """The answer to "which explanation should I use for this model?".

    Attributes:
        model: its text.
        model_text: how it is written in a call.
        target: the explained class, as it was asked for.
        standings: the methods that were scored, the best first; those that were ruled out come last.
        left: methods that could not be scored, with the reason.
        agreement: rank correlation of pairs of metrics over the methods that both have scored.
        sentence: the answer.
        folder: the run, with its rows and report.
    """

    model: str
    standings: Sequence[Standing]
    left: Mapping[str, str]
    agreement: Mapping[tuple[str, str], float]
    sentence: str
    folder: Path
    model_text: str = "model"
    target: str = "top1"

    @property
    def method(self) -> str | None:
        """The recommended method; None where all were ruled out."""
        return None if self.standings[0].out else self.standings[0].method

    @property
    def confidence(self) -> float:
        """One minus the largest corrected p-value among the comparisons of the best with those that came as far."""
        best, *others = self.standings
        reached = [s.p for s in others if not s.out and 2 * s.common > best.n and not math.isnan(s.p)]
        return 1 - max(reached, default=1.0)

    @property
    def call(self) -> str:
        """What to paste."""
        if self.method is None:
            return ""
        named = self.target if self.target.isdigit() else f'"{self.target}"'
        target = "" if self.target == "top1" else f", target={named}"
        return f'aha.explain({self.model_text}, "PICTURE.jpg", "{self.method}"{target})'

    @property
    def ruled_out(self) -> dict[str, str]:
        """Methods that were scored but may not be used, with the reason."""
        return {s.method: s.out for s in self.standings if s.out}

    @property
    def page(self) -> Path:
        """The answer as a page, with pictures where the best methods disagree."""
        return self.folder / PAGE

    @property
    def report(self) -> Path:
        """The report of the run."""
        return self.folder / REPORT

    @property
    def note(self) -> str:
        """What stands under the table."""
        return f"{self.model}; a question mark: these images cannot tell it from the best"

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows, the best method first."""
        checks = [name for name in METRIC_OF if any(name in s.checks for s in self.standings)]
        heads = ["method", "Ins-Del, 95 % interval", "behind the best", "n", *checks, "seconds", "passes"]
        return heads, [
            [
                s.method,
                f"{s.mean:.3f} [{s.low:.3f}, {s.high:.3f}]",
                s.distance,
                str(s.n),
                *(f"{s.checks[name]:.2f}" if name in s.checks else "–" for name in checks),
                f"{s.seconds:.2g}",
                f"{s.passes:.0f}",
            ]
            for s in self.standings
        ]

    def agreement_text(self) -> str:
        """Pairs of metrics with the rank correlation of their verdicts."""
        return "; ".join(f"{_PLAIN[a]} and {_PLAIN[b]} {rho:+.2f}" for (a, b), rho in self.agreement.items())

    def to_markdown(self) -> str:
        """Sentence, table, agreement and call."""
        parts = [self.sentence, markdown_table(self.note, *self.table())]
        if self.agreement:
            parts.append(f"Rank agreement of the metrics: {self.agreement_text()}.")
        for what, methods in (("Ruled out", self.ruled_out), ("Not scored", self.left)):
            if methods:
                parts.append(f"{what}: " + "; ".join(f"{method} ({why})" for method, why in methods.items()) + ".")
        return "\n\n".join([*parts, *([self.call] if self.call else [])])

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "model": self.model,
            "method": self.method,
            "confidence": round(self.confidence, 6),
            "sentence": self.sentence,
            "call": self.call,
            "standings": [
                {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in vars(s).items()}
                for s in self.standings
            ],
            "agreement": [[a, b, rho] for (a, b), rho in self.agreement.items()],
            "not_scored": dict(self.left),
            "run": str(self.folder),
        }


def write_page(found: Recommendation) -> None:
    """Writes the answer as a page that needs nothing else, with pictures where the best methods disagree."""
    run, top = read_run(found.folder), [s.method for s in found.standings if not s.out][:_TOP]
    examples = [
        case
        for group in run.groups
        if group.model == found.model
        for case in example_images(run, group, top)
        if len(top) > 1
    ]
    environment = templates_of("aha.bench")
    heads, rows = found.table()
    text = environment.get_template("recommendation.html").render(
        title=f"Which explanation to use for {found.model}",
        found=found,
        heads=heads,
        rows=rows,
        note=found.note,
        agreement=found.agreement_text(),
        examples=examples[:_TOP],
    )
    write_atomically(found.page, lambda file: file.write(text.encode()))


def recommendation(folder: str | Path) -> Recommendation:
    """What the race of a folder says so far."""
    folder = Path(folder)
    race = Race.read(folder)
    if race is None:
        raise OutputError(f"{folder} is not the folder of a race; make one with: aha recommend")
    standings = _standings(own_group(folder, race), race)
    if not standings:
        reasons = "; ".join(f"{method}: {why}" for method, why in race.out.items())
        raise OutputError(f"{folder}: no method could be scored ({reasons or 'the budget was spent before'})")
    scored = {s.method for s in standings}
    left = {method: why for method, why in race.out.items() if method not in scored}
    agreement = _agreement(standings)
    sentence = _sentence(standings, agreement)
    target = race.settings["targets"][0]
    return Recommendation(race.settings["model"], standings, left, agreement, sentence, folder, race.model_text, target)


def _standings(group: Group, race: Race) -> list[Standing]:
    """All scored methods; those that were ruled out stand behind those that were not."""
    values = faithfulness(group)
    fits = ranking(values, [m for m in race.methods if m not in race.out])
    others = ranking(values, [m for m in race.methods if m in race.out])
    order = [*fits, *others]
    if not order:
        return []
    best = values[order[0]]
    gaps = {method: differences(values[method], best) for method in order[1:]}
    p_values = holm({method: paired_p(gap) for method, gap in gaps.items()})
    checks = _checks(group)
    found = []
    for method in order:
        own = summarise(method, "", "", "", list(values[method].values()))
        gap = summarise(method, "", "", "", gaps[method]) if gaps.get(method) else None
        cost = [median(costs.get(method, ())) for costs in (group.seconds, group.forward, group.backward)]
        found.append(
            Standing(
                method,
                own.n,
                own.mean,
                own.low,
                own.high,
                own.n if gap is None else gap.n,
                math.nan if gap is None else gap.mean,
                math.nan if gap is None else gap.standard_error,
                p_values.get(method, math.nan),
                cost[0] or 0.0,
                (cost[1] or 0.0) + (cost[2] or 0.0),
                checks.get(method, {}),
                race.out.get(method, ""),
            )
        )
    return found


def _checks(group: Group) -> dict[str, dict[str, float]]:
    """Method -> short name of a sanity metric -> its mean."""
    found: dict[str, dict[str, float]] = {}
    for name, metric in METRIC_OF.items():
        for (_, column), values in group.values.items():
            if column[0] == metric and name != "faithfulness":
                for method, own in values.items():
                    known = [value for value in own.values() if not math.isnan(value)]
                    if known:
                        found.setdefault(method, {})[name] = math.fsum(known) / len(known)
    return found


def _scores(standings: Sequence[Standing], name: str) -> dict[str, float]:
    """Method -> a number that is larger for the better."""
    if name == "faithfulness":
        return {s.method: s.behind if not math.isnan(s.behind) else 0.0 for s in standings}
    if name == "cost":
        return {s.method: -s.passes for s in standings}
    sign = 1 if better(METRIC_OF[name]) == "higher" else -1
    return {s.method: sign * s.checks[name] for s in standings if name in s.checks}


def _agreement(standings: Sequence[Standing]) -> dict[tuple[str, str], float]:
    found = {}
    for a, b in combinations([*METRIC_OF, "cost"], 2):
        first, second = _scores(standings, a), _scores(standings, b)
        common = [method for method in first if method in second]
        if len(common) >= _LEAST_COMMON:
            rho = float(spearman(*(torch.tensor([scores[m] for m in common]) for scores in (first, second))))
            if not math.isnan(rho):
                found[a, b] = rho
    return found


# The sentence


def _sentence(standings: Sequence[Standing], agreement: Mapping[tuple[str, str], float]) -> str:
    best, rest = standings[0], [s for s in standings[1:] if not s.out]
    if best.out:
        return f"No method is left: of the best, {best.method}, {best.out}."
    if _family(best.method) == "baseline":
        start = f"No method beats {best.method}, which knows nothing of the model, on {_images(best.n)}"
    else:
        start = f"Use {best.method}"
    parts = [start + _lead(best, rest[0] if rest else None)]
    cheap = [s for s in rest if s.passes * _CHEAPER <= best.passes and _family(s.method) != "baseline"]
    if cheap:
        parts.append(f"{cheap[0].method} if it has to be cheap ({_cost(cheap[0])} against {_cost(best)})")
    if disputed := _disputed(standings):
        parts.append(disputed)
    return "; ".join(parts) + "."


def _lead(best: Standing, following: Standing | None) -> str:
    if following is None:
        return f": nothing else was scored, Ins-Del {best.mean:.3f} on {_images(best.n)}"
    if not following.is_significant:
        error = "" if math.isnan(following.behind_error) else f" ± {following.behind_error:.3f}"
        return (
            f": Ins-Del {best.mean:.3f}, but {_images(following.common)} cannot tell it from {following.method} "
            f"({following.behind:+.3f}{error})"
        )
    cost = ""
    if best.passes and following.passes / best.passes >= _CHEAPER:
        cost = f", {following.passes / best.passes:.0f} times cheaper"
    elif following.passes and best.passes / following.passes >= _CHEAPER:
        cost = f", {best.passes / following.passes:.0f} times more expensive"
    return (
        f": {-following.behind:+.3f} ± {following.behind_error:.3f} Ins-Del over {following.method}, the next{cost} "
        f"(n = {following.common}, p = {following.p:.2g})"
    )


def _images(count: int) -> str:
    return "1 image" if count == 1 else f"{count} images"


def _cost(standing: Standing) -> str:
    return f"{standing.seconds * 1000:.0f} ms" if standing.seconds < 1 else f"{standing.seconds:.1f} s"


def _disputed(standings: Sequence[Standing]) -> str:
    """The method about which the metrics disagree most, if they do."""
    ranks: dict[str, dict[str, float]] = {}
    for name in METRIC_OF:
        scores = _scores(standings, name)
        order = sorted(scores, key=lambda method: -scores[method])
        if len(order) >= _LEAST_COMMON:
            for place, method in enumerate(order):
                ranks.setdefault(method, {})[name] = place / (len(order) - 1)
    spreads = {m: max(own.values()) - min(own.values()) for m, own in ranks.items() if len(own) > 1}
    spreads = {m: spread for m, spread in spreads.items() if _family(m) != "baseline"}
    if not spreads or max(spreads.values()) < _DISPUTED:
        return ""
    method = max(spreads, key=lambda m: spreads[m])
    high, low = (pick(ranks[method], key=lambda name: ranks[method][name]) for pick in (min, max))
    return f"the metrics disagree about {method}: among the best by {_PLAIN[high]}, among the last by {_PLAIN[low]}"


def _family(method: str) -> str:
    try:
        return load_method(method).family
    except AhaError:
        return ""

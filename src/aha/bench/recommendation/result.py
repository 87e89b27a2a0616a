"""What a race says: one sentence, a table with intervals, how far metrics agree, and the call to paste."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aha.bench.recommendation.ranking import own_group
from aha.bench.recommendation.record import Race
from aha.bench.recommendation.sentence import lag, sentence
from aha.bench.recommendation.standings import METRIC_OF, Standing, agreement_of, standings_of
from aha.bench.reporting.examples import example_images
from aha.bench.reporting.report import REPORT
from aha.bench.run_reader import read_run
from aha.core.disk import write_atomically
from aha.errors import OutputError
from aha.metrics import ARROWS, directions
from aha.metrics.base import Direction
from aha.results.score_table import markdown_table
from aha.results.templating import templates_of

PAGE = "recommendation.html"
_PLAIN = {
    "faithfulness": "faithfulness",
    "class": "class sensitivity",
    "stability": "stability",
    "randomisation": "dependence on the weights",
    "cost": "cost",
}
_LEGEND = {
    "Ins-Del": "Insertion minus Deletion, mean over the images and its 95 % interval: how much of the prediction the "
    "top pixels of a map carry",
    "behind the best": "mean difference to the first row on common images, ± standard error; a question mark "
    "means not significant",
    "n": "images",
    "class": "rank correlation of the maps of two classes; low if maps depend on the class",
    "stability": "rank correlation of the maps of an image with and without slight noise",
    "randomisation": "rank correlation with the maps of the same network with random weights; low if maps depend on "
    "the weights",
    "seconds": "median time of one map on this machine",
    "passes": "images through the model for one map, forward and backward",
}
"""Columns of the table, and what stands in them."""
_DIRECTIONS: dict[str, Direction] = {
    "Ins-Del": "higher",
    "behind the best": "lower",
    "n": "neither",
    "seconds": "lower",
    "passes": "lower",
}  # of what is no metric's own column
_TOP = 3  # methods, and pictures, that the page shows side by side


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
        """The answer as a page, with images on which the best methods disagree."""
        return self.folder / PAGE

    @property
    def report(self) -> Path:
        """The report of the run."""
        return self.folder / REPORT

    @property
    def legend(self) -> dict[str, str]:
        """Columns as the table heads them, and what stands in each."""
        return {_head(name): meaning for name, meaning in _LEGEND.items() if name in self._columns}

    @property
    def _columns(self) -> list[str]:
        """Those of the legend that the table has."""
        return [n for n in _LEGEND if n not in METRIC_OF or any(n in s.checks for s in self.standings)]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and rows, the best method first."""
        return ["method", *map(_head, self._columns)], [
            [s.method, *(_entry(s, name) for name in self._columns)] for s in self.standings
        ]

    def agreement_text(self) -> str:
        """Pairs of metrics with the rank correlation of their verdicts."""
        return "; ".join(f"{_PLAIN[a]} and {_PLAIN[b]} {rho:+.2f}" for (a, b), rho in self.agreement.items())

    def to_markdown(self) -> str:
        """Sentence, table, agreement and call."""
        parts = [self.sentence, markdown_table(self.model, *self.table())]
        parts.append("\n".join(f"- {head}: {meaning}" for head, meaning in self.legend.items()))
        if self.agreement:
            parts.append(f"Rank agreement of the metrics: {self.agreement_text()}.")
        for what, methods in (("Ruled out", self.ruled_out), ("Not scored", self.left)):
            if methods:
                parts.append(
                    "\n".join([f"{what}:", *(f"- {why}: {', '.join(own)}" for why, own in by_reason(methods))])
                )
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


def _head(name: str) -> str:
    """A column with the better direction."""
    better = ARROWS[_DIRECTIONS.get(name) or directions()[METRIC_OF[name]]]
    return f"{name} {better}".rstrip()


def _entry(standing: Standing, name: str) -> str:
    """What stands in a column for one method; no interval and no error where one image gives none."""
    if name == "Ins-Del":
        return f"{standing.mean:.3f}" + ("" if standing.n < 2 else f" [{standing.low:.3f}, {standing.high:.3f}]")
    if name == "behind the best":
        return _behind(standing)
    if name in METRIC_OF:
        return f"{standing.checks[name]:.2f}" if name in standing.checks else "–"
    return {"n": str(standing.n), "seconds": f"{standing.seconds:.2g}", "passes": f"{standing.passes:.0f}"}[name]


def _behind(standing: Standing) -> str:
    if math.isnan(standing.behind):
        return "–"
    return f"{lag(standing)}{'' if standing.is_significant else ' ?'}"


def by_reason(methods: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Reasons, and the methods to which each applies."""
    return [(why, [m for m, own in methods.items() if own == why]) for why in dict.fromkeys(methods.values())]


def write_page(found: Recommendation) -> None:
    """Writes the answer as a page that needs nothing else, with images on which the best methods disagree."""
    run, top = read_run(found.folder), [s.method for s in found.standings if not s.out][:_TOP]
    examples = [
        case
        for group in run.groups
        if group.model == found.model
        for case in example_images(run, group, top)
        if len(top) > 1
    ]
    environment = templates_of("aha.bench.reporting")
    heads, rows = found.table()
    text = environment.get_template("recommendation.html").render(
        title=f"Which explanation to use for {found.model}",
        found=found,
        heads=heads,
        rows=rows,
        by_reason=by_reason,
        agreement=found.agreement_text(),
        examples=examples[:_TOP],
    )
    write_atomically(found.page, lambda file: file.write(text.encode()))


def recommendation(folder: str | Path) -> Recommendation:
    """What the race of a folder says so far."""
    folder = Path(folder)
    race = Race.read(folder)
    if race is None:
        raise OutputError(f"{folder} is not the folder of a race; create one with: aha recommend")
    standings = standings_of(own_group(folder, race), race)
    if not standings:
        reasons = "; ".join(f"{method}: {why}" for method, why in race.out.items())
        raise OutputError(f"{folder}: no method could be scored ({reasons or 'the budget ran out first'})")
    scored = {s.method for s in standings}
    left = {method: why for method, why in race.out.items() if method not in scored}
    return Recommendation(
        race.settings["model"],
        standings,
        left,
        agreement_of(standings),
        sentence(standings),
        folder,
        race.model_text,
        race.settings["targets"][0],
    )

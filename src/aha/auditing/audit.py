"""What an audit says: its parts with their verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from aha.auditing.checks import AuditPart, Verdict
from aha.auditing.evidence import names_of
from aha.auditing.record import JSON, PAGE, AuditRequest
from aha.auditing.thresholds import Thresholds
from aha.results.score_table import text_table

IS_NOT = (
    "This audit is not evidence of compliance with any law, standard or regulation, and no clearance for use. It "
    "measures one explanation method on one model and these images. It does not say whether the model is right, safe "
    "or fair, nor what it does on other images."
)


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        asked: what was audited.
        parts: each question with its checks and verdict.
        subject: facts of what was explained.
        thresholds, shipped: what the parts are judged by, and what is shipped.
        failures: method, metric, reason and how often.
        leads: images and classes, the best first, with their Ins-Del above random pixels.
        folder: where it lies.
    """

    asked: AuditRequest
    parts: Sequence[AuditPart]
    subject: Mapping[str, Any]
    thresholds: Thresholds
    shipped: Thresholds
    failures: Sequence[tuple[str, str, str, int]]
    leads: Sequence[tuple[str, int, float]]
    folder: Path

    @property
    def verdict(self) -> Verdict:
        """Failed if a part failed, passed if all parts that could be judged passed."""
        verdicts = [part.verdict for part in self.parts]
        if "failed" in verdicts:
            return "failed"
        return "passed" if "passed" in verdicts else "not judged"

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """By the name of the part."""
        return {part.name: part.verdict for part in self.parts}

    @property
    def passed(self) -> bool:
        """Did all parts pass that could be judged?"""
        return self.verdict == "passed"

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        named = {
            v: [name for name, own in self.verdicts.items() if own == v] for v in ("failed", "passed", "not judged")
        }
        said = {"failed": "failed", "passed": "passed", "not judged": "could not be judged"}
        parts = [f"{names_of(names)} {said[verdict]}" for verdict, names in named.items() if names]
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}."

    @property
    def call(self) -> str:
        """What repeats it."""
        asked = self.asked
        options = {name: getattr(asked, name) for name in ("against", "headroom", "target", "limit", "steps", "seed")}
        given = "".join(
            f", {name}={value!r}" for name, value in options.items() if value not in ("", 0) or name == "seed"
        )
        return f"aha.audit({asked.model_text}, {asked.data!r}, {asked.method!r}{given})"

    @property
    def page(self) -> Path:
        """The page."""
        return self.folder / PAGE

    @property
    def json(self) -> Path:
        """The same for programs."""
        return self.folder / JSON

    def part(self, name: str) -> AuditPart:
        """One part."""
        return next(part for part in self.parts if part.name == name)

    def to_text(self) -> str:
        """For a terminal."""
        rows = [
            [
                part.name,
                check.name,
                shown(check.value),
                f"{sign(check.side)} {shown(check.limit)}",
                str(check.n),
                check.verdict,
            ]
            for part in self.parts
            for check in part.checks
        ]
        caption = f"{self.asked.method} on {self.asked.model}, {self.subject['images']} images"
        table = text_table(caption, ["part", "check", "measured", "threshold", "n", "verdict"], rows)
        return f"{table}\n\n{self.sentence}"

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "verdicts": self.verdicts,
            "parts": [part.as_dict() for part in self.parts],
            "subject": dict(self.subject),
            "call": self.call,
            "asked": asdict(self.asked),
            "thresholds": asdict(self.thresholds),
            "shipped_thresholds": asdict(self.shipped),
            "failures": [list(failure) for failure in self.failures],
            "leads": [list(lead) for lead in self.leads],
            "is_not": IS_NOT,
        }


def sign(side: str) -> str:
    """At least, at most."""
    return "≥" if side == "least" else "≤"


def shown(value: float | bool | None) -> str:
    """A number for people; nothing where there is none."""
    if value is None or value is False or not math.isfinite(value):
        return "–"
    text = f"{value:.3f}"
    return text.removeprefix("-") if float(text) == 0 else text

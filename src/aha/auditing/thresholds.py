"""Thresholds of an audit: a TOML file that a team changes. The shipped one stands for all that theirs leaves out."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w

from aha.core.validation import LARGEST_FILE, Range, from_json
from aha.errors import SpecError

FILE = "thresholds.toml"
Limit = float | Literal[False]
"""A number, or False for what is shown and not judged."""
Correlation = Annotated[float, Range(-1, 1)] | Literal[False]
Share = Annotated[float, Range(0, 1)] | Literal[False]
Ratio = Annotated[float, Range(0, 100)] | Literal[False]


@dataclass(frozen=True)
class Fidelity:
    """Leads over baselines, the score that the image carries, the share of what is possible."""

    lead: Correlation
    drop: Share
    headroom: Correlation


@dataclass(frozen=True)
class RepeatabilityLimits:
    """Rank correlations with the same map made again."""

    again: Correlation
    seeds: Correlation
    batch: Correlation
    precision: Correlation


@dataclass(frozen=True)
class Reproducibility:
    """Rank correlation with another explainer's or run's maps."""

    agreement: Correlation


@dataclass(frozen=True)
class StabilityLimits:
    """Rank correlation under small changes that keep the answer."""

    answer: Correlation


@dataclass(frozen=True)
class Sensitivity:
    """Rank correlations that have to be low."""

    other_class: Correlation
    weights: Correlation


@dataclass(frozen=True)
class Shortcuts:
    """Mass where no evidence should be: relative to maps that know nothing; of text, as a share."""

    outside: Ratio
    border: Ratio
    corners: Ratio
    text: Share


@dataclass(frozen=True)
class Failures:
    """The share of measurements that failed."""

    share: Share


@dataclass(frozen=True)
class Thresholds:
    """The limits of all parts; `aha/auditing/thresholds.toml` explains each."""

    fidelity: Fidelity
    repeatability: RepeatabilityLimits
    reproducibility: Reproducibility
    stability: StabilityLimits
    sensitivity: Sensitivity
    shortcuts: Shortcuts
    failures: Failures

    def as_toml(self) -> str:
        """A file that `read_thresholds` reads, with what each entry means if it is the shipped one."""
        return shipped_text() if self == shipped_thresholds() else tomli_w.dumps(asdict(self))


def shipped_text() -> str:
    """The shipped file, with its comments."""
    return files("aha.auditing").joinpath(FILE).read_text(encoding="utf-8")


def shipped_thresholds() -> Thresholds:
    """The shipped values."""
    return from_json(Thresholds, tomllib.loads(shipped_text()))


def read_thresholds(path: str | Path | None = None) -> Thresholds:
    """The thresholds of a file, and the shipped ones where it says nothing.

    Raises:
        SpecError: It cannot be read, or has an entry that is unknown, of another type or out of its range.
    """
    if path is None:
        return shipped_thresholds()
    path = Path(path)
    try:
        content = path.read_bytes()
        if len(content) > LARGEST_FILE:
            raise SpecError(f"the thresholds {path} have more than {LARGEST_FILE:,} bytes")
        table = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise SpecError(f"cannot read the thresholds {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"the thresholds {path} are not TOML: {error}") from None
    try:
        return from_json(Thresholds, _completed(table))
    except SpecError as error:
        raise SpecError(f"thresholds {path}: {error}") from None


def _completed(table: dict[str, Any]) -> dict[str, Any]:
    """The table with what it leaves out; what is no section stays as it is, to be refused."""
    shipped: dict[str, Any] = tomllib.loads(shipped_text())
    own = {name: {**shipped[name], **section} for name, section in table.items() if _is_section(name, section)}
    return {**shipped, **table, **own}


def _is_section(name: str, value: object) -> bool:
    return name in {field.name for field in fields(Thresholds)} and isinstance(value, dict)

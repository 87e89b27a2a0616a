"""What there is to choose from, described as data: for lists, tables and other programs.

Nothing here imports torch unless a model is asked about: what the package declares is read from its sources, and names
of models from those of their libraries, unless the real things are at hand already, together with whatever a user has
added to them.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from aha.core.model_names import names_of
from aha.core.registry import Registry
from aha.core.registry_file import Kind, declared
from aha.core.spec import Spec, written

# Where the real registries are; one that was imported may hold more than the package declares.
_HOMES: dict[Kind, tuple[str, str]] = {
    "method": ("aha.methods", "METHODS"),
    "metric": ("aha.metrics", "METRICS"),
    "protocol": ("aha.metrics.protocols", "PROTOCOLS"),
    "reference": ("aha.perturb.references", "REFERENCES"),
    "score": ("aha.models.scores", "SCORES"),
    "model source": ("aha.models.loading.sources", "SOURCES"),
}
# Sources that work only with an optional dependency, by the name of the extra.
_EXTRAS = {"clip": ["hf"], "demo": ["demo"], "hf": ["hf"]}


@dataclass(frozen=True)
class Entry:
    """One thing that can be named.

    Attributes:
        name: as written in commands and calls.
        family: kind of method, source of a model, or what a score gives.
        needs: capabilities that a method asks of the model, or extras that a model asks of the installation.
        summary: one line.
        details: further properties, by name.
    """

    name: str
    family: str
    needs: list[str] = field(default_factory=list)
    summary: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The entry as one flat JSON object."""
        values = asdict(self)
        details: dict[str, Any] = values.pop("details")
        return values | details


def models(source: str | None = None) -> list[Entry]:
    """All models, or those of one source. Models of transformers have no list: they are named by repository."""
    if source is not None:
        _ = _registry("model source")[source]  # explains itself if there is none
    families = list(_registry("model source")) if source is None else [source]
    return [
        Entry(f"{family}:{name}", family, _EXTRAS.get(family, []))
        for family in families
        for name in _model_names(family)
    ]


def _model_names(source: str) -> list[str]:
    """The models of a source: as its library has them, if that is at hand, else as its files name them."""
    read = None if _HOMES["model source"][0] in sys.modules else names_of(source)
    if read is not None:
        return read
    from aha.models import list_sources

    return list_sources().get(source, [])  # a source that a user has added has no list


def methods(model: str | None = None) -> list[Entry]:
    """All methods, or those that work on a model; its weights do not matter for that and are not fetched."""
    if model is None:
        return _all("method", _describe_method)
    from aha.methods import METHODS, list_methods
    from aha.models import load_model

    return [_describe_method(METHODS[name]) for name in list_methods(load_model(model, pretrained=False))]


def metrics() -> list[Entry]:
    """All metrics."""

    def described(cls: Any) -> Entry:
        details = {"citation": cls.citation, "columns": dict(cls.columns), **_parameters(cls)}
        return Entry(cls.name, "metric", sorted(cls.needs), first_line(cls), details)

    return _all("metric", described)


def protocols() -> list[Entry]:
    """All named protocols, with every choice in full."""

    def described(protocol: Any) -> Entry:
        needs = sorted({need for metric in protocol.metrics for need in metric.needs})
        in_full = {"metrics": [metric.in_full() for metric in protocol.metrics]}
        return Entry(protocol.name, "protocol", needs, protocol.note, in_full)

    return _all("protocol", described)


def references() -> list[Entry]:
    """All references: what stands in for removed pixels."""
    return _all("reference", lambda cls: Entry(cls.name, "reference", [], first_line(cls), _parameters(cls)))


def scores() -> list[Entry]:
    """All scores."""

    def described(score: Any) -> Entry:
        gives = "probability" if score.is_probability else "value"
        details = {"differentiated": score.raw or score.name}
        return Entry(score.name, gives, [], first_line(score.function), details)

    return _all("score", described)


def _all(kind: Kind, described: Callable[[Any], Entry]) -> list[Entry]:
    known = _registry(kind)
    return [described(known[name]) for name in known]


def matches(name: str, pattern: str | None) -> bool:
    """Whether the pattern is part of the name; with wildcards, whether it fits the name, with or without its source."""
    if pattern is None:
        return True
    name, pattern = name.lower(), pattern.lower()
    if not set(pattern) & set("*?["):
        return pattern in name
    return fnmatchcase(name, pattern) or fnmatchcase(name.partition(":")[2], pattern)


def first_line(thing: object) -> str:
    """The first line of a docstring."""
    return next(iter((thing.__doc__ or "").strip().splitlines()), "")


def _registry(kind: Kind) -> Registry[Any]:
    module, name = _HOMES[kind]
    return getattr(sys.modules[module], name) if module in sys.modules else declared(kind)


@cache
def _noted(file: str) -> dict[str, dict[str, str]]:
    """A table of the package about its methods, by method."""
    with (Path(__file__).parent / "methods" / file).open(encoding="utf-8", newline="") as content:
        return {row["method"]: row for row in csv.DictReader(content)}


def cost_of(name: str) -> str:
    """Images that pass forwards, and backwards, through the model for one map, as counted by `method_cost.py`."""
    row = _noted("cost.csv").get(name)
    if row is None:
        return ""
    forward, backward = (f"{int(row[way]):,}".replace(",", "\u202f") for way in ("forward", "backward"))
    return f"{forward} + {backward}" if backward != "0" else forward


def _describe_method(cls: Any) -> Entry:
    idea = _noted("ideas.csv").get(cls.name, {}).get("idea")
    required = [parameter.name for parameter in fields(cls) if _is_required(parameter)]
    details = {"citation": cls.citation, "cost": cost_of(cls.name), "required": required, **_parameters(cls)}
    return Entry(cls.name, cls.family, sorted(cls.required), idea or first_line(cls), details)


def _parameters(cls: Any) -> dict[str, Any]:
    """The parameters with their defaults, and how they are typed."""
    return {"parameters": {own.name: _default(own) for own in fields(cls)}, "usage": _usage(fields(cls))}


def _usage(parameters: Iterable[Field[Any]]) -> str:
    """All parameters with their defaults, as they are typed between the parentheses of a text."""
    return ", ".join(p.name if _is_required(p) else f"{p.name}={written(_value(p))}" for p in parameters)


def _is_required(parameter: Field[Any]) -> bool:
    return parameter.default is MISSING and parameter.default_factory is MISSING


def _value(parameter: Field[Any]) -> Any:
    return parameter.default if parameter.default_factory is MISSING else parameter.default_factory()


def _default(parameter: Field[Any]) -> Any:
    """The default as JSON can hold it; required parameters have none."""
    value = _value(parameter)
    if value is MISSING:
        return None
    if isinstance(value, tuple):
        return [str(element) if isinstance(element, Spec) else element for element in value]
    return str(value) if isinstance(value, Spec) else value

"""What there is to choose from, described as data: for lists, tables and other programs."""

from __future__ import annotations

from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any

from aha.core.spec import Spec
from aha.methods import METHODS, list_methods
from aha.metrics import METRICS
from aha.metrics.protocols import PROTOCOLS
from aha.models import list_sources, load_model
from aha.models.scores import SCORES
from aha.models.sources import SOURCES

# Sources that work only with an optional dependency, by the name of the extra.
_EXTRAS = {"demo": ["demo"], "hf": ["hf"]}


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
        _ = SOURCES[source]  # explains itself if there is none
    return [
        Entry(f"{family}:{name}", family, _EXTRAS.get(family, []))
        for family, names in list_sources().items()
        for name in names
        if source in (None, family)
    ]


def methods(model: str | None = None) -> list[Entry]:
    """All methods, or those that work on a model; its weights do not matter for that and are not fetched."""
    names = list_methods(None if model is None else load_model(model, pretrained=False))
    return [_describe_method(name) for name in names]


def metrics() -> list[Entry]:
    """All metrics."""
    found = [METRICS[name] for name in METRICS]
    return [
        Entry(
            cls.name,
            "metric",
            sorted(cls.needs),
            summary=first_line(cls),
            details={
                "citation": cls.citation,
                "columns": dict(cls.columns),
                "parameters": {parameter.name: _default(parameter) for parameter in fields(cls)},
            },
        )
        for cls in found
    ]


def protocols() -> list[Entry]:
    """All named protocols, with every choice in full."""
    found = [PROTOCOLS[name] for name in PROTOCOLS]
    return [
        Entry(p.name, "protocol", sorted(p.needs), p.note, {"metrics": [m.in_full() for m in p.metrics]}) for p in found
    ]


def scores() -> list[Entry]:
    """All scores."""
    found = [SCORES[name] for name in SCORES]
    return [
        Entry(
            score.name,
            "probability" if score.is_probability else "value",
            summary=first_line(score.function),
            details={"differentiated": score.differentiated().name},
        )
        for score in found
    ]


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


def _describe_method(name: str) -> Entry:
    cls = METHODS[name]
    parameters = fields(cls)
    return Entry(
        name,
        cls.family,
        sorted(cls.required),
        summary=first_line(cls),
        details={
            "citation": cls.citation,
            "parameters": {parameter.name: _default(parameter) for parameter in parameters},
            "required": [parameter.name for parameter in parameters if _is_required(parameter)],
        },
    )


def _is_required(parameter: Field[Any]) -> bool:
    return parameter.default is MISSING and parameter.default_factory is MISSING


def _default(parameter: Field[Any]) -> Any:
    """The default as JSON can hold it; required parameters have none."""
    value = parameter.default if parameter.default_factory is MISSING else parameter.default_factory()
    if value is MISSING:
        return None
    if isinstance(value, tuple):
        return [str(element) if isinstance(element, Spec) else element for element in value]
    return str(value) if isinstance(value, Spec) else value

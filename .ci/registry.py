"""Writes `src/aha/core/registry.json`, what can be named in a spec, from the real registries: `make registry`."""

from __future__ import annotations

import json
import types
from dataclasses import MISSING, Field, fields
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from aha.catalogue import first_line
from aha.core import validation
from aha.core.registry_file import FILE
from aha.core.spec import Spec, written
from aha.core.validation import FILLED, Range, hints_of
from aha.methods import METHODS, Method
from aha.metrics import METRICS, Metric
from aha.metrics.protocols import PROTOCOLS
from aha.models.loading.sources import SOURCES
from aha.models.scores import SCORES
from aha.perturb.partitions import PARTITIONS, Partition
from aha.perturb.references import REFERENCES, Reference

_NAMED = ("PositiveInt", "NonNegativeInt", "PositiveFloat", "NonNegativeFloat", "Fraction")


def registry_text() -> str:
    """The file: a line for each thing."""
    kinds = ",\n".join(f"{json.dumps(kind)}: {{\n{_lines(things)}\n}}" for kind, things in _kinds().items())
    return f"{{\n{kinds}\n}}\n"


def _lines(things: dict[str, Any]) -> str:
    shown = {name: json.dumps(about, ensure_ascii=False) for name, about in things.items()}
    return ",\n".join(f"  {json.dumps(name)}: {about}" for name, about in shown.items())


def _kinds() -> dict[str, dict[str, Any]]:
    return {
        "method": {name: _spec(METHODS[name], "family", "required", "citation") for name in METHODS},
        "metric": {name: _spec(METRICS[name], "columns", "needs", "citation") for name in METRICS},
        "reference": {name: _spec(REFERENCES[name]) for name in REFERENCES},
        "partition": {name: _spec(PARTITIONS[name]) for name in PARTITIONS},
        "protocol": {
            name: {"note": PROTOCOLS[name].note, "metrics": [chosen.in_full() for chosen in PROTOCOLS[name].metrics]}
            for name in PROTOCOLS
        },
        "score": {
            name: {
                "summary": first_line(SCORES[name].function),
                "is_probability": SCORES[name].is_probability,
                "raw": SCORES[name].raw,
            }
            for name in SCORES
        },
        "model source": {name: {} for name in SOURCES},
    }


def _spec(cls: type[Spec], *about: str) -> dict[str, Any]:
    """A class: what lists say about it, and its parameters."""
    facts = {name: getattr(cls, name) for name in about}
    return {
        "summary": first_line(cls),
        "about": {name: sorted(fact) if isinstance(fact, frozenset) else fact for name, fact in facts.items()},
        "parameters": {each.name: _parameter(cls, each) for each in fields(cls)},
    }


def _parameter(cls: type[Spec], parameter: Field[Any]) -> list[str]:
    """Its type, and its default if it has one."""
    kind = _annotation(hints_of(cls)[parameter.name])
    if parameter.default_factory is not MISSING:
        return [kind, written(parameter.default_factory())]
    return [kind] if parameter.default is MISSING else [kind, written(parameter.default)]


def _annotation(hint: Any) -> str:
    """A type as it is written in `aha.core.registry_file`."""
    if name := next((name for name in _NAMED if getattr(validation, name) == hint), None):
        return name
    origin, options = get_origin(hint), get_args(hint)
    if origin is Annotated:
        stated = [option for option in options[1:] if isinstance(option, Range) or option == FILLED]
        return f"Annotated[{', '.join([_annotation(options[0]), *map(repr, stated)])}]"
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, options))}]"
    if origin in (Union, types.UnionType):
        return " | ".join(map(_annotation, options))
    if origin is tuple:
        return f"tuple[{', '.join('...' if option is Ellipsis else _annotation(option) for option in options)}]"
    if hint in (None, type(None)):
        return "None"
    for base in (Method, Metric, Reference, Partition):
        if issubclass(hint, base):
            return base.__name__
    return hint.__name__ if hint in (int, float, str, bool) else "object"


if __name__ == "__main__":
    FILE.write_text(registry_text(), encoding="utf-8")

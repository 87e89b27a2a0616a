"""What can be named in a spec, without importing torch: `registry.json`, as classes that check their parameters.

Importing torch takes seconds, and neither a list of methods nor a misspelt parameter needs it. `make registry` writes
the file from the real registries, and a test fails where it is not what they hold. What a class checks besides the
types and ranges of its parameters is left to the real one.
"""

from __future__ import annotations

import ast
import json
from dataclasses import Field, dataclass, field, make_dataclass
from functools import cache, partial
from math import inf  # noqa: F401  (named in types of the file, as are the others)
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal  # noqa: F401

from aha.core.model_names import split_spec
from aha.core.registry import Registry
from aha.core.spec import Spec, parse, value_of
from aha.core.validation import (  # noqa: F401
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
)

Kind = Literal["method", "metric", "reference", "partition", "protocol", "score", "model source"]
FILE = Path(__file__).with_name("registry.json")
# What other tools and papers call some methods.
SYNONYMS = {
    "ig": "integrated_gradients",
    "saliency": "gradient",
    "vanillagradient": "gradient",
    "ixg": "input_x_gradient",
    "gradxinput": "input_x_gradient",
    "gradientxinput": "input_x_gradient",
    "layergradcam": "grad_cam",
    "gradcamplusplus": "grad_cam_pp",
    "attentionrollout": "rollout",
    "shapleyvaluesampling": "shapley_sampling",
}


@dataclass(frozen=True)
class Method(Spec):
    """Any method, as a type of parameters; so are the next three."""


@dataclass(frozen=True)
class Metric(Spec):
    """Any metric."""


@dataclass(frozen=True)
class Reference(Spec):
    """Any reference."""


@dataclass(frozen=True)
class Partition(Spec):
    """Any partition."""


@dataclass(frozen=True)
class Protocol:
    """A protocol, with its metrics as texts."""

    name: str
    note: str
    texts: tuple[str, ...]

    @property
    def metrics(self) -> list[Any]:
        """They themselves."""
        return [parse(text, declared("metric"), declared("reference")) for text in self.texts]


_BASES: dict[str, type[Spec]] = {"method": Method, "metric": Metric, "reference": Reference, "partition": Partition}


@cache
def declared(kind: Kind) -> Registry[Any]:
    """All that the package registers as this kind, under their names."""
    registry: Registry[Any] = Registry(kind, SYNONYMS if kind == "method" else None)
    for name, entry in _content()[kind].items():
        registry.register(name)(_outline(kind, name, entry))
    return registry


def check_method(text: str) -> None:
    """Refuses a method's text as `load_method` would; what needs more than its declaration passes."""
    parse(text, declared("method"), declared("method"), declared("partition"), declared("reference"))


def check_metric(text: str) -> None:
    """Refuses a text that names neither a protocol nor a metric; what needs more than its declaration passes."""
    if text not in declared("protocol"):  # whose names need not be those of metrics
        parse(text, declared("metric"), declared("reference"))


def check_score(name: str) -> None:
    """Refuses a score that does not exist."""
    declared("score")[name]


def check_model(text: str) -> None:
    """Refuses a model's text that does not begin with a source of models."""
    split_spec(text, declared("model source"))


@cache
def _content() -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def _outline(kind: Kind, name: str, entry: dict[str, Any]) -> Any:
    """A thing as far as lists and checks of texts ask about it."""
    if kind == "protocol":
        return Protocol(name, entry["note"], tuple(entry["metrics"]))
    if kind in ("score", "model source"):
        return SimpleNamespace(name=name, function=SimpleNamespace(__doc__=entry.get("summary")), **entry)
    about = {"name": name, "__doc__": entry["summary"], "__module__": __name__, **entry["about"]}
    parameters = [(own, *_typed(*stated)) for own, stated in entry["parameters"].items()]
    return make_dataclass(name, parameters, bases=(_BASES[kind],), namespace=about, frozen=True)


def _typed(kind: str, default: str | None = None) -> tuple[str] | tuple[str, Field[Any]]:
    """The type of a parameter, and how its default comes about, if it has one."""
    return (kind,) if default is None else (kind, field(default_factory=partial(_value, default)))


@cache
def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except ValueError:  # a spec
        return value_of(text, declared("reference"), declared("partition"), declared("method"))

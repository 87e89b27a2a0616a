"""Dataclasses from JSON, strictly: every entry has the type and range of its field, or there is one line that says so.

Types are those of the annotations: bool, int, float, str, None, Literal, tuples, lists, mappings with text keys, other
dataclasses, and unions of these. Numbers are finite; a bool is no number and a number no bool. What is stated for the
record alone, as `Mapping[str, Any]`, may be any JSON. Texts and lists have a longest length, so that nothing is made in
sizes that nobody means.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from aha.errors import SpecError

D = TypeVar("D")

LARGEST_FILE = 2**20
LONGEST_TEXT, LONGEST_LIST = 4096, 4096
LARGEST_NUMBER = 2**53  # beyond it, not every whole number is a float


class Range(NamedTuple):
    """The values that a number, or each number of a list, may have, both ends included."""

    low: float = -math.inf
    high: float = math.inf


Limits = Mapping[str, Range]
"""Ranges by the name of an entry; `inner.name` for one of a dataclass inside."""


def read_json(path: Path, most: int = LARGEST_FILE) -> Any:
    """The value of a JSON file of bounded size.

    Raises:
        SpecError: It is larger, or not JSON.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise SpecError(f"{path.name} has more than {most:,} bytes")
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_no_repeats)
    except SpecError as error:
        raise SpecError(f"{path.name}: {error}") from None
    except (ValueError, RecursionError):
        raise SpecError(f"{path.name} is not JSON") from None


def from_json(kind: type[D], value: object, limits: Limits | None = None) -> D:
    """A dataclass from the value of a JSON object.

    Raises:
        SpecError: An entry is unknown, missing, of another type, or out of its range.
    """
    return _dataclass(kind, value, "", limits or {})


def _dataclass(kind: type[D], value: object, place: str, limits: Limits) -> D:
    if not isinstance(value, dict):
        raise SpecError(f"{place or 'it'} must be an object with entries, not {_shown(value)}")
    hints = get_type_hints(kind)
    own = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    unknown = [name for name in value if name not in own]
    if unknown:
        raise SpecError(f"unknown entry {_joined(place, _shown(unknown[0]))}; known: {', '.join(own)}")
    needed = [name for name, f in own.items() if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in needed if name not in value]
    if missing:
        raise SpecError(f"the entry {_joined(place, missing[0])} is missing")
    found = {name: _checked(hints[name], entry, _joined(place, name), limits) for name, entry in value.items()}
    try:
        return kind(**found)
    except (TypeError, ValueError, ArithmeticError) as error:  # of checks of its own
        raise SpecError(f"{place or 'it'} is not possible: {error}") from None


def _checked(wanted: Any, value: object, place: str, limits: Limits) -> Any:
    """The value as the wanted type, or an error that names the place."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return _one_of(inner, value, place, limits)
    if origin is Literal:
        if not any(value == choice and type(value) is type(choice) for choice in inner):
            raise SpecError(f"{place} must be one of {', '.join(map(str, inner))}, not {_shown(value)}")
        return value
    if origin in (tuple, list):
        return _sequence(origin, inner, value, place, limits)
    if wanted is Any or origin in (dict, Mapping):
        return value if wanted is Any else _mapping(inner, value, place, limits)
    if is_dataclass(wanted):
        return _dataclass(wanted, value, place, limits)  # type: ignore[arg-type]
    return _plain(wanted, value, place, limits)


def _one_of(choices: tuple[Any, ...], value: object, place: str, limits: Limits) -> Any:
    errors = []
    for choice in choices:
        try:
            return _checked(choice, value, place, limits)
        except SpecError as error:
            errors.append(error)
    raise errors[0]


def _sequence(origin: type, inner: tuple[Any, ...], value: object, place: str, limits: Limits) -> Any:
    if not isinstance(value, list):
        raise SpecError(f"{place} must be a list, not {_shown(value)}")
    if len(value) > LONGEST_LIST:
        raise SpecError(f"{place} has {len(value):,} entries; at most {LONGEST_LIST:,} are taken")
    if origin is tuple and Ellipsis not in inner:
        if len(value) != len(inner):
            raise SpecError(f"{place} must have {len(inner)} entries, not {len(value)}")
        return tuple(_checked(kind, entry, place, limits) for kind, entry in zip(inner, value, strict=True))
    return origin(_checked(inner[0], entry, place, limits) for entry in value)


def _mapping(inner: tuple[Any, ...], value: object, place: str, limits: Limits) -> Any:
    if not isinstance(value, dict):
        raise SpecError(f"{place} must be an object with entries, not {_shown(value)}")
    return {name: _checked(inner[1], entry, _joined(place, name), limits) for name, entry in value.items()}


def _plain(wanted: type, value: object, place: str, limits: Limits) -> Any:
    if wanted is float and type(value) is int:
        value = float(value) if abs(value) <= LARGEST_NUMBER else math.inf
    if type(value) is not wanted and not (wanted is type(None) and value is None):
        raise SpecError(f"{place} must be {_NAMES.get(wanted, wanted.__name__)}, not {_shown(value)}")
    if isinstance(value, str) and (len(value) > LONGEST_TEXT or "\0" in value):
        raise SpecError(f"{place} is a text of more than {LONGEST_TEXT:,} letters, or one with a NUL")
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = limits.get(place, Range(-LARGEST_NUMBER, LARGEST_NUMBER))
        if not low <= value <= high or not math.isfinite(value):
            raise SpecError(f"{place} must lie between {low:g} and {high:g}, not at {_shown(value)}")
    return value


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", type(None): "null"}


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _shown(value: object) -> str:
    text = json.dumps(value, default=str) if not isinstance(value, str) else value
    return text if len(text) <= 40 else f"{text[:37]}..."


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise SpecError("an entry occurs twice")
    return found

"""Dataclasses from JSON, strictly: every entry has the type and range of its field, or there is one line that says so.

Types are those of `aha.core.checks`, mappings with text keys, and other dataclasses. What is stated for the record
alone, as `Mapping[str, Any]`, may be any JSON. Texts and lists have a longest length, so that nothing is made in sizes
that nobody means.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from aha.core.checks import JSON, SAFE_NUMBERS, Range, checked
from aha.errors import SpecError

D = TypeVar("D")

LARGEST_FILE = 2**20
LONGEST_TEXT, LONGEST_LIST = 4096, 4096

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
        raise SpecError(f"{place or 'it'} must be an object with entries, not {JSON.show(value)}")
    hints = get_type_hints(kind)
    own = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    unknown = [name for name in value if name not in own]
    if unknown:
        raise SpecError(f"unknown entry {_joined(place, JSON.show(unknown[0]))}; known: {', '.join(own)}")
    needed = [name for name, f in own.items() if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in needed if name not in value]
    if missing:
        raise SpecError(f"the entry {_joined(place, missing[0])} is missing")
    found = {name: _entry(hints[name], entry, _joined(place, name), limits) for name, entry in value.items()}
    try:
        return kind(**found)
    except (TypeError, ValueError, ArithmeticError) as error:  # of checks of its own
        raise SpecError(f"{place or 'it'} cannot be used: {error}") from None


def _entry(wanted: Any, value: object, place: str, limits: Limits) -> Any:
    """The value as the wanted type, or an error that names the place."""
    if is_dataclass(wanted):
        return _dataclass(wanted, value, place, limits)  # type: ignore[arg-type]
    if wanted is Any:
        return value
    if get_origin(wanted) in (dict, Mapping):
        return _mapping(get_args(wanted)[1], value, place, limits)
    if isinstance(value, list) and len(value) > LONGEST_LIST:
        raise SpecError(f"{place} has {len(value):,} entries; at most {LONGEST_LIST:,} are allowed")
    if isinstance(value, str) and (len(value) > LONGEST_TEXT or "\0" in value):
        raise SpecError(f"{place} is a text of more than {LONGEST_TEXT:,} letters, or one with a NUL")
    return checked(value, wanted, place, limits.get(place, SAFE_NUMBERS), JSON)


def _mapping(inner: Any, value: object, place: str, limits: Limits) -> Any:
    if not isinstance(value, dict):
        raise SpecError(f"{place} must be an object with entries, not {JSON.show(value)}")
    return {name: _entry(inner, entry, _joined(place, name), limits) for name, entry in value.items()}


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise SpecError("an entry occurs twice")
    return found

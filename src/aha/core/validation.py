"""The one check of settings: a value fits the annotation of its field, or there is one line that says what it must be.

Specs, settings of a training, plans, options of models, requests to the explorer and configs of explainers all come
through here, and all say `X must be ..., not ...`. Types are those of annotations: bool, int, float, str, None,
Literal, tuples, lists, unions of these, and any class; `Annotated[int, Range(1)]` and the like state ranges. Numbers
are finite; a bool is no number and a number no bool; whole numbers pass for numbers, lists for tuples.

`from_json` makes dataclasses of JSON, with entries that are mappings with text keys, or other dataclasses, as well.
What is stated for the record alone, as `Mapping[str, Any]`, may be any JSON. Texts and lists have a longest length, so
that nothing is made in sizes that nobody means.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from aha.errors import SpecError

D = TypeVar("D")

LARGEST_NUMBER = 2**53  # beyond it, not every whole number is a float
LARGEST_FILE = 2**20
LONGEST_TEXT, LONGEST_LIST = 4096, 4096  # in JSON
_LONGEST = 40  # letters of a value that are shown


class Range(NamedTuple):
    """The values that a number, or each number of a list, may have.

    Attributes:
        low, high: the ends, included.
        above, below: the ends are not included.
        note: what else is to be said of it.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    below: bool = False
    note: str = ""

    def __repr__(self) -> str:
        """Without what is as by default, for `registry.json`."""
        defaults = self._field_defaults
        stated = [f"{name}={value!r}" for name, value in self._asdict().items() if value != defaults[name]]
        return f"Range({', '.join(stated)})"

    def __str__(self) -> str:
        has_low, has_high = (abs(end) < LARGEST_NUMBER for end in (self.low, self.high))
        if has_low and has_high and not (self.above or self.below):
            return f" from {_number(self.low)} to {_number(self.high)}"
        low = f" {'above' if self.above else 'of at least'} {_number(self.low)}" if has_low else ""
        high = f" {'below' if self.below else 'of at most'} {_number(self.high)}" if has_high else ""
        return (f"{low} and{high}" if low and high else low + high) + self.note

    def __contains__(self, value: object) -> bool:
        assert isinstance(value, int | float)
        is_high = value > self.low if self.above else value >= self.low
        return is_high and (value < self.high if self.below else value <= self.high)


PositiveInt = Annotated[int, Range(1, LARGEST_NUMBER)]
NonNegativeInt = Annotated[int, Range(0, LARGEST_NUMBER)]
PositiveFloat = Annotated[float, Range(0, LARGEST_NUMBER, above=True)]
NonNegativeFloat = Annotated[float, Range(0, LARGEST_NUMBER)]
Fraction = Annotated[float, Range(0, 1, above=True, below=True)]
FILLED = "at least one"
"""Stated beside the type of a list that may not be empty."""
EVERY_NUMBER = Range()
SAFE_NUMBERS = Range(-LARGEST_NUMBER, LARGEST_NUMBER)
"""Whole numbers among them are what they are also as floats."""


class Notation(NamedTuple):
    """How values are written where a setting comes from."""

    show: Callable[[Any], str]
    true_or_false: str
    nothing: str


def _show_json(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


PYTHON = Notation(repr, "True or False", "None")
JSON = Notation(_show_json, "true or false", "null")
PLAIN = Notation(repr, "true or false", "")  # of TOML and command lines, which have no word for nothing


def checked(value: Any, wanted: Any, place: str, numbers: Range = EVERY_NUMBER, notation: Notation = PYTHON) -> Any:
    """`value` as the annotation `wanted` has it, with its numbers in the range stated there, else in this one.

    Raises:
        SpecError: It is something else; `place` is what the line calls it.
    """
    fitted = _fit(value, wanted, numbers)
    if fitted is _MISFIT:
        raise SpecError(f"{place} must be {described(wanted, numbers, notation)}, not {notation.show(value)}")
    return fitted


_MISFIT = object()


def _fit(value: Any, wanted: Any, numbers: Range) -> Any:
    """`value` as the annotation has it, or _MISFIT."""
    origin, options = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        fitted = _fit(value, options[0], _range_of(options, numbers))
        return _MISFIT if FILLED in options and not fitted else fitted
    if origin is Literal:
        return value if any(type(value) is type(o) and value == o for o in options) else _MISFIT
    if origin in (Union, types.UnionType):
        fitted = (_fit(value, option, numbers) for option in options)
        return next((f for f in fitted if f is not _MISFIT), _MISFIT)
    if origin in (tuple, list):
        return _fit_sequence(value, origin, options, numbers)
    if wanted in (int, float):
        return _fit_number(value, wanted, numbers)
    if wanted is None or wanted is type(None):
        return None if value is None else _MISFIT
    return value if isinstance(value, wanted) else _MISFIT


def _range_of(options: tuple[Any, ...], numbers: Range) -> Range:
    """The range that an annotation states."""
    return next((option for option in options if isinstance(option, Range)), numbers)


def _fit_number(value: Any, wanted: type, numbers: Range) -> Any:
    """A number of the type; infinity and NaN have no literal, so that their text would not give them back."""
    if isinstance(value, bool) or not isinstance(value, int if wanted is int else int | float):
        return _MISFIT
    try:
        found = wanted(value)
    except OverflowError:  # a whole number beyond all floats
        return _MISFIT
    is_finite = wanted is int or math.isfinite(found)
    return found if is_finite and found in numbers else _MISFIT


def _fit_sequence(value: Any, origin: type, options: tuple[Any, ...], numbers: Range) -> Any:
    if not isinstance(value, tuple | list):
        return _MISFIT
    if origin is list or Ellipsis in options:
        options = (options[0],) * len(value)
    if len(options) != len(value):
        return _MISFIT
    fitted = [_fit(v, o, numbers) for v, o in zip(value, options, strict=True)]
    return _MISFIT if any(f is _MISFIT for f in fitted) else origin(fitted)


def described(wanted: Any, numbers: Range = EVERY_NUMBER, notation: Notation = PYTHON) -> str:
    """An annotation in words: `a list of whole numbers from 1 to 9`."""
    origin, options = get_origin(wanted), get_args(wanted)
    if origin is Annotated:
        kept = described(options[0], _range_of(options, numbers), notation)
        return f"{kept}, {FILLED}" if FILLED in options else kept
    if origin is Literal:
        return "one of " * (len(options) > 1) + ", ".join(notation.show(option) for option in options)
    if origin in (Union, types.UnionType):
        words = (described(option, numbers, notation) for option in options)
        return " or ".join(word for word in words if word)
    if origin in (tuple, list):
        return _described_sequence(options, numbers, notation)
    if wanted is None or wanted is type(None):
        return notation.nothing
    if wanted in (int, float):
        return f"a {_noun(wanted)}{numbers}"
    return {str: "a text", bool: notation.true_or_false, dict: "an object"}.get(wanted) or f"a {_noun(wanted)}"


def _described_sequence(options: tuple[Any, ...], numbers: Range, notation: Notation) -> str:
    kinds = [option for option in options if option is not Ellipsis]
    if len(set(kinds)) == 1 and get_origin(kinds[0]) is Annotated:
        inner = get_args(kinds[0])
        kinds, numbers = [inner[0]] * len(kinds), _range_of(inner, numbers)
    count = "" if Ellipsis in options or len(kinds) < 2 else f"{len(kinds)} "
    if len(set(kinds)) == 1 and isinstance(kinds[0], type):
        return f"a list of {count}{_noun(kinds[0])}s{numbers if kinds[0] in (int, float) else ''}"
    each = " and ".join(described(kind, numbers, notation) for kind in kinds)
    return f"a list of {each}" if count else f"a list in which each is {each}"


def _noun(kind: type) -> str:
    return {int: "whole number", float: "number", str: "text"}.get(kind) or kind.__name__.lower()


def _number(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:g}"


def hints_of(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields with their ranges; to read them takes longer than all the rest."""
    if kind not in _HINTS:
        _HINTS[kind] = get_type_hints(kind, include_extras=True)
    return _HINTS[kind]


_HINTS: dict[type, dict[str, Any]] = {}


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


def from_json(kind: type[D], value: object) -> D:
    """A dataclass from the value of a JSON object.

    Raises:
        SpecError: An entry is unknown, missing, of another type, or out of its range.
    """
    return _dataclass(kind, value, "")


def _dataclass(kind: type[D], value: object, place: str) -> D:
    if not isinstance(value, dict):
        raise SpecError(f"{place or 'it'} must be an object with entries, not {JSON.show(value)}")
    hints = hints_of(kind)
    own = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    unknown = [name for name in value if name not in own]
    if unknown:
        raise SpecError(f"unknown entry {_joined(place, JSON.show(unknown[0]))}; known: {', '.join(own)}")
    needed = [name for name, f in own.items() if f.default is MISSING and f.default_factory is MISSING]
    missing = [name for name in needed if name not in value]
    if missing:
        raise SpecError(f"the entry {_joined(place, missing[0])} is missing")
    found = {name: _entry(hints[name], entry, _joined(place, name)) for name, entry in value.items()}
    try:
        return kind(**found)
    except (TypeError, ValueError, ArithmeticError) as error:  # of checks of its own
        raise SpecError(f"{place or 'it'} cannot be used: {error}") from None


def _entry(wanted: Any, value: object, place: str) -> Any:
    """The value as the wanted type, or an error that names the place."""
    if is_dataclass(wanted):
        return _dataclass(wanted, value, place)  # type: ignore[arg-type]
    if wanted is Any:
        return value
    if get_origin(wanted) in (dict, Mapping):
        return _mapping(get_args(wanted)[1], value, place)
    if isinstance(value, list) and len(value) > LONGEST_LIST:
        raise SpecError(f"{place} has {len(value):,} entries; at most {LONGEST_LIST:,} are allowed")
    if isinstance(value, str) and (len(value) > LONGEST_TEXT or "\0" in value):
        raise SpecError(f"{place} is a text of more than {LONGEST_TEXT:,} letters, or one with a NUL")
    return checked(value, wanted, place, SAFE_NUMBERS, JSON)


def _mapping(inner: Any, value: object, place: str) -> Any:
    if not isinstance(value, dict):
        raise SpecError(f"{place} must be an object with entries, not {JSON.show(value)}")
    return {name: _entry(inner, entry, _joined(place, name)) for name, entry in value.items()}


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise SpecError("an entry occurs twice")
    return found

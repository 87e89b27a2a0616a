"""The one check of settings: a value fits the annotation of its field, or there is one line that says what it must be.

Specs, settings of a training, plans, requests to the explorer and configs of explainers all come through here, and all
say `X must be ..., not ...`. Types are those of annotations: bool, int, float, str, None, Literal, tuples, lists,
unions of these, and any class. Numbers are finite; a bool is no number and a number no bool; whole numbers pass for
numbers, lists for tuples.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from aha.errors import SpecError

LARGEST_NUMBER = 2**53  # beyond it, not every whole number is a float
_LONGEST = 40  # letters of a value that are shown


class Range(NamedTuple):
    """The values that a number, or each number of a list, may have, both ends included."""

    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        has_low, has_high = (abs(end) < LARGEST_NUMBER for end in self)
        if has_low and has_high:
            return f" from {_number(self.low)} to {_number(self.high)}"
        return (
            f" of at least {_number(self.low)}" if has_low else f" of at most {_number(self.high)}" if has_high else ""
        )


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


def checked(value: Any, wanted: Any, place: str, numbers: Range = EVERY_NUMBER, notation: Notation = PYTHON) -> Any:
    """`value` as the annotation `wanted` has it, with its numbers in a range.

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


def _fit_number(value: Any, wanted: type, numbers: Range) -> Any:
    """A number of the type; infinity and NaN have no literal, so that their text would not give them back."""
    if isinstance(value, bool) or not isinstance(value, int if wanted is int else int | float):
        return _MISFIT
    try:
        found = wanted(value)
    except OverflowError:  # a whole number beyond all floats
        return _MISFIT
    is_finite = wanted is int or math.isfinite(found)
    return found if is_finite and numbers.low <= found <= numbers.high else _MISFIT


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
    if origin is Literal:
        return "one of " + ", ".join(notation.show(option) for option in options)
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
    count = "" if Ellipsis in options or len(kinds) < 2 else f"{len(kinds)} "
    if len(set(kinds)) == 1 and isinstance(kinds[0], type):
        return f"a list of {count}{_noun(kinds[0])}s{numbers if kinds[0] in (int, float) else ''}"
    each = " and ".join(described(kind, numbers, notation) for kind in kinds)
    return f"a list of {each}" if count else f"a list in which each is {each}"


def _noun(kind: type) -> str:
    return {int: "whole number", float: "number", str: "text"}.get(kind) or kind.__name__.lower()


def _number(value: float) -> str:
    return f"{value:.0f}" if float(value).is_integer() else f"{value:g}"

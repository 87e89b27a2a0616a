"""One check of settings: what fits comes out as its field has it, the rest is one line of one form."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from aha.core.checks import JSON, Range, checked
from aha.errors import SpecError


@pytest.mark.parametrize(
    ("value", "wanted", "result"),
    [
        (3, float, 3.0),
        ([1, 2.5], tuple[float, ...], (1.0, 2.5)),
        ((1, 2), list[int], [1, 2]),
        (None, int | None, None),
        ("a", Literal["a", "b"], "a"),
        (10**400, int, 10**400),
    ],
)
def test_what_fits_has_the_type_of_its_field(value: Any, wanted: Any, result: Any) -> None:
    found = checked(value, wanted, "it")
    assert found == result and type(found) is type(result)


@pytest.mark.parametrize(
    ("value", "wanted", "numbers", "line"),
    [
        (True, int, Range(), "it must be a whole number, not true"),
        (1, bool, Range(), "it must be true or false, not 1"),
        (float("inf"), float, Range(), "it must be a number, not Infinity"),
        (10**400, float, Range(), "it must be a number, not 1000"),
        (0, int, Range(1), "it must be a whole number of at least 1, not 0"),
        (1.5, float, Range(0, 1), "it must be a number from 0 to 1, not 1.5"),
        (2, float, Range(high=0.5), "it must be a number of at most 0.5, not 2"),
        ([1, 0], tuple[int, ...], Range(1, 9), "it must be a list of whole numbers from 1 to 9, not [1, 0]"),
        ([1], tuple[int, int], Range(), "it must be a list of 2 whole numbers, not [1]"),
        (["a", 1], tuple[str, ...], Range(), 'it must be a list of texts, not ["a", 1]'),
        ("c", Literal["a", "b"] | None, Range(), "it must be one of a, b or null, not c"),
        ([], dict, Range(), "it must be an object, not []"),
        ("x" * 99, int, Range(), "it must be a whole number, not " + "x" * 37 + "..."),
    ],
)
def test_what_does_not_fit_is_one_line(value: Any, wanted: Any, numbers: Range, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        checked(value, wanted, "it", numbers, JSON)
    assert str(caught.value).startswith(line)

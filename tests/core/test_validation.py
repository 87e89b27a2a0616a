"""One check of settings: what fits comes out as its field has it, the rest is one line of one form."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from aha.core.validation import (
    FILLED,
    JSON,
    LONGEST_LIST,
    LONGEST_TEXT,
    Fraction,
    PositiveFloat,
    PositiveInt,
    Range,
    checked,
    from_json,
    read_json,
)
from aha.errors import SpecError
from aha.learned.decoder import DecoderConfig
from aha.learned.explainer import ExplainerConfig


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


@pytest.mark.parametrize(
    ("value", "wanted", "line"),
    [
        (0, PositiveInt, "it must be a whole number of at least 1, not 0"),
        (0.0, PositiveFloat, "it must be a number above 0, not 0.0"),
        (1.0, Fraction, "it must be a number above 0 and below 1, not 1.0"),
        (0, Annotated[float, Range(0, 1, above=True)], "it must be a number above 0 and of at most 1, not 0"),
        ([1, 0], tuple[PositiveInt, ...], "it must be a list of whole numbers of at least 1, not [1, 0]"),
        (0, PositiveInt | None, "it must be a whole number of at least 1 or null, not 0"),
        ("x", PositiveInt | Literal["all"], "it must be a whole number of at least 1 or all, not x"),
        (
            [],
            Annotated[tuple[PositiveInt, ...], FILLED],
            "it must be a list of whole numbers of at least 1, at least one, not []",
        ),
    ],
)
def test_a_range_in_an_annotation_is_kept(value: Any, wanted: Any, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        checked(value, wanted, "it", notation=JSON)
    assert str(caught.value) == line


def test_numbers_in_the_range_of_an_annotation_pass() -> None:
    assert checked(0.5, Fraction, "it") == 0.5
    assert checked(1, Annotated[float, Range(0, 1, above=True)], "it") == 1.0
    assert checked([2, 1], tuple[PositiveInt, ...], "it") == (2, 1)
    assert checked([2], Annotated[tuple[PositiveInt, ...], FILLED], "it") == (2,)


@dataclass(frozen=True)
class Inner:
    sizes: tuple[Annotated[int, Range(1, 100)], ...]
    share: Annotated[float, Range(0, 1)] = 0.5

    def __post_init__(self) -> None:
        if not self.sizes:
            raise ValueError("no sizes")


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    kind: Literal["a", "b"] = "a"
    pair: tuple[int, float] = (1, 2.0)
    flag: bool = False
    maybe: Annotated[int, Range(0, 9)] | None = None
    record: Mapping[str, Any] = field(default_factory=dict)


GOOD = {"name": "x", "inner": {"sizes": [1, 2], "share": 1}, "kind": "b", "pair": [3, 4], "flag": True, "maybe": None}


def test_what_fits_is_taken() -> None:
    made = from_json(Outer, GOOD)
    assert made == Outer("x", Inner((1, 2), 1.0), "b", (3, 4.0), True)
    assert isinstance(made.inner.share, float) and isinstance(made.pair[1], float)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"stray": 1}, "unknown entry stray"),
        ({"name": 3}, "name must be a text, not 3"),
        ({"name": "y" * (LONGEST_TEXT + 1)}, "name is a text of more than"),
        ({"name": "a\0b"}, "NUL"),
        ({"inner": []}, "inner must be an object"),
        ({"inner": {}}, "the entry inner.sizes is missing"),
        ({"inner": {"sizes": [1.5]}}, "inner.sizes must be a list of whole numbers from 1 to 100, not [1.5]"),
        ({"inner": {"sizes": [True]}}, "inner.sizes must be a list of whole numbers"),
        ({"inner": {"sizes": [0]}}, "inner.sizes must be a list of whole numbers from 1 to 100"),
        ({"inner": {"sizes": [10**400]}}, "inner.sizes must be a list of whole numbers from 1 to 100"),
        ({"inner": {"sizes": [1] * (LONGEST_LIST + 1)}}, "inner.sizes has 4,097 entries"),
        ({"inner": {"sizes": "12"}}, "inner.sizes must be a list"),
        ({"inner": {"sizes": []}}, "inner cannot be used: no sizes"),
        ({"inner": {"sizes": [1], "share": float("nan")}}, "inner.share must be a number from 0 to 1"),
        ({"inner": {"sizes": [1], "share": 10**400}}, "inner.share must be a number from 0 to 1"),
        ({"kind": "c"}, "kind must be one of a, b"),
        ({"kind": ["a"]}, "kind must be one of a, b"),
        ({"pair": [1]}, "pair must be a list of a whole number and a number, not [1]"),
        ({"flag": 1}, "flag must be true or false"),
        ({"flag": "false"}, "flag must be true or false"),
        ({"maybe": "1"}, "maybe must be a whole number"),
        ({"maybe": 10}, "maybe must be a whole number from 0 to 9"),
        ({"record": [1]}, "record must be an object"),
    ],
)
def test_what_does_not_fit_in_json_is_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_json(Outer, {**GOOD, **changes})
    text = str(caught.value)
    assert said in text
    assert "\n" not in text and len(text) < 200


@pytest.mark.parametrize("value", [None, 3, "text", [], [GOOD]])
def test_only_objects_have_entries(value: object) -> None:
    with pytest.raises(SpecError, match="must be an object"):
        from_json(Outer, value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"a": 1, "a": 2}', "occurs twice"),
        (b" " * (2**20 + 1), "more than 1,048,576 bytes"),
    ],
    ids=range(6),
)
def test_files_that_are_not_json(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(SpecError, match=said):
        read_json(tmp_path / "config.json")


def explainer_config() -> dict[str, Any]:
    config = ExplainerConfig(
        "timm:test_vit", "0" * 32, "target", (0, 1), "head", 1000, DecoderConfig((64, 64), 64), "none", temperature=0.01
    )
    found: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return found


def test_an_explainers_settings_come_back_as_they_were() -> None:
    found = from_json(ExplainerConfig, explainer_config())
    assert json.loads(json.dumps(asdict(found))) == explainer_config()


WRONG = (None, True, -1, 0, 1.5, 10**400, float("inf"), "", "x", "\0", [], [None], [[1]], {}, {"a": 1}, ["x"] * 9)


def test_no_mutation_of_an_explainers_settings_ends_in_a_foreign_error() -> None:
    draw = random.Random(0)
    for _ in range(500):
        found = explainer_config()
        place = draw.choice([found, found["decoder"]])
        name = draw.choice([*place, "stray"])
        if draw.random() < 0.1:
            place.pop(name, None)
        else:
            place[name] = draw.choice(WRONG)
        try:
            again = from_json(ExplainerConfig, found)
        except SpecError as error:
            assert "\n" not in str(error)
        else:
            assert isinstance(again.num_classes, int) and isinstance(again.target, str)
            assert type(again.rivals) is bool and all(type(stage) is int for stage in again.stages)

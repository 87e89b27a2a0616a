"""Dataclasses from JSON: what fits becomes one, everything else one line."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from aha.core.strict import LONGEST_LIST, LONGEST_TEXT, Range, from_json, read_json
from aha.errors import SpecError
from aha.learned.decoder import DecoderConfig
from aha.learned.explainer import ExplainerConfig


@dataclass(frozen=True)
class Inner:
    sizes: tuple[int, ...]
    share: float = 0.5

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
    maybe: int | None = None
    record: Mapping[str, Any] = field(default_factory=dict)


GOOD = {"name": "x", "inner": {"sizes": [1, 2], "share": 1}, "kind": "b", "pair": [3, 4], "flag": True, "maybe": None}
LIMITS = {"inner.sizes": Range(1, 100), "inner.share": Range(0, 1), "maybe": Range(0, 9)}


def test_what_fits_is_taken() -> None:
    made = from_json(Outer, GOOD, LIMITS)
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
def test_what_does_not_fit_is_one_line(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        from_json(Outer, {**GOOD, **changes}, LIMITS)
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

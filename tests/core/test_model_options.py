"""Options of a model, stated once: plans, commands and `aha.load_model` have the same ones."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest
import typer

import aha
from aha.bench.plan import Plan
from aha.cli.options import NOT_STATED, Stated, with_model_options
from aha.core.model_options import ModelOptions, check_option
from aha.core.validation import hints_of
from aha.errors import SpecError


def test_loading_a_model_takes_them_with_the_same_defaults() -> None:
    known = inspect.signature(aha.load_model).parameters
    for field in fields(ModelOptions):
        assert known[field.name].default == (None if field.default == () else field.default)


def test_what_is_as_by_default_is_not_stated() -> None:
    assert Plan("m", "x", weights="", precision="float32").stated == {}
    assert Plan("m", "x", pretrained=False, mean=(0.5,)).stated == {"pretrained": False, "mean": (0.5,)}


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "input_size",
            0,
            "--it must be a whole number of at least 1 or a list of whole numbers of at least 1, not 0",
        ),
        ("fit", "stretch", "--it must be one of 'crop', 'squash', 'pad', not 'stretch'"),
        ("mean", ["a"], "--it must be a list of numbers, not ['a']"),
        ("precision", "float8", "--it must be one of 'float32', 'bfloat16', 'float16', not 'float8'"),
    ],
)
def test_a_wrong_value_is_one_line(name: str, value: Any, line: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_option(name, value, "--it")
    assert str(caught.value) == line


def test_a_command_gets_those_that_are_stated() -> None:
    found: list[Stated] = []

    @with_model_options("engine")
    def command(weights: int = 3, options: Stated = NOT_STATED, last: bool = False) -> None:
        found.append(options)

    names = list(inspect.signature(command).parameters)
    expected = {*hints_of(ModelOptions), "last"} - {"engine"}
    assert set(names) == expected and (names[0], names[-1]) == ("weights", "last")
    app = typer.Typer()
    app.command()(command)
    app([], standalone_mode=False)
    app(["--no-pretrained", "--mean", "0.5,1", "--text", "a cat", "--input-size", "7"], standalone_mode=False)
    assert found == [{}, {"pretrained": False, "mean": [0.5, 1.0], "texts": ["a cat"], "input_size": 7}]
    with pytest.raises(typer.BadParameter, match="is not a list of numbers such as"):
        app(["--std", "half"], standalone_mode=False)

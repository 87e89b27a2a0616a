"""What is deprecated warns for one minor release, and then has to go."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import aha
from aha import errors
from aha.bench.plan import make_plans
from aha.errors import AhaWarning, DeprecatedWarning, deprecated

PACKAGE = Path(aha.__file__).parent


def overdue(source: str, version: str) -> Iterator[str]:
    """Calls of `deprecated` in a source whose time is up in a version."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "deprecated":
            (since,) = (word.value.value for word in node.keywords if word.arg == "since")
            if _pair(version) >= _pair(errors.removal(since)):
                yield ast.unparse(node)


def _pair(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def test_the_warning_says_since_when_until_when_and_what_instead() -> None:
    with pytest.warns(DeprecatedWarning) as caught:
        deprecated("caap(blank=...)", since="0.2", use="caap(reference=...)")
    (warning,) = caught
    told = "caap(blank=...) is deprecated since 0.2 and will be removed in 0.3; use caap(reference=...)"
    assert str(warning.message) == told
    assert warning.filename == __file__  # the caller's line, where it can be mended


def test_it_is_shown_by_default_and_silenced_with_the_others_of_the_package() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.resetwarnings()
        warnings.simplefilter("ignore", DeprecationWarning)  # as Python starts
        deprecated("a", since="0.9", use="b")
        warnings.simplefilter("ignore", AhaWarning)
        deprecated("a", since="0.9", use="b")
    assert [str(one.message) for one in shown] == ["a is deprecated since 0.9 and will be removed in 0.10; use b"]


@pytest.mark.parametrize(("version", "late"), [("0.2.0", False), ("0.2.7", False), ("0.3.0", True), ("1.0.0", True)])
def test_the_time_is_up_with_the_next_minor_release(version: str, late: bool) -> None:
    source = "errors.deprecated('a', since='0.2', use='b')\nother(since='0.1')"
    assert bool(list(overdue(source, version))) == late


def test_nothing_in_the_package_is_overdue() -> None:
    late = [
        f"{path.relative_to(PACKAGE)}: {call}"
        for path in PACKAGE.rglob("*.py")
        for call in overdue(path.read_text(encoding="utf-8"), aha.__version__)
    ]
    assert late == []


def test_former_words_still_work_and_name_the_present_ones() -> None:
    with pytest.warns(DeprecatedWarning, match="use load_model"):
        model = aha.load_model("timm:test_vit", pretrained=False, img_size=64)
    assert model.stated_preprocessing().size == (64, 64)
    images = torch.zeros(1, 3, 64, 64)
    with pytest.warns(DeprecatedWarning, match="use evaluate"):
        scores = aha.evaluate(model, images, "center_map", "sparseness", targets=7, progress=False)
    assert {row.target for row in scores.rows} == {7}
    former = {"model": "timm:test_vit", "data": "photos", "methods": ["gradient"], "img_size": 64}
    with pytest.warns(DeprecatedWarning, match="img_size in the plan .* use input_size"):
        (plan,) = make_plans(former)
    assert plan.input_size == 64
    with pytest.warns(DeprecatedWarning):  # as the command line changes what a file says
        (plan,) = make_plans({**former, "input_size": 32})
    assert plan.input_size == 32

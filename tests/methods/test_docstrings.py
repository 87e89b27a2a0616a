"""What every method's docstring says: its formula, what it reads, its cost as it was measured, and an example."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

import aha.methods
from aha.methods import METHODS, load_method

PASSES = {
    row["method"]: (int(row["forward"]), int(row["backward"]))
    for row in csv.DictReader((Path(aha.methods.__file__).parent / "cost.csv").read_text(encoding="utf-8").splitlines())
}
SAID = {"no pass.": (0, 0), "one forward pass.": (1, 0), "one forward and one backward pass.": (1, 1)}
READS = {name: name for name in ("gradients", "attention", "tokens", "features")} | {"branches": "residual"}


def facts_of(name: str) -> tuple[str, dict[str, str]]:
    """What stands before the facts, and the facts by their words."""
    doc = re.sub(r"\s*\n\s*", "\n", METHODS[name].__doc__ or "").partition("\nAttributes:\n")[0]
    before, *parts = re.split(r"^(Formula|Reads|Cost|Example): ", doc, flags=re.MULTILINE)
    return before, {word: " ".join(text.split()) for word, text in zip(parts[::2], parts[1::2], strict=True)}


@pytest.mark.parametrize("name", METHODS)
def test_there_is_a_formula(name: str) -> None:
    before, facts = facts_of(name)
    written = re.findall(r"`([^`]+)`", facts.get("Formula", before))
    spec = re.compile(r"\w+=\S+|[a-z_]+\([^)]*=[^)]*\)")
    assert any(re.search(r"[=*/|^~(-]|_\d", each) and not spec.fullmatch(each) for each in written)


@pytest.mark.parametrize("name", METHODS)
def test_it_says_what_is_read(name: str) -> None:
    _, facts = facts_of(name)
    missing = [need for need in METHODS[name].required if READS[need] not in facts["Reads"]]
    assert missing == []


@pytest.mark.parametrize("name", METHODS)
def test_the_cost_is_the_measured_one(name: str) -> None:
    _, facts = facts_of(name)
    assert "pass" in facts["Cost"]
    if facts["Cost"] in SAID:
        assert SAID[facts["Cost"]] == PASSES[name]
    said = next((text for text, passes in SAID.items() if passes == PASSES[name]), "")
    assert facts["Cost"].startswith(said.rstrip("."))


@pytest.mark.parametrize("name", METHODS)
def test_the_example_is_a_method(name: str) -> None:
    _, facts = facts_of(name)
    (example,) = re.findall(r"^`([^`]+)`\.$", facts["Example"])
    assert load_method(example).name == name

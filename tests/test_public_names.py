"""Public are the names in `__all__` of a few modules: the reference lists each, pages and examples use no other."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import aha
from test_documentation import BLOCKS, ROOT

MODULES = ("aha", "aha.targets", "aha.bench", "aha.interop", "aha.interop.ray", "aha.demo", "aha.errors")
PUBLIC = {f"{module}.{name}": module for module in MODULES for name in import_module(module).__all__}
# All pages but the one that says how to change the package.
TAUGHT = [block for page in BLOCKS.keys() - {"CONTRIBUTING.md"} for block in BLOCKS[page] if block.language == "python"]


def thing(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def names_in(source: str) -> Iterator[str]:
    """Full names of what a piece of code takes from the package."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "aha":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"aha(\.\w+)+", text := ast.unparse(node)):
            yield text


def is_public(name: str) -> bool:
    """Whether a name, or the beginning of it that is not an attribute of a public thing, is public."""
    parts = name.split(".")
    return name in MODULES or any(
        ".".join(parts[:stop]) in PUBLIC.keys() - {*MODULES} for stop in range(2, len(parts) + 1)
    )


def test_every_name_is_there() -> None:
    assert all(thing(path) is not None for path in PUBLIC)
    assert set(aha.__all__) <= set(dir(aha))


def test_the_reference_lists_what_is_public_and_nothing_else() -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "reference").glob("*.md"))
    listed = re.findall(r"^::: (\S+)", pages, re.MULTILINE)
    assert [path for path in listed if path not in PUBLIC] == []
    assert len({id(thing(path)) for path in listed}) == len(listed)
    # Some are in two modules; one of the two is enough.
    documented = {id(thing(path)) for path in listed}
    wanted = [path for path in PUBLIC if not inspect.ismodule(thing(path)) and path != "aha.__version__"]
    assert [path for path in wanted if id(thing(path)) not in documented] == []


@pytest.mark.parametrize("page", sorted({block.page for block in TAUGHT}))
def test_pages_teach_public_names_alone(page: str) -> None:
    taught = {name for block in TAUGHT if block.page == page for name in names_in(block.text)}
    taught |= {*re.findall(r"`(?:help\()?(aha(?:\.\w+)+)", (ROOT / page).read_text(encoding="utf-8"))}
    assert sorted(name for name in taught if not is_public(name)) == []


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_examples_use_public_names_alone(example: Path) -> None:
    assert sorted(name for name in names_in(example.read_text(encoding="utf-8")) if not is_public(name)) == []

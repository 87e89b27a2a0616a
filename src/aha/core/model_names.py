"""Names of models, read from the sources of the libraries that have them.

Importing these libraries takes seconds, and neither a list of names nor an answer to a misspelt one needs it. Where
their files leave a doubt, nothing is said here, and the library itself has to be asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from aha.core.registry import Registry, nearest_names
from aha.errors import SpecError, UnknownName

T = TypeVar("T")

DEMO = "efficientnet_lite0"
# How a library marks a function that makes a model; other decorators may stand between the mark and the function.
_MARK = re.compile(r"^@register_model\b", re.MULTILINE)
_MARKED = re.compile(r"^@register_model(?:\(\))?\n(?:@.*\n)*def (\w+)\(", re.MULTILINE)
_LISTED = {"timm": "models/*.py", "torchvision": "models/*.py"}


@cache
def names_of(source: str) -> list[str] | None:
    """The models of a source in its library's order, none for one without a list; None where its files leave doubts."""
    if source not in _LISTED:
        return [DEMO] if source == "demo" else []
    found = [name for text in _texts(source) for name in _MARKED.findall(text)]
    # Marks of a kind that is not known here: an incomplete list would be a wrong one.
    if not found or len(found) != sum(len(_MARK.findall(text)) for text in _texts(source)):
        return None
    return sorted(set(found), key=_with_numbers) if source == "timm" else sorted(set(found))


def split_spec(spec: str, sources: Registry[T]) -> tuple[T, str]:
    """The source and the name of a model's text, `SOURCE:NAME`."""
    source, colon, name = spec.partition(":") if isinstance(spec, str) else ("", "", "")
    if not colon or not name:
        raise SpecError(
            f"cannot read model {spec!r}; write SOURCE:NAME, such as timm:resnet50; sources are {', '.join(sources)}"
        )
    return sources[source], name


def check_model_name(spec: str) -> None:
    """Refuses `SOURCE:NAME` as loading it would, where it is certain that the source has no model of this name."""
    source, _, name = spec.partition(":")
    known, family = names_of(source), name.split(".")[0]
    if not known or family in known:
        return
    # Names that are not listed may still be accepted, such as former ones: their library has them in quotes.
    if source == "demo" or not any(
        f"{quote}{family}{quote}" in text for text in _texts(source) for quote in ("'", '"')
    ):
        raise unknown_model(source, name, known)


def unknown_model(source: str, name: str, known: Sequence[str]) -> UnknownName:
    """What is said about a model that a source does not have."""
    hints = nearest_names(name.split(".")[0], known)
    advice = f"did you mean {', '.join(hints)}?" if hints else f"see: aha list models --source {source}"
    return UnknownName(f"unknown model {source}:{name}; {advice}")


@cache
def _texts(source: str) -> list[str]:
    """The files of a library in which its models are."""
    library = find_spec(source)
    if library is None or library.origin is None:
        return []
    return [file.read_text(encoding="utf-8") for file in Path(library.origin).parent.glob(_LISTED[source])]


def _with_numbers(name: str) -> list[str | int]:
    """By which names are sorted so that resnet50 comes before resnet101."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name.lower())]

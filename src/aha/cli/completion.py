"""Completion of models, and bash's way with colons."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout

from aha.core.model_names import names_of
from aha.core.registry_file import declared

_COMPLETE, _WORDS, _PLACE = "_AHA_COMPLETE", "COMP_WORDS", "COMP_CWORD"


def complete_model(incomplete: str) -> list[str]:
    """Sources of models that begin like this and, behind the colon, their models."""
    source, colon, _ = incomplete.partition(":")
    found = (
        [f"{source}:{name}" for name in names_of(source) or []]
        if colon
        else [f"{name}:" for name in declared("model source")]
    )
    return [text for text in found if text.startswith(incomplete)]


def asked_by_bash_about_a_colon() -> bool:
    """Whether bash asks for completions of a word with a colon in it, which it takes for three words."""
    return os.environ.get(_COMPLETE) == "complete_bash" and ":" in os.environ.get(_WORDS, "").split("\n")


def answer_bash(program: Callable[[], object]) -> None:
    """Lets the program complete the word as the user sees it, and prints what bash will put behind the colon."""
    words, place = _rejoined(os.environ[_WORDS].split("\n"), int(os.environ[_PLACE]))
    os.environ[_WORDS], os.environ[_PLACE] = "\n".join(words), str(place)
    before = words[place][: words[place].rfind(":") + 1] if place < len(words) else ""
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            program()
    finally:
        sys.stdout.write("".join(f"{line.removeprefix(before)}\n" for line in said.getvalue().splitlines()))


def _rejoined(words: list[str], place: int) -> tuple[list[str], int]:
    """The words with those around a colon put together again, and where the one that is being written is now."""
    found: list[str] = []
    now = 0
    for number, word in enumerate(words):
        if found and (word == ":" or found[-1].endswith(":")):
            found[-1] += word
        else:
            found.append(word)
        if number == place:
            now = len(found) - 1
    return found, now

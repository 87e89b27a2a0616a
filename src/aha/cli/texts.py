"""Texts of methods, metrics, scores and models: completed as they are typed, refused before torch is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from aha.core.model_names import check_model_name
from aha.core.model_options import check_option
from aha.core.registry_file import Kind, check_method, check_metric, check_model, check_score, declared
from aha.errors import ImageError, SpecError


def check_texts(
    *,
    models: Iterable[str] = (),
    methods: Iterable[str] = (),
    metrics: Iterable[str] = (),
    options: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Raises the error of the first text, or option of a model, that cannot be understood; loading checks the rest."""
    models = list(models)
    scores = [options["score"]] if "score" in options else []
    for name, value in options.items():
        check_option(name, value, f"--{name.replace('_', '-')}")
    for texts, check in (
        (models, check_model),
        (models, check_model_name),
        (methods, check_method),
        (metrics, check_metric),
        (scores, check_score),
    ):
        for text in texts:
            check(text)


def check_place(on: str | None) -> None:
    """Refuses work on anything else than this process or Ray."""
    if on not in (None, "ray"):
        raise SpecError(f"--on must be ray, not {on!r}; --engine chooses what runs the model")


def check_paths(texts: Iterable[str]) -> None:
    """Refuses a path that does not exist; kinds of data sets, and patterns of files, are left to their readers."""
    for text in texts:
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
            raise ImageError(f"{text} is an address, not a file; download it first")
        path = Path(text).expanduser()
        place = path.with_name(path.name.rpartition("@")[0]) if path.name.rpartition("@")[0] else path  # PLACE@SPLIT
        if not (set(text) & set(":*?{[") or path.exists() or place.exists()):
            raise ImageError(f"{text} does not exist; check the path")


def complete_method(incomplete: str) -> list[str]:
    """Methods that begin like this."""
    return _names(incomplete, "method")


def complete_metric(incomplete: str) -> list[str]:
    """Protocols and metrics that begin like this."""
    return _names(incomplete, "protocol", "metric")


def complete_score(incomplete: str) -> list[str]:
    """Scores that begin like this."""
    return _names(incomplete, "score")


def _names(incomplete: str, *kinds: Kind) -> list[str]:
    return [name for kind in kinds for name in declared(kind) if name.startswith(incomplete)]

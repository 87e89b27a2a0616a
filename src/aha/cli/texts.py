"""Texts of methods, metrics, scores and models: completed as they are typed, refused before torch is imported."""

from __future__ import annotations

from collections.abc import Iterable

from aha.core.declared import Kind, check_method, check_metric, check_model, check_score, declared
from aha.errors import SpecError


def check_texts(
    *,
    models: Iterable[str] = (),
    methods: Iterable[str] = (),
    metrics: Iterable[str] = (),
    scores: Iterable[str] = (),
) -> None:
    """Raises the error of the first text that cannot be understood; the rest is checked by loading it."""
    for texts, check in (
        (models, check_model),
        (methods, check_method),
        (metrics, check_metric),
        (scores, check_score),
    ):
        for text in texts:
            check(text)


def check_place(on: str | None) -> None:
    """Refuses work on anything else than this process or Ray."""
    if on not in (None, "ray"):
        raise SpecError(f"work can be shared on ray, not on {on!r}; what runs the model is --engine")


def complete_method(incomplete: str) -> list[str]:
    """Methods that begin like this."""
    return _names(incomplete, "method")


def complete_metric(incomplete: str) -> list[str]:
    """Protocols and metrics that begin like this."""
    return _names(incomplete, "protocol", "metric")


def complete_score(incomplete: str) -> list[str]:
    """Scores that begin like this."""
    return _names(incomplete, "score")


def complete_model(incomplete: str) -> list[str]:
    """Sources of models that begin like this; their models are known only to libraries that import torch."""
    return [f"{name}:" for name in _names(incomplete, "model source")]


def _names(incomplete: str, *kinds: Kind) -> list[str]:
    return [name for kind in kinds for name in declared(kind) if name.startswith(incomplete)]

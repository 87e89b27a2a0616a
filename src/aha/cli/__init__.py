"""The command line. Commands translate options into calls of the library; heavy imports wait until one runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aha.cli.commands import main, whole_app

if TYPE_CHECKING:
    import typer

    app: typer.Typer

__all__ = ["app", "main"]


def __getattr__(name: str) -> object:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return whole_app()

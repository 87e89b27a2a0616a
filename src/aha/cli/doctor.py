"""`aha doctor`: does this installation work?"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from aha.cli.options import Debug, Json, Quiet
from aha.cli.reporting import print_json, reported

if TYPE_CHECKING:
    from aha.doctor import Diagnosis


def doctor(json: Json = False, quiet: Quiet = False, debug: Debug = False) -> None:
    """Check the installation: versions, devices, extras, and explanations with known answers."""
    with reported(debug=debug, quiet=quiet):
        from aha.doctor import diagnose

        diagnosis = diagnose()
        if json:
            print_json({"ok": diagnosis.ok, **asdict(diagnosis)})
        else:
            _print(diagnosis, quiet=quiet)
        if not diagnosis.ok:
            raise typer.Exit(1)


def _print(diagnosis: Diagnosis, *, quiet: bool) -> None:
    for check in diagnosis.checks:
        if not (quiet and check.ok):
            verdict = typer.style("ok    ", fg="green") if check.ok else typer.style("failed", fg="red", bold=True)
            typer.echo(f"{verdict}  {check.name}: {check.detail}")
    if quiet:
        return
    typer.echo("")
    for extra in diagnosis.extras:
        typer.echo(f"extra {extra.name:<7} {'installed' if extra.installed else extra.install}")
    typer.echo("")
    facts = diagnosis.devices | diagnosis.versions
    width = max(map(len, facts))
    for name, detail in facts.items():
        typer.echo(f"{name:<{width}}  {detail}")

"""What every command does alike: one line per error and warning, progress for people, JSON for programs."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import typer

from aha.core.progress_line import duration
from aha.errors import AhaError, AhaWarning, one_line

_SECONDS_BETWEEN_LINES = 10.0
INTERRUPTED, TERMINATED = 130, 143  # what shells report for a program that Ctrl-C, or SIGTERM, ended


@contextmanager
def reported(*, debug: bool, quiet: bool = False) -> Iterator[None]:
    """Turns what goes wrong inside into one line on stderr and an exit code; with `debug`, into a traceback."""
    with _own_warnings_only(debug=debug, quiet=quiet), _told_to_end():
        try:
            yield
        except AhaError as error:
            if debug:
                raise
            fail(str(error))
        except KeyboardInterrupt:
            say_error("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except (typer.Exit, typer.BadParameter, BrokenPipeError):
            raise  # typer ends the program for these, with its own usage lines
        except ValueError as error:
            if debug or "null byte" not in str(error):  # as Python says of a file name
                _fail_unexpectedly(error, debug=debug)
            fail("a file name contains a NUL character; remove it")
        except Exception as error:
            _fail_unexpectedly(error, debug=debug)


@contextmanager
def resumable(said: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C inside ends the command with a line that says what is finished and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        say_error(f"interrupted; {said()}")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _told_to_end() -> Iterator[None]:
    """SIGTERM, as schedulers send it, ends the work as Ctrl-C does: at a moment that suits, with a word."""
    former = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or former is not signal.SIG_DFL:
        yield
        return
    was_told = False

    def take(*_signal: object) -> None:
        nonlocal was_told
        if not was_told:
            was_told = True
            say_error("terminated (SIGTERM)")
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, take)
    try:
        yield
    except typer.Exit as end:
        if was_told and end.exit_code == INTERRUPTED:
            raise typer.Exit(TERMINATED) from None
        raise
    finally:
        signal.signal(signal.SIGTERM, former)


def _fail_unexpectedly(error: Exception, *, debug: bool) -> NoReturn:
    if debug:
        raise error
    fail(f"{type(error).__name__}: {error} (unexpected; --debug shows where)")


def say_error(text: str) -> None:
    """One line that starts with `error:` on stderr."""
    typer.echo(f"{typer.style('error:', fg='red', bold=True)} {one_line(text)}", err=True)


def fail(text: str) -> NoReturn:
    """Says the error and ends the command."""
    say_error(text)
    raise typer.Exit(1)


def print_json(value: Any) -> None:
    """One JSON value on stdout; numbers that are not finite are null, since JSON knows none."""
    typer.echo(json.dumps(_finite(value), indent=1, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(own) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def answer(programs: Callable[[], Any], people: Callable[[], str], *, json: bool, quiet: bool) -> None:
    """Says the result in one form: as JSON, as text, or not at all; only what is said is computed."""
    if json:
        print_json(programs())
    elif not quiet:
        typer.echo(people())


@contextmanager
def progress_bar(
    task: str, total: int, *, shown: bool, expected: Callable[[], float | None] | None = None
) -> Iterator[Callable[[float], None]]:
    """A function that advances a bar with the time left, on stderr; draws nothing unless that is a terminal.

    Until the work has reported enough, the time left follows from `expected`, in seconds for all of it.
    """
    if not (shown and sys.stderr.isatty()):
        yield lambda count: None
        return
    with _bar(total, task, expected() if expected is not None and total else None) as update:
        yield lambda count: update(advance=count)


@contextmanager
def _bar(total: int, text: str, expected: float | None = None) -> Iterator[Callable[..., None]]:
    """A bar on stderr with the time left, and what updates it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from aha.cli.time_left import TimeLeft

    columns = (BarColumn(), MofNCompleteColumn(), TimeLeft(expected), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield partial(progress.update, progress.add_task(text, total=total))


@contextmanager
def training_bar(config: Any, *, shown: bool) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """A function that shows each step's figures: a bar with the time left on a terminal, else a line now and then.

    The first step tells what all of them will cost.
    """
    steps, told = config.steps, False

    def tell_cost(record: Mapping[str, float]) -> None:
        nonlocal told
        if not told:
            left = (steps - record["step"]) * config.batch_size / record["images_per_second"]
            typer.echo(f"{config.passes:,} passes through the model in total; about {duration(left)} left", err=True)
        told = True

    if not shown:
        yield lambda record: None
    elif sys.stderr.isatty():
        with _bar(steps, "") as update:

            def advance(record: Mapping[str, float]) -> None:
                tell_cost(record)
                update(completed=record["step"] + 1, description=_figures(record))

            yield advance
    else:
        every = max(1, steps // 50)

        def line(record: Mapping[str, float]) -> None:
            tell_cost(record)
            done = int(record["step"]) + 1
            if done % every == 0 or done == steps or "validation_ins_del" in record:
                typer.echo(f"step {done}/{steps} {_figures(record)}", err=True)

        yield line


@contextmanager
def bench_bar(
    total: int, cells_per_image: int, *, shown: bool, expected: Callable[[], float | None]
) -> Iterator[Callable[[Any], None]]:
    """A function that shows each step of a benchmark: cells done, time left, method, images per second, failures.

    On a terminal the time left follows from `expected`, in seconds for all of it, until the work has a pace of its own.
    """
    state = {"cells": 0, "failures": 0, "start": time.monotonic(), "said": time.monotonic()}

    def text(method: str) -> str:
        speed = state["cells"] / max(1, cells_per_image) / max(1e-9, time.monotonic() - state["start"])
        failed = f"  {int(state['failures'])} failed" if state["failures"] else ""
        return f"{method}  {pace(speed)}{failed}"

    def count(step: Any) -> None:
        state["cells"] += step.cells
        state["failures"] += step.failures

    if not shown:
        yield lambda step: None
    elif sys.stderr.isatty():
        with _bar(total, "", expected() if total else None) as update:

            def advance(step: Any) -> None:
                count(step)
                update(advance=step.cells, description=text(step.method))

            yield advance
    else:

        def line(step: Any) -> None:
            count(step)
            now = time.monotonic()
            if now - state["said"] >= _SECONDS_BETWEEN_LINES:
                left = (now - state["start"]) / state["cells"] * (total - state["cells"])
                done = f"{int(state['cells'])}/{total} results, {duration(left)} left"
                typer.echo(f"{done}  {text(step.method)}", err=True)
                state["said"] = now

        yield line


def pace(images_per_second: float) -> str:
    """A speed in words; what takes longer than a second is told as a time."""
    if 0 < images_per_second < 1:
        return f"{1 / images_per_second:.1f} s per image"
    return f"{images_per_second:.1f} images per second"


def _figures(record: Mapping[str, float]) -> str:
    """Short enough for 80 columns beside a bar."""
    names = {"loss": "loss", "deletion": "del", "insertion": "ins", "validation_ins_del": "held-out"}
    return " ".join(f"{short} {record[name]:.3f}" for name, short in names.items() if name in record)


@contextmanager
def _own_warnings_only(*, debug: bool, quiet: bool) -> Iterator[None]:
    """Our warnings as lines; those of other libraries, their logs and their bars only where they help."""
    if quiet or not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with warnings.catch_warnings():
        if debug:
            yield
            return
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", AhaWarning)
        warnings.showwarning = _show_warning  # type: ignore[assignment]  # where it arose is of no interest
        former = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(former)


def _show_warning(message: Warning | str, *_where: Any) -> None:
    typer.echo(f"{typer.style('warning:', fg='yellow', bold=True)} {one_line(str(message))}", err=True)

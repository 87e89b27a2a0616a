"""The line that says how long is left: when it comes, what it says, and that it goes."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from aha.core.progress import in_parts
from aha.core.progress_line import ProgressLine, duration, is_watched, shown


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_quick_work_says_nothing() -> None:
    stream, clock = io.StringIO(), Clock()
    line = ProgressLine("explaining", stream, clock)
    for share in (0.0, 0.5, 1.0):
        clock.now += 0.5
        line(share)
    line.close()
    assert stream.getvalue() == ""


def test_slow_work_says_how_long_is_left_and_cleans_up() -> None:
    stream, clock = io.StringIO(), Clock()
    line = ProgressLine("explaining", stream, clock)
    clock.now += 10
    line(0.25)
    assert stream.getvalue() == "\rexplaining  25%, 30 s left"
    clock.now += 0.1
    line(0.26)  # too soon to be read
    assert stream.getvalue().count("\r") == 1
    line.close()
    assert stream.getvalue().endswith("\r" + " " * len("explaining  25%, 30 s left") + "\r")


def test_it_is_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert not is_watched()  # tests have no terminal
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=1)))
    assert is_watched()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert not is_watched()


def test_a_function_hears_instead() -> None:
    told: list[float] = []
    with shown(told.append, "explaining"):
        for _ in in_parts(range(4)):
            pass
    assert told == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_a_line_is_drawn_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr("aha.core.progress_line._SECONDS_BEFORE", 0.0)
    with shown(True, "evaluating"):
        pass
    assert "evaluating" in stream.getvalue()
    with shown(False, "evaluating"):
        assert stream.getvalue().count("evaluating") >= 1
    before = stream.getvalue()
    with shown(None, "evaluating"):
        pass
    assert stream.getvalue() == before


@pytest.mark.parametrize(("seconds", "text"), [(3, "3 s"), (120, "2 min"), (7200, "2.0 h")])
def test_times_are_for_people(seconds: float, text: str) -> None:
    assert duration(seconds) == text

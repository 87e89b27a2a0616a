"""What every method promises when Ctrl-C ends it: the model and its surroundings are what they were.

Ctrl-C arrives at a chosen line of the run, not at a chosen time: the same lines every time, and the ones that put
things back as likely as any other.
"""

from __future__ import annotations

import contextlib
import random
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from every_method import FITTING, label
from torch import Tensor, nn

import aha
from aha.core.interrupts import checkpoint, interrupts_wait
from aha.methods import Method
from fakes import BUILDERS, changes, snapshot, surroundings

WATCHED = (str(Path(aha.__file__).parent), contextlib.__file__, torch.autograd.grad_mode.__file__)
QUICK, ALL = 30, 200


@pytest.fixture(autouse=True)
def _python_listens() -> Iterator[None]:
    """As in a terminal: in the background of a shell, Ctrl-C would be ignored from the start."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


class CtrlC:
    """Presses Ctrl-C at the n-th line that is run in the code that changes things and puts them back."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.lines = at, 0

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(WATCHED):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self.at:
                signal.raise_signal(signal.SIGINT)
        return self


@contextlib.contextmanager
def traced(trace: CtrlC) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def in_use(model: nn.Module) -> nn.Module:
    """A model in the middle of its owner's training."""
    model.train()
    for index, part in enumerate(model.modules()):
        part.training = index % 3 != 0
    return model


def interrupted_anywhere(pair: tuple[Method, str], images: Tensor, seed: int) -> None:
    method, kind = pair
    model = in_use(BUILDERS[kind]()[0])
    aha.explain(model, images[:1], method, target=0)
    with traced(counter := CtrlC()):
        expected = aha.explain(model, images[:1], method, target=0).maps
    moment = random.Random(seed).randint(1, counter.lines)
    before, handler = (snapshot(model), surroundings()), signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), traced(CtrlC(moment)):
        aha.explain(model, images[:1], method, target=0)
    for was, now in zip(before, (snapshot(model), surroundings()), strict=True):
        assert changes(was, now) == [], f"after Ctrl-C at line {moment} of {counter.lines} of {method}"
    assert signal.getsignal(signal.SIGINT) is handler
    assert torch.equal(aha.explain(model, images[:1], method, target=0).maps, expected)


def sample(count: int) -> list[tuple[tuple[Method, str], int]]:
    """So many interruptions, each method and model as often as the others."""
    order = random.Random(0).sample(FITTING, len(FITTING))
    return [(order[number % len(order)], number) for number in range(count)]


def named(value: Any) -> str:
    return str(value) if isinstance(value, int) else label(value)


@pytest.mark.parametrize(("pair", "seed"), sample(QUICK), ids=named)
def test_ctrl_c_at_any_line_leaves_no_trace(pair: tuple[Method, str], seed: int, images: Tensor) -> None:
    interrupted_anywhere(pair, images, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("pair", "seed"), sample(ALL)[QUICK:], ids=named)
def test_ctrl_c_at_many_more_lines_leaves_no_trace(pair: tuple[Method, str], seed: int, images: Tensor) -> None:
    interrupted_anywhere(pair, images, seed)


# How Ctrl-C waits


def test_ctrl_c_waits_for_a_checkpoint() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), interrupts_wait(), interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        reached.append("after the signal")
        checkpoint()
        reached.append("after the checkpoint")
    assert reached == ["after the signal"]


def test_ctrl_c_takes_effect_at_the_end_at_the_latest() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        signal.raise_signal(signal.SIGINT)


def test_a_hanging_model_can_be_left_by_insisting() -> None:
    count = 0
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        while count < 10:
            count += 1
            signal.raise_signal(signal.SIGINT)
    assert count == 3


def test_a_handler_of_the_program_is_asked_and_may_go_on() -> None:
    seen: list[int] = []
    former = signal.signal(signal.SIGINT, lambda number, _frame: seen.append(number))
    try:
        with interrupts_wait():
            signal.raise_signal(signal.SIGINT)
            assert seen == []
            checkpoint()
        assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, former)

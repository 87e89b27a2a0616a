"""What a training run writes down."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aha.learned.training.metrics_log import METRICS, Logbook


def write(folder: Path, first: int, last: int) -> None:
    book = Logbook(folder, first)
    for step in range(first, last):
        book.add({"step": step, "loss": step / 10})
    book.close()


def test_a_continued_run_keeps_what_was_before_and_only_that(tmp_path: Path) -> None:
    write(tmp_path, 0, 5)
    with (tmp_path / METRICS).open("a", encoding="utf-8") as file:
        file.write('{"step": 5, "lo')  # the process was killed here
    write(tmp_path, 3, 6)
    lines = [json.loads(line) for line in (tmp_path / METRICS).read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5]


def test_tensorboard_shows_the_same_numbers(tmp_path: Path) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write(tmp_path, 0, 5)
    write(tmp_path, 3, 6)
    events = reader.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = {event.step: event.value for event in events.Scalars("loss")}
    assert shown == pytest.approx({step: step / 10 for step in range(6)})

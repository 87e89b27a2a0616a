"""What a run writes down: `metrics.jsonl` always, TensorBoard's files where TensorBoard is installed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aha.core.disk import write_atomically, writing

METRICS = "metrics.jsonl"


class Logbook:
    """One line per step, kept up to the step from which a run continues."""

    def __init__(self, folder: Path, first_step: int) -> None:
        self._path = folder / METRICS
        lines = self._path.read_bytes().splitlines() if self._path.exists() else []
        kept = b"".join(line + b"\n" for line in lines if _step_of(line) < first_step)
        with writing(self._path):
            write_atomically(self._path, lambda file: file.write(kept))
        self._board = _tensorboard(folder, first_step)

    def add(self, record: Mapping[str, Any]) -> None:
        """Appends one record, which has a "step"."""
        with writing(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if self._board is not None:
            for name, value in record.items():
                if name != "step":
                    self._board.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Lets go of TensorBoard's file."""
        if self._board is not None:
            self._board.close()


def _step_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return float("inf")  # a line that was cut off, or damaged


def _tensorboard(folder: Path, first_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=first_step)

"""What a killed benchmark leaves behind does not stop the next run."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

kept_lines = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "kept_lines.py"))["kept_lines"]
ROWS = [{"image": "a.png", "delete": [0.5, 0.25]}, {"image": "é.png", "delete": [1.0]}]
WHOLE = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.mark.parametrize(
    "content",
    [
        WHOLE + b'{"image": "b.png", "del',
        WHOLE + b'{"image": "b.png"}',  # whole by chance, but the next line would be written behind it
        WHOLE + b'{"image": "b.pn{"image": "b.png"}\n',  # written behind a broken one
        WHOLE + b"12\n",
    ],
)
def test_broken_lines_are_taken_out(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "rows.jsonl"
    store.write_bytes(content)
    assert kept_lines(store) == ROWS
    assert "broken lines, to be measured again: 1" in capsys.readouterr().err
    assert store.read_bytes() == WHOLE


def test_whole_lines_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "rows.jsonl"
    assert kept_lines(store) == []
    assert not store.exists()
    store.write_bytes(WHOLE)
    before = store.stat().st_ino
    assert kept_lines(store) == ROWS
    assert store.stat().st_ino == before and not capsys.readouterr().err

"""Lines of JSON that benchmarks keep, one for each thing measured, so that an interrupted run goes on where it was."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from aha.core.disk import write_atomically


def kept_lines(path: Path) -> list[dict[str, Any]]:
    """What an earlier run has written; broken lines, as a kill leaves them, are taken out and measured again."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if _is_whole(line)]
    if len(whole) < len(lines):
        print(f"{path}: broken lines, to be measured again: {len(lines) - len(whole)}", file=sys.stderr)
        write_atomically(path, lambda file: file.writelines(whole))
    return [json.loads(line) for line in whole]


def _is_whole(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and isinstance(json.loads(line), dict)
    except ValueError:
        return False

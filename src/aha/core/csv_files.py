"""CSV files, as lines with named columns."""

from __future__ import annotations

import csv
from pathlib import Path

from aha.core.disk import check_regular
from aha.errors import AhaError


def read_table(path: Path, kind: type[AhaError]) -> list[dict[str, str]]:
    """The lines of a CSV file; `kind` is the error that is raised where it cannot be read."""
    try:
        check_regular(path)
        lines = list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))
    except (OSError, ValueError) as error:
        raise kind(f"cannot read {path}: {error}") from None
    except csv.Error as error:
        raise kind(f"{path} is not a CSV table: {error}") from None
    for number, line in enumerate(lines, start=2):
        if any("\0" in (value or "") for name, value in line.items() if name is not None):
            raise kind(f"line {number} of {path} contains a NUL character")
    return lines

"""Says at the end of a run how many tests were skipped and why, in one line before pytest's own closing line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable
from typing import Any

import pytest


def summary(reasons: Iterable[str]) -> str:
    """One line: the number of skipped tests, and each reason with its own, the most frequent first."""
    counts = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    told = "; ".join(f"{count} because {reason}" for reason, count in counts.most_common())
    return f"skipped: {counts.total()}" + f" ({told})" * bool(counts)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Generator[None, Any, Any]:
    """Of pytest: after its lists of failures and skips, before the closing line."""
    outcome = yield
    skipped = terminalreporter.stats.get("skipped", [])
    terminalreporter.write_line(summary(report.longrepr[2] for report in skipped))
    return outcome

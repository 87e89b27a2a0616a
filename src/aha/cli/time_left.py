"""A column of a progress bar: the time that is left, from the first second on."""

from __future__ import annotations

from rich.progress import ProgressColumn, Task
from rich.text import Text

from aha.core.progress_line import duration

_TRUSTED = 0.05  # the share of the work after which its own pace is all that counts


class TimeLeft(ProgressColumn):
    """The time left by the work's own pace; by what was expected of it as long as that is not known.

    Args:
        expected: seconds that all of it is expected to take; None if that is unknown.
    """

    def __init__(self, expected: float | None) -> None:
        super().__init__()
        self._expected = expected

    def render(self, task: Task) -> Text:
        """Called again and again."""
        share = task.completed / task.total if task.total else 0.0
        left = seconds_left(share, task.elapsed or 0.0, self._expected)
        return Text("" if left is None else f"{duration(left)} left", style="progress.remaining")


def seconds_left(share: float, elapsed: float, expected: float | None) -> float | None:
    """From the share that is done, the seconds it took, and those that were expected for the whole."""
    paced = elapsed * (1 - share) / share if share > 0 else None
    if expected is None:
        return paced
    if paced is None:
        return max(0.0, expected - elapsed)
    weight = min(1.0, share / _TRUSTED)
    return weight * paced + (1 - weight) * max(0.0, expected - elapsed)

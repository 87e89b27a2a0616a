"""Looking over a model's shoulder: every image that goes through it is a chance to report progress or to stop.

Only what a model offers to everybody is used, its counter of passes and its chunks. A stop is an exception on the way
into a forward pass, after which the model is what it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

from aha.models import TargetModel
from aha.models.memory import Chunks
from aha.web.jobs import CURRENT

T = TypeVar("T")


class WatchedPasses(Counter[str]):
    """A counter of passes that stops the current job when nobody wants it any more."""

    def __setitem__(self, direction: str, count: int) -> None:
        job = CURRENT.get()
        if job is not None:
            job.checkpoint()
            job.images += max(0, count - self[direction])
        super().__setitem__(direction, count)


class WatchedChunks(Chunks):
    """Chunks that tell the current job how far they are; the outermost loop of several is the one that counts."""

    def stream(self, work: Callable[[slice], T], count: int) -> Iterator[T]:
        """As in `Chunks`."""
        job = CURRENT.get()
        is_loop = job is not None and job.done is None and count > self.size

        def watched(part: slice) -> T:
            if job is not None:
                job.checkpoint()
                if is_loop:
                    job.done = part.start / count
            return work(part)

        try:
            yield from super().stream(watched, count)
        finally:
            if job is not None and is_loop:
                job.done = None


def watch(model: TargetModel) -> None:
    """Makes the model's work visible to jobs, and cancellable."""
    model.passes = WatchedPasses(model.passes)
    model.chunks = WatchedChunks(model.chunks.size)

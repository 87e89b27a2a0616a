"""Work in chunks, smaller ones when memory runs out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from aha.errors import ModelError

T = TypeVar("T")


def is_out_of_memory(error: BaseException) -> bool:
    """Did this error come from an exhausted allocator, on any device?"""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


class Chunks:
    """Runs work over slices of a batch; the size that fitted is remembered for the next call."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ModelError(f"batch size must be at least 1, not {size}")
        self.size = size

    def run(self, work: Callable[[slice], T], count: int) -> list[T]:
        """Results of `work` for consecutive slices of range(count); a slice that does not fit is halved and retried."""
        results: list[T] = []
        start = 0
        while start < count:
            size = min(self.size, count - start)
            try:
                results.append(work(slice(start, start + size)))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if size == 1:
                    raise ModelError("out of memory even for a single image; use a smaller input size") from error
                self.size = size // 2
            else:
                start += size
                continue
            if torch.cuda.is_available():  # outside the handler, where the failed frames no longer hold tensors
                torch.cuda.empty_cache()
        return results

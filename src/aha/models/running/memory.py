"""Work in chunks, smaller ones when memory runs out."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self, TypeVar

import torch

from aha.core.progress import part
from aha.errors import ModelError

T = TypeVar("T")


def is_out_of_memory(error: BaseException) -> bool:
    """Did this error come from an exhausted allocator, on any device?"""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


class PeakMemory:
    """Most memory used inside a `with`, in bytes beyond what was in use before; `bytes` is None where unknown.

    On CUDA it is the allocator's own figure. On a CPU the process is looked at every few milliseconds, which Linux
    alone makes cheap; shorter peaks are missed, and memory that was kept in reserve by the allocator does not count.
    """

    _STATUS = Path("/proc/self/statm")

    def __init__(self, device: torch.device, interval: float = 0.005) -> None:
        self.bytes: int | None = None
        self._device, self._interval = device, interval
        self._over = threading.Event()
        self._most = 0

    def __enter__(self) -> Self:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        elif self._STATUS.exists():
            self._before = self._resident()
            self._sampler = threading.Thread(target=self._sample, daemon=True)
            self._sampler.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._device.type == "cuda":
            self.bytes = torch.cuda.max_memory_allocated(self._device) - self._before
        elif self._STATUS.exists():
            self._over.set()
            self._sampler.join()
            self.bytes = max(0, self._most - self._before)

    def _sample(self) -> None:
        while not self._over.is_set():
            self._most = max(self._most, self._resident())
            self._over.wait(self._interval)

    def _resident(self) -> int:
        return int(self._STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Chunks:
    """Runs work over slices of a batch; the size that fitted is remembered for the next call."""

    def __init__(self, size: int) -> None:
        if not isinstance(size, int) or size < 1:
            raise ModelError(f"batch size must be a whole number of at least 1, not {size!r}")
        self.size = size

    def run(self, work: Callable[[slice], T], count: int) -> list[T]:
        """Results of `work` for consecutive slices of range(count); a slice that does not fit is halved and retried."""
        return list(self.stream(work, count))

    def stream(self, work: Callable[[slice], T], count: int) -> Iterator[T]:
        """The same, one result at a time: for callers who need not keep them."""
        start = 0
        while start < count:
            size = min(self.size, count - start)
            try:
                with part(start, start + size, count):
                    result = work(slice(start, start + size))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if size == 1:
                    raise ModelError("out of memory even for a single image; use a smaller input size") from error
                self.size = size // 2
            else:
                start += size
                yield result
                continue
            if torch.cuda.is_available():  # outside the handler, where the failed frames no longer hold tensors
                torch.cuda.empty_cache()

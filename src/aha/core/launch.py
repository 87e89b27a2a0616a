"""Which of the processes this is that a launcher, such as `torchrun`, has started."""

from __future__ import annotations

import os

import torch


def launched_device() -> torch.device | None:
    """The device that a launcher of several processes meant for this one; None without a launcher."""
    if "LOCAL_RANK" not in os.environ or not torch.cuda.is_available():
        return None
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def launched_share() -> tuple[int, int]:
    """Which process this is among those that a launcher started, and how many there are; (0, 1) without a launcher.

    For work that needs no exchange between the processes, and so neither a process group nor accelerate.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    return (int(os.environ.get("RANK", "0")), processes) if processes > 1 else (0, 1)


def parts_of(total: int, share: tuple[int, int]) -> range:
    """This process's share of `total` things: every n-th, n being the number of processes."""
    return range(share[0], total, share[1])

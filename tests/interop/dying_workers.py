"""Work on a real local Ray whose first worker dies: run by `test_ray` in a process of its own, which Ray litters.

python dying_workers.py PICTURES OUT
"""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

from aha.bench.plan import Plan
from aha.bench.runner import BenchRun
from aha.interop import ray as on_ray
from aha.interop.arrow import Batch
from aha.interop.shards import WriteShards

MODEL = "timm:test_resnet"
OPTIONS: dict[str, Any] = {"pretrained": False, "device": "cpu", "maps": "float32"}
WORKERS = 2


def die_once(mark: Path) -> None:
    """Kills this process, as the kernel would for want of memory, unless one has died already."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class Dies(WriteShards):
    """The first batch that any worker gets kills it."""

    def __call__(self, batch: Batch) -> dict[str, Any]:
        die_once(self._out.with_suffix(".died"))
        return super().__call__(batch)


def explain(pictures: Path, out: Path) -> list[list[int]]:
    """Done, skipped and failed pictures; the second time, nothing is left to do."""
    on_ray.WriteShards = Dies  # type: ignore[misc]
    told = []
    for _ in range(2):
        run = on_ray.explain_pictures(
            pictures, out, MODEL, "grad_cam", workers=WORKERS, shard_size=2, seed=0, **OPTIONS
        )
        told.append([run.done, run.skipped, len(run.failures)])
    return told


def plan_of(pictures: Path) -> Plan:
    """A small benchmark of the pictures."""
    return Plan(
        model=MODEL,
        data=str(pictures),
        methods=("grad_cam", "random_map"),
        metrics=("deletion(steps=4)",),
        batch_size=1,
        pretrained=False,
    )


def measure(plan: Plan, out: Path, share: tuple[int, int]) -> None:
    """A share of a benchmark; the first worker that has finished something dies of it."""
    run = BenchRun(plan, out, device="cpu", share=share)
    run.run(lambda _step: die_once(out.with_suffix(".died")))


if __name__ == "__main__":
    pictures, out = Path(sys.argv[1]), Path(sys.argv[2])
    told = explain(pictures, out / "maps")
    on_ray.share_out(partial(measure, plan_of(pictures), out / "bench"), workers=WORKERS)
    sys.stdout.write(json.dumps(told) + "\n")

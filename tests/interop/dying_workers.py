"""Work on a real local Ray whose first worker dies: run by `test_ray` in a process of its own, which Ray litters.

python dying_workers.py explain FOLDER OUT
python dying_workers.py bench FOLDER OUT
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import ray

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


def main(folder: Path, out: Path) -> None:
    ray.init(address="local", num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    on_ray.WriteShards = Dies  # type: ignore[misc]
    told: list[Any] = []
    for _ in range(2):  # the second time, nothing is left to do
        run = on_ray.explain_pictures(folder, out, MODEL, "grad_cam", workers=WORKERS, shard_size=2, seed=0, **OPTIONS)
        told.append([run.done, run.skipped, len(run.failures)])
    ray.shutdown()
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

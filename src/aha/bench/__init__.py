"""Benchmarks: data x targets x methods x metrics, resumable, shared among processes, with a report at the end.

```python
from aha.bench import Plan, run, write_report

plan = Plan(model="timm:resnet18", data="imagenet:/data/imagenet", methods=("grad_cam", "rise"), limit=200)
run(plan, "study")
write_report("study")
```
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aha.bench.plan import Plan, read_plans
from aha.bench.reporting.compare import Comparison, compare_runs
from aha.bench.reporting.report import write_report
from aha.bench.run_reader import Run, merge_runs, read_run
from aha.bench.runner import BenchRun, Step
from aha.models import TargetModel

__all__ = [
    "Comparison",
    "Plan",
    "Run",
    "Step",
    "compare_runs",
    "merge_runs",
    "read_plans",
    "read_run",
    "run",
    "write_report",
]


def run(
    plan: Plan,
    out: str | Path,
    *,
    model: TargetModel | None = None,
    device: str | None = None,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Run:
    """Does what the folder does not have yet of a plan, and reads all of it back.

    Args:
        plan: what to measure.
        out: folder of the run; what it has already is kept.
        model: a loaded model, for networks of your own; `plan.model` is then only its name in the record.
        device: as in `aha.load_model`.
        on_step: called after every finished piece of work.
    """
    BenchRun(plan, out, model=model, device=device).run(on_step)
    return read_run(out)

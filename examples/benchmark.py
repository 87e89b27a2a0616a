"""A small benchmark from Python: methods x metrics, resumable, with a report.

    python examples/benchmark.py [FOLDER]

Run it twice: the second time nothing is computed, because every value is in the folder already.
"""

import sys
from pathlib import Path
from shutil import copy2

from aha.bench import Plan, Step, run, write_report
from aha.demo import photographs


def main(out: Path) -> int:
    images = out / "images"
    images.mkdir(parents=True, exist_ok=True)
    for path in photographs(["chelsea.png", "coffee.png"]):
        copy2(path, images)

    plan = Plan(
        model="demo:efficientnet_lite0",
        data=str(images),
        methods=("grad_cam", "center_map"),
        metrics=("ins_del(steps=5)",),
        batch_size=8,
        title="Two photographs",
    )
    steps: list[Step] = []
    run(plan, out / "study", on_step=steps.append)
    print(f"{sum(step.cells for step in steps)} values measured now")
    print(f"report: {write_report(out / 'study')}")
    return sum(step.cells for step in steps)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "benchmark"))

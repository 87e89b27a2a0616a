"""What the tests of benchmarks, and the processes they start, share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from aha.bench.store import read_cells
from aha.models import TargetModel, load_model
from fakes import CLASSES, SIZE, TinyCNN, randomised

TIMES = ("seconds", "picture", "made")


def tiny_model(**options: Any) -> TargetModel:
    settings: dict[str, Any] = {"input_size": SIZE, "mean": [0.5] * 3, "std": [0.5] * 3, "fit": "squash"}
    return load_model(randomised(TinyCNN()).eval(), batch_size=8, **{**settings, **options})


def make_data(folder: Path, count: int) -> Path:
    """Pictures, a mask each, and list.csv."""
    folder.mkdir(parents=True)
    lines = ["file,label,mask,x0,y0,x1,y1"]
    for index in range(count):
        pixels = np.random.default_rng(index).integers(0, 255, (44, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:02d}.png")
        mask = np.zeros((44, 50), dtype=np.uint8)
        mask[10:30, 10 + index : 30 + index] = 1
        Image.fromarray(mask).save(folder / f"{index:02d}.mask.bmp")
        lines.append(f"{index:02d}.png,{index % CLASSES},{index:02d}.mask.bmp,{10 + index},10,{30 + index},30")
    (folder / "list.csv").write_text("\n".join(lines))
    return folder


def plain(cell: dict[str, Any]) -> dict[str, Any]:
    """A cell without what differs from run to run: times, and where maps are kept."""
    kept = {name: value for name, value in cell.items() if name not in TIMES}
    kept["found"] = [{name: value for name, value in found.items() if name != "map"} for found in cell["found"]]
    return kept


def cells_of(run: Path) -> dict[str, dict[str, Any]]:
    return {cell["key"]: plain(cell) for cell in read_cells(run)}


def count_lines(run: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (run / "rows").glob("*.jsonl"))

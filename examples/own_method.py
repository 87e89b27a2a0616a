"""A method of your own: a frozen dataclass with one formula. Everything else is there already.

python examples/own_method.py [FOLDER]
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

import aha
from aha import Method, method
from aha.demo import photographs


@method("gradient_energy", family="gradient", needs={"gradients"}, citation="this example")
@dataclass(frozen=True)
class GradientEnergy(Method):
    """Squared input gradient, summed over channels and averaged over square cells.

    Attributes:
        cell: side of a cell in pixels.
    """

    cell: int = 16

    def __call__(self, model: aha.TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        energy = model.input_gradients(images, classes).square().sum(dim=1)  # (B, H, W)
        return F.avg_pool2d(energy[:, None], self.cell)[:, 0]  # (B, h, w); `explain` enlarges it


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model = aha.load_model("demo:efficientnet_lite0")
    (cat,) = photographs(["chelsea.png"])

    # Parameters are part of the text, and wrappers take the new method like any other.
    for name, text in {"cells": "gradient_energy(cell=32)", "smooth": "smooth(gradient_energy, n=4)"}.items():
        aha.explain(model, cat, text).overlay().save(out / f"{name}.png")

    methods = ["gradient_energy", "random_map"]
    print(aha.evaluate(model, cat, methods, "ins_del(steps=5)").to_markdown())


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "own_method"))

"""What does a map cost, in images that pass forwards and backwards through the model?

    python benchmarks/method_cost.py [src/aha/methods/cost.csv]

Each method with its default parameters, one random picture of 224 x 224, miniature networks with random weights: three
convolutions where its needs are met, a ViT with 16 x 16 patches otherwise. The counts hardly depend on the network, but
that of `score_cam` grows with the number of channels, and those of methods that stop early depend on the picture. `aha`
runs on the demo's model, whose explainer is part of the package. The head alone, which `ablation_cam` runs for every
channel, is not counted.
"""

from __future__ import annotations

import csv
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

import aha
from aha.methods import METHODS

INNER = {"smooth": "smooth(gradient)", "var": "var(grad_cam)"}
FIELDS = ("method", "text", "model", "forward", "backward")


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 8, stride=8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    ).eval()


def main(file: Path) -> None:
    warnings.simplefilter("ignore")  # flat maps of random networks
    networks = [
        aha.load_model(small_network(), input_size=224, mean=[0.5] * 3, std=[0.5] * 3),
        aha.load_model("timm:test_vit", pretrained=False, input_size=224),
    ]
    demo = aha.load_model("demo:efficientnet_lite0")
    picture = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(FIELDS)
        for name in METHODS:
            text = INNER.get(name, name)
            needs = aha.load_method(text).needs
            model = demo if name == "aha" else next(m for m in networks if needs <= m.capabilities)
            scores = aha.evaluate(model, picture, text, "cost")
            if scores.failures:
                print(f"{name}: {scores.failures[0].reason}")
                continue
            passes = (round(scores.values(text, f"{way}_images")[0]) for way in ("forward", "backward"))
            row = (name, text, model.spec, *passes)
            print(*row, flush=True)
            writer.writerow(row)
            out.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "src/aha/methods/cost.csv"))

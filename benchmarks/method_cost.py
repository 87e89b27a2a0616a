"""What does a map cost, in images that pass forwards and backwards through the model?

    python benchmarks/method_cost.py [docs/results/method_cost.csv]

Each method with its default parameters, one random picture of 224 x 224, miniature networks with random weights: a
ResNet where its needs are met, a ViT (16 x 16 patches) otherwise. The counts hardly depend on the weights, but those of
`score_cam` and `ablation_cam` grow with the number of channels, and those of methods that stop early depend on the
picture. `aha` runs on the demo's model, whose explainer is part of the package.
"""

from __future__ import annotations

import csv
import sys
import warnings
from pathlib import Path

import numpy as np

import aha
from aha.methods import METHODS

INNER = {"smooth": "smooth(gradient)", "var": "var(grad_cam)"}
FIELDS = ("method", "text", "model", "forward", "backward")


def main(file: Path) -> None:
    warnings.simplefilter("ignore")  # flat maps of random networks
    networks = [aha.load_model(f"timm:{name}", pretrained=False, img_size=224) for name in ("test_resnet", "test_vit")]
    demo = aha.load_model("demo:efficientnet_lite0")
    picture = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    rows = []
    for name in METHODS:
        text = INNER.get(name, name)
        needs = aha.load_method(text).needs
        model = demo if name == "aha" else next(m for m in networks if needs <= m.capabilities)
        scores = aha.evaluate(model, picture, text, "cost")
        if scores.failures:
            print(f"{name}: {scores.failures[0].reason}")
            continue
        forward, backward = (round(scores.values(text, column)[0]) for column in ("forward_images", "backward_images"))
        rows.append((name, text, model.spec, forward, backward))
        print(*rows[-1], flush=True)
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(FIELDS)
        writer.writerows(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results/method_cost.csv"))

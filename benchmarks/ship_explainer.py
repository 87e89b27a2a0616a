"""Puts a trained explainer into the package: averaged weights in half precision, with its response and its scores.

    python benchmarks/ship_explainer.py RUN/explainer --model timm:resnet18 --weights FILE --data pictures.csv

The response (how the model's score falls and rises along the order of pixels) and the scores are measured on pictures
of `--data`, which training must not have seen.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from aha.data.samples import find_samples
from aha.learned.calibration import mean_response
from aha.learned.engine import Engine
from aha.learned.explainer import Explainer
from aha.learned.library import SHIPPED
from aha.learned.settings import TrainConfig
from aha.learned.validation import mean_scores, validation_curves
from aha.models import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("explainer", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights")
    parser.add_argument("--data", required=True)
    parser.add_argument("--limit", type=int, default=48, help="pictures to measure on")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--precision", default="float32")
    given = parser.parse_args()
    model = load_model(given.model, weights=given.weights, precision=given.precision)
    explainer = Explainer.from_pretrained(given.explainer)
    explainer.check_target(model)
    samples = find_samples(given.data, model)
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0)).tolist()[: given.limit]
    config = TrainConfig(validation_steps=given.steps)
    curves = validation_curves(explainer, model, [samples[i] for i in order], config, Engine(model.device))
    scores = {name: round(value, 4) for name, value in mean_scores(curves, model).items()}
    explainer.config = replace(
        explainer.config,
        target=given.model,
        response=tuple(mean_response(*curves.unbind(dim=1))),
        scores={**scores, "photographs": len(curves), "steps": given.steps},
    )
    folder = explainer.save_pretrained(SHIPPED / model.digest, dtype=torch.float16)
    print(folder.name, scores, f"{sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

"""Puts a trained explainer into the package: averaged weights in half precision, with its response and its scores.

    python benchmarks/ship_explainer.py RUN/explainer --model timm:resnet18 --weights FILE --data pictures.csv
    python benchmarks/ship_explainer.py RUN/explainer --universal --model A --model B ... --data pictures.csv

The response (how the model's score falls and rises along the order of pixels) and the scores are measured on pictures
of `--data`, which training must not have seen. A universal explainer belongs to none of its models: their means are
noted.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import torch

from aha.data.samples import find_samples
from aha.learned.calibration import mean_response
from aha.learned.explainer import Explainer
from aha.learned.library import SHIPPED, UNIVERSAL
from aha.learned.settings import TrainConfig
from aha.learned.training.distributed import Engine
from aha.learned.training.validation import grad_cam_scores, mean_scores, validation_curves
from aha.models import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("explainer", type=Path)
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--weights", action="append")
    parser.add_argument("--universal", action="store_true")
    parser.add_argument("--data", required=True)
    parser.add_argument("--limit", type=int, default=48, help="pictures to measure on")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--precision", default="float32")
    given = parser.parse_args()
    files = given.weights or repeat(None, len(given.model))
    models = [
        load_model(name, weights=file, precision=given.precision) for name, file in zip(given.model, files, strict=True)
    ]
    explainer = Explainer.from_pretrained(given.explainer)
    if given.universal:
        explainer.config = replace(explainer.config, target_digest="", preprocessing={})
    explainer.check_target(models[0])
    samples = find_samples(given.data, models[0])
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0)).tolist()[: given.limit]
    chosen, config = [samples[i] for i in order], TrainConfig(validation_steps=given.steps)
    engine = Engine(models[0].device)
    curves = [validation_curves(explainer, model, chosen, config, engine) for model in models]
    cams = [grad_cam_scores(model, chosen, config, engine).mean() for model in models]
    scores = {**mean_scores(curves, models), "grad_cam": float(torch.stack(cams).mean()), "steps": given.steps}
    explainer.config = replace(
        explainer.config,
        target=" + ".join(name.rpartition(":")[2] if given.universal else name for name in given.model),
        response=tuple(mean_response(*torch.cat(curves).unbind(dim=1))),
        scores={name: round(value, 4) for name, value in scores.items()},
    )
    place = SHIPPED / UNIVERSAL / explainer.config.form if given.universal else SHIPPED / models[0].digest
    folder = explainer.save_pretrained(place, dtype=torch.float16)
    print(folder.name, scores, f"{sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()

"""The study behind `docs/results`: many methods on three real models, in stages from cheap to expensive.

    python benchmarks/study.py resnet18 --weights resnet18.safetensors --data val.csv --out RUN [--stage NAME]...

Deletion, Insertion and Ins-Del with hard pixel masks, mean of black, mean colour and blur, predicted class. A stage is
a list of methods and a number of images. The images are a seeded choice, a smaller one being part of a larger one, so
that methods are compared on common images. The same command continues an interrupted stage; `study_pages.py` beside
this file makes the pages.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from aha.bench import Plan, run

MODELS = {
    "resnet18": "timm:resnet18",
    "efficientnet_lite0": "timm:tf_efficientnet_lite0",
    "clip_vit_b16": "timm:vit_base_patch16_clip_quickgelu_224",
}
STEPS = {"resnet18": 8, "efficientnet_lite0": 8, "clip_vit_b16": 4}


@dataclass(frozen=True)
class Stage:
    """Methods that are judged on the same number of images."""

    images: int
    methods: tuple[str, ...]


CNN = {
    "first": Stage(
        200,
        (
            "grad_cam",
            "layer_cam",
            "finer_cam",
            "input_x_gradient",
            "lrp",
            "center_map",
            "random_map",
            "var(grad_cam)",
            "var(layer_cam)",
            "aha",
            "aha(refine=3)",
        ),
    ),
    "second": Stage(
        200,
        (
            "grad_cam_pp",
            "eigen_cam",
            "hires_cam",
            "guided_backprop",
            "guided_grad_cam",
            "gradient",
            "smooth(gradient)",
            "integrated_gradients(steps=20)",
            "gradient_shap",
            "edge_map",
            "var(input_x_gradient)",
            "var(lrp)",
            "var(aha)",
            "caap",
        ),
    ),
    "slow": Stage(
        100,
        (
            "simple_insertion",
            "simple_deletion",
            "ablation_cam",
            "score_cam",
            "rise(n=500)",
            "lime(n=300)",
            "kernel_shap(n=500)",
            "shapley_sampling",
            "occlusion",
            "mda(grid=7)",
            "mda(screen=4)",
        ),
    ),
}
VIT = {
    "first": Stage(
        200,
        (
            "grad_cam",
            "legrad",
            "attention_ig(steps=5)",
            "aha",
            "aha(refine=3, steps=4, learning_rate=0.003)",
            "center_map",
            "random_map",
        ),
    ),
    "second": Stage(
        200,
        (
            "raw_attention",
            "rollout",
            "grad_rollout",
            "transformer_attribution",
            "transition_attention(steps=5)",
            "bidirectional(steps=5)",
            "inflow",
            "attcat",
            "ixg_plus",
            "libra_ixg_plus",
            "input_x_gradient",
            "finer_cam",
            "var(grad_cam)",
            "var(legrad)",
            "var(aha)",
            "caap",
            "edge_map",
        ),
    ),
    "slow": Stage(100, ("tis(masks=128)", "vit_cx", "mda(grid=7)", "mutex", "rise(n=128)")),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stage", action="append", choices=("first", "second", "slow"))
    parser.add_argument("--precision", default="float32")
    args = parser.parse_args()
    stages, steps = VIT if args.model == "clip_vit_b16" else CNN, STEPS[args.model]
    for name in args.stage or stages:
        stage = stages[name]
        plan = Plan(
            model=MODELS[args.model],
            weights=str(args.weights),
            data=args.data,
            methods=stage.methods,
            metrics=tuple(f"{metric}(steps={steps})" for metric in ("deletion", "insertion", "ins_del")),
            limit=stage.images,
            precision=args.precision,
            batch_size=8,
        )
        run(plan, args.out)


if __name__ == "__main__":
    main()

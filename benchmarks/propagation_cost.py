"""What the methods that propagate something through the model cost, in forward plus backward passes of the model.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive python benchmarks/propagation_cost.py \
        [--model timm:resnet18] [--weights FILE] [--batch 1 8] [--rounds 3] [--only METHOD ...]

Prints Markdown tables of ratios.

1. Each gradient, relevance, CAM and attention method that fits the model, over one bare forward and backward pass of
   the same batch down to the input. Methods that take many steps by design take four.
2. `var(METHOD)` over five classes, against five separate explanations by the same method.

What is compared runs in turns in one process, and a ratio is the median over the rounds: a busy machine disturbs both
sides alike. Methods are called as such: choosing the class and enlarging the map is not part of it. Without weights the
model has random ones; costs are the same.
"""

from __future__ import annotations

import argparse
import warnings
from functools import partial

import torch
from evaluate_cost import costs_in_turns, ratio, table
from torch import Tensor, nn

import aha
from aha.methods import METHODS, Method, load_method
from aha.models import TargetModel

FAMILIES = ("gradient", "cam", "attention")
STEPS = ("steps", "n")  # names of the parameters that multiply a method's passes
FEW_STEPS = {  # the cost of these is in proportion to their steps
    "integrated_gradients": "integrated_gradients(steps=4)",
    "gradient_shap": "gradient_shap(n=4)",
    "attention_ig": "attention_ig(steps=4)",
    "transition_attention": "transition_attention(steps=4)",
    "bidirectional": "bidirectional(steps=4)",
}
SHARED = ("gradient", "grad_cam", "layer_cam", "lrp", "legrad", "grad_rollout", "transformer_attribution")
ASK_OFTEN = {"score_cam", "ablation_cam", "mutex"}  # see perturbation_cost.py
CLASSES = 5


def bare(module: nn.Module, images: Tensor, classes: Tensor) -> None:
    """One forward and one backward pass down to the input, as one would write it."""
    leaf = images.clone().requires_grad_()
    torch.autograd.grad(module(leaf).gather(1, classes[:, None]).sum(), leaf)


def candidates(model: TargetModel, only: list[str]) -> list[Method]:
    """The methods of these families that fit the model."""
    names = only or [name for name in METHODS if METHODS[name].family in FAMILIES and name not in ASK_OFTEN]
    methods = [load_method(FEW_STEPS.get(name, name)) for name in names]
    return [method for method in methods if method.needs <= model.capabilities]


def number_of_steps(method: Method) -> object:
    return next((getattr(method, name) for name in STEPS if hasattr(method, name)), 1)


def over_bare(model: TargetModel, methods: list[Method], batch: int, rounds: int) -> None:
    """One table: each method over a bare pass of the same batch."""
    images, classes = examples(model, batch)
    plain = partial(bare, model.module, images, classes)
    rows: list[list[object]] = []
    for method in methods:
        found = costs_in_turns({"method": partial(method, model, images, classes), "bare": plain}, rounds)
        rows.append([f"`{method.name}`", number_of_steps(method), ratio(found["method"], found["bare"]).cpu])
    table(["method", "steps", f"batch of {batch}"], rows)


def var_over_separate(model: TargetModel, methods: list[Method], rounds: int) -> None:
    """`var` of one image over `CLASSES` classes, against as many single explanations."""
    images, _ = examples(model, 1)
    rows: list[list[object]] = []
    for method in methods:
        contrast = load_method(f"var({method}, classes={list(range(CLASSES))})")

        def separate(method: Method = method) -> None:
            for label in range(CLASSES):
                method(model, images, torch.tensor([label]))

        works = {"var": partial(contrast, model, images, torch.tensor([0])), "separate": separate}
        found = costs_in_turns(works, rounds)
        rows.append([f"`var({method})`", ratio(found["var"], found["separate"]).cpu])
    table(["method", f"over {CLASSES} explanations"], rows)


def examples(model: TargetModel, batch: int) -> tuple[Tensor, Tensor]:
    shape = (batch, 3, *model.stated_preprocessing().size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)), torch.arange(batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="timm:resnet18")
    parser.add_argument("--weights")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=[], help="methods")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", aha.AhaWarning)  # an untrained network may have nothing to say
    model = aha.load_model(options.model, weights=options.weights, pretrained=options.weights is not None, device="cpu")
    methods = candidates(model, options.only)
    print(f"{options.model}, {options.rounds} rounds, one thread, CPU time over one bare forward and backward pass\n")
    for batch in options.batch:
        over_bare(model, methods, batch, options.rounds)
    var_over_separate(model, [method for method in methods if method.name in SHARED], options.rounds)


if __name__ == "__main__":
    main()

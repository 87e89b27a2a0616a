"""Every registered method beside every miniature model: what the contract tests run over."""

from __future__ import annotations

from dataclasses import MISSING, fields

from torch import nn

from aha.methods import METHODS, Method, load_method
from aha.models import load_model
from fakes import BUILDERS, SIZE

# Methods that cannot run here with their defaults, or take long: how to write one that can.
# A few samples instead of thousands, and a reference that plain modules without stated preprocessing can have.
EXAMPLES: dict[str, str] = {
    "gradient_shap": "gradient_shap(n=4)",
    "rise": "rise(n=40)",
    "extremal_perturbation": "extremal_perturbation(areas=(0.1, 0.3), steps=4, reference=zeros_normalised)",
    "lime": "lime(n=40, parts=patches(grid=4))",
    "kernel_shap": "kernel_shap(n=40, parts=patches(grid=4))",
    "shapley_sampling": "shapley_sampling(orders=2, parts=patches(grid=4))",
    "caap": "caap(reference=zeros_normalised)",
    "mda": "mda(insertion=zeros_normalised, deletion=zeros_normalised)",
    "simple_insertion": "simple_insertion(grid=4, reference=zeros_normalised)",
    "simple_deletion": "simple_deletion(grid=4, reference=zeros_normalised)",
    "search": "search(parts=patches(grid=4), reference=zeros_normalised, budget=90)",
}


def example(name: str) -> Method:
    """The method with its defaults; what has none is an inner method."""
    if name in EXAMPLES:
        return load_method(EXAMPLES[name])
    needed = [f for f in fields(METHODS[name]) if f.default is MISSING and f.default_factory is MISSING]
    return load_method(f"{name}({', '.join('gradient' for _ in needed)})" if needed else name)


def is_random(method: Method) -> bool:
    return any(field.name == "seed" for field in fields(method))


def fits(method: Method, model: nn.Module) -> bool:
    return method.needs <= load_model(model).structure((SIZE, SIZE)).capabilities


PAIRS = [(example(name), kind) for name in METHODS for kind in BUILDERS]
FITTING = [(method, kind) for method, kind in PAIRS if fits(method, BUILDERS[kind]()[0])]
MISFITS = [pair for pair in PAIRS if pair not in FITTING]


def label(pair: tuple[Method, str]) -> str:
    return f"{pair[0].name}-{pair[1]}"

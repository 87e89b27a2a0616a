"""Aha shows which pixels an image classifier really relies on."""

from importlib import import_module
from typing import TYPE_CHECKING

from aha.errors import AhaError, AhaWarning

if TYPE_CHECKING:
    from aha import targets
    from aha.api import explain, explain_batches
    from aha.bench.recommend import recommend
    from aha.evaluation.evaluate import evaluate
    from aha.learned.explainer import Explainer
    from aha.learned.training import train
    from aha.methods import Method, list_methods, load_method
    from aha.models import TargetModel, load_model
    from aha.results.explanation import Explanation
    from aha.results.explanations import Explanations
    from aha.results.score_table import Scores

__version__ = "0.1.0"

__all__ = [
    "AhaError",
    "AhaWarning",
    "Explainer",
    "Explanation",
    "Explanations",
    "Method",
    "Scores",
    "TargetModel",
    "__version__",
    "evaluate",
    "explain",
    "explain_batches",
    "list_methods",
    "load_method",
    "load_model",
    "recommend",
    "targets",
    "train",
]

# Loaded at first use: importing torch takes seconds, and `aha --help` needs none of it.
_HOMES = {
    "Explainer": "aha.learned.explainer",
    "Explanation": "aha.results.explanation",
    "Explanations": "aha.results.explanations",
    "Method": "aha.methods",
    "Scores": "aha.results.score_table",
    "TargetModel": "aha.models",
    "evaluate": "aha.evaluation.evaluate",
    "explain": "aha.api",
    "explain_batches": "aha.api",
    "list_methods": "aha.methods",
    "load_method": "aha.methods",
    "load_model": "aha.models",
    "recommend": "aha.bench.recommend",
    "train": "aha.learned.training",
}

if not TYPE_CHECKING:  # type checkers would take it as a promise of any name

    def __getattr__(name: str) -> object:
        if name == "targets":
            return import_module("aha.targets")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Aha shows which pixels an image classifier really relies on.

Public is what `__all__` names here and in `aha.targets`, `aha.bench`, `aha.interop`, `aha.interop.ray`, `aha.demo` and
`aha.errors`; docs/reference lists exactly that. Everything else is inside, and may change without notice.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from aha.errors import AhaError, AhaWarning

if TYPE_CHECKING:
    from aha import bench, demo, interop, targets
    from aha.api import explain, explain_batches
    from aha.auditing.audit import Audit
    from aha.auditing.run import audit
    from aha.bench.plan import Plan
    from aha.bench.recommendation.recommend import recommend
    from aha.bench.recommendation.result import Recommendation
    from aha.evaluation.evaluate import evaluate
    from aha.learned.explainer import Explainer
    from aha.learned.export import export_onnx
    from aha.learned.settings import TrainConfig, load_settings
    from aha.learned.training.loop import train
    from aha.methods import Method, list_methods, load_method, method
    from aha.models import TargetModel, load_model
    from aha.perturb.references import load_reference
    from aha.results.cards import Card
    from aha.results.explanation import Explanation
    from aha.results.explanations import Explanations, shared_scale
    from aha.results.score_table import Scores

__version__ = "0.1.0"

__all__ = [
    "AhaError",
    "AhaWarning",
    "Audit",
    "Card",
    "Explainer",
    "Explanation",
    "Explanations",
    "Method",
    "Plan",
    "Recommendation",
    "Scores",
    "TargetModel",
    "TrainConfig",
    "__version__",
    "audit",
    "bench",
    "demo",
    "evaluate",
    "explain",
    "explain_batches",
    "export_onnx",
    "interop",
    "list_methods",
    "load_method",
    "load_model",
    "load_reference",
    "load_settings",
    "method",
    "recommend",
    "shared_scale",
    "targets",
    "train",
]

_MODULES = ("bench", "demo", "interop", "targets")

# Loaded at first use: importing torch takes seconds, and `aha --help` needs none of it.
_HOMES = {
    "Card": "aha.results.cards",
    "Explainer": "aha.learned.explainer",
    "Explanation": "aha.results.explanation",
    "Explanations": "aha.results.explanations",
    "Method": "aha.methods",
    "Plan": "aha.bench.plan",
    "Recommendation": "aha.bench.recommendation.result",
    "Scores": "aha.results.score_table",
    "TargetModel": "aha.models",
    "TrainConfig": "aha.learned.settings",
    "Audit": "aha.auditing.audit",
    "audit": "aha.auditing.run",
    "evaluate": "aha.evaluation.evaluate",
    "explain": "aha.api",
    "explain_batches": "aha.api",
    "export_onnx": "aha.learned.export",
    "list_methods": "aha.methods",
    "load_method": "aha.methods",
    "load_model": "aha.models",
    "load_reference": "aha.perturb.references",
    "load_settings": "aha.learned.settings",
    "method": "aha.methods",
    "recommend": "aha.bench.recommendation.recommend",
    "shared_scale": "aha.results.explanations",
    "train": "aha.learned.training.loop",
}

if not TYPE_CHECKING:  # type checkers would take it as a promise of any name

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"aha.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

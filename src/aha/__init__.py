"""Aha shows which pixels an image classifier really relies on."""

from aha.api import explain, explain_batches
from aha.errors import AhaError, AhaWarning
from aha.explanation import Explanation
from aha.methods import Method, list_methods, load_method
from aha.models import TargetModel, load_model

__version__ = "0.1.0"

__all__ = [
    "AhaError",
    "AhaWarning",
    "Explanation",
    "Method",
    "TargetModel",
    "__version__",
    "explain",
    "explain_batches",
    "list_methods",
    "load_method",
    "load_model",
]

"""The only code that knows model internals."""

from aha.models.blocks import Block, BlockStates
from aha.models.load import AnyModel, load_model, loads_its_model
from aha.models.sources import list_sources, refuse_code
from aha.models.target import TargetModel
from aha.models.tracing import NOTHING, Captures, Trace

__all__ = [
    "NOTHING",
    "AnyModel",
    "Block",
    "BlockStates",
    "Captures",
    "TargetModel",
    "Trace",
    "list_sources",
    "load_model",
    "loads_its_model",
    "refuse_code",
]

"""The only code that knows model internals."""

from aha.models.loading.load import AnyModel, load_model, loads_its_model
from aha.models.loading.sources import list_sources, refuse_code
from aha.models.running.blocks import Block, BlockStates
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

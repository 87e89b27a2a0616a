"""What is explained: a class, a contrast, a region, a box, a similarity, a value, a neuron, or a function of one's own.

Each has a text, `region(cls=12)`, which the command line, plans, manifests and keys take and carry.
"""

from aha.targets.base import OBJECTIVES, Objective, Shown, read_target
from aha.targets.boxes import Box
from aha.targets.classes import Contrast, Logit, LogOdds, Probability, Value
from aha.targets.embeddings import Similarity, embedding
from aha.targets.regions import Region
from aha.targets.units import Neuron

contrast, logit, log_odds, probability, value = Contrast, Logit, LogOdds, Probability, Value
box, neuron, region, similarity = Box, Neuron, Region, Similarity

__all__ = [
    "OBJECTIVES",
    "Objective",
    "Shown",
    "box",
    "contrast",
    "embedding",
    "log_odds",
    "logit",
    "neuron",
    "probability",
    "read_target",
    "region",
    "similarity",
    "value",
]

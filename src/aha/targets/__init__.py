"""What is explained: a class, a contrast, a region, a box, a similarity, a value, a neuron, or a function of one's own.

Each has a text, `region(cls=12)`, which the command line, plans, manifests and keys take and carry.
"""

from aha.targets.boxes import Box as box
from aha.targets.classes import Contrast as contrast
from aha.targets.classes import Logit as logit
from aha.targets.classes import LogOdds as log_odds
from aha.targets.classes import Output as value
from aha.targets.classes import Probability as probability
from aha.targets.embeddings import Similarity as similarity
from aha.targets.embeddings import embedding
from aha.targets.regions import Region as region
from aha.targets.units import Neuron as neuron

__all__ = [
    "box",
    "contrast",
    "embedding",
    "log_odds",
    "logit",
    "neuron",
    "probability",
    "region",
    "similarity",
    "value",
]

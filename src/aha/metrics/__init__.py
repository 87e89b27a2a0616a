"""Metrics, one file each: importing it registers the metric, so a new one is one file and one line here."""

from aha.metrics import cost  # noqa: F401
from aha.metrics.base import ARROWS, METRICS, Metric, Pooled, Value, directions, load_metric, metric, side_columns
from aha.metrics.case import Case, Perturbation, Sample
from aha.metrics.curves import (  # noqa: F401
    average_drop,
    confidence_increase,
    deletion,
    ins_del,
    insertion,
    mas,
    monotonicity,
    neg_pos,
    negative,
    positive,
    road,
    srg,
)
from aha.metrics.information import information_curve, sparseness  # noqa: F401
from aha.metrics.localisation import (  # noqa: F401
    aupr,
    border_mass,
    earth_movers_distance,
    energy_in_box,
    grid_pointing,
    mass_in_truth,
    pointing_game,
    precision_at_k,
    region,
    segmentation,
    text_mass,
)
from aha.metrics.sanity import answer_stability, class_sensitivity, randomisation, repeatability, stability  # noqa: F401
from aha.metrics.single_parts import fidelity_bounded, saco, single_deletion  # noqa: F401

__all__ = [
    "ARROWS",
    "METRICS",
    "Case",
    "Metric",
    "Perturbation",
    "Pooled",
    "Sample",
    "Value",
    "directions",
    "load_metric",
    "metric",
    "side_columns",
]

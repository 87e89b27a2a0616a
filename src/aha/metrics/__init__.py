"""Metrics, one file each: importing it registers the metric, so a new one is one file and one line here."""

from aha.metrics import (  # noqa: F401  # for the sake of what they register
    aupr,
    average_drop,
    class_sensitivity,
    confidence_increase,
    cost,
    deletion,
    energy_in_box,
    fidelity_bounded,
    grid_pointing,
    information_curve,
    ins_del,
    insertion,
    mas,
    monotonicity,
    neg_pos,
    negative,
    pointing_game,
    positive,
    randomisation,
    region,
    road,
    saco,
    segmentation,
    single_deletion,
    sparseness,
    srg,
    stability,
)
from aha.metrics.base import ARROWS, METRICS, Metric, Pooled, Value, directions, load_metric, metric, side_columns
from aha.metrics.case import Case, Perturbation, Sample

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

"""Metrics, one file each: importing it registers the metric, so a new one is one file and one line here."""

from aha.metrics import (
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
)
from aha.metrics.base import ARROWS, METRICS, Metric, Value, directions, load_metric, metric
from aha.metrics.case import Case, Perturbation, Sample

__all__ = [
    "ARROWS",
    "METRICS",
    "Case",
    "Metric",
    "Perturbation",
    "Sample",
    "Value",
    "average_drop",
    "confidence_increase",
    "deletion",
    "directions",
    "ins_del",
    "insertion",
    "load_metric",
    "mas",
    "metric",
    "monotonicity",
    "neg_pos",
    "negative",
    "positive",
]

"""Attribution methods, one file each: importing it registers the method, so a new one is one file and one line here."""

from aha.methods import (
    caap,
    center_map,
    edge_map,
    grad_cam,
    gradient,
    hires_cam,
    input_x_gradient,
    integrated_gradients,
    legrad,
    mda,
    random_map,
    raw_attention,
    rollout,
    smooth,
)
from aha.methods.base import METHODS, Method, check_fit, list_methods, load_method, method

__all__ = [
    "METHODS",
    "Method",
    "caap",
    "center_map",
    "check_fit",
    "edge_map",
    "grad_cam",
    "gradient",
    "hires_cam",
    "input_x_gradient",
    "integrated_gradients",
    "legrad",
    "list_methods",
    "load_method",
    "mda",
    "method",
    "random_map",
    "raw_attention",
    "rollout",
    "smooth",
]

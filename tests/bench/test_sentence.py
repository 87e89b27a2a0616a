"""The sentence of a recommendation says what the numbers say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from aha.bench.recommendation.sentence import sentence
from aha.bench.recommendation.standings import Standing


def standing(
    method: str, mean: float, behind: float, seconds: float, passes: float, p: float = 0.001, **checks: float
) -> Standing:
    error = math.nan if math.isnan(behind) else 0.01
    return Standing(method, 16, mean, mean - 0.02, mean + 0.02, 16, behind, error, p, seconds, passes, checks)


BEST = standing("rise", 0.5, math.nan, 1.6, 4000, stability=0.8, **{"class": 0.1})
CAM = standing("grad_cam", 0.4, -0.1, 0.0132, 2, stability=0.9, **{"class": 0.2})
LRP = standing("lrp", 0.35, -0.15, 0.3, 2, stability=0.2, **{"class": -0.6})
GRADIENT = standing("gradient", 0.1, -0.4, 0.02, 2, stability=0.5, **{"class": 0.3})


def test_it_names_the_best_its_lead_and_what_is_fast_enough() -> None:
    found = sentence([BEST, CAM, GRADIENT])
    assert found.startswith(
        "Use rise: grad_cam, the runner-up, is 0.100 ± 0.010 Ins-Del behind, 2000 times cheaper (n = 16"
    )
    assert "grad_cam if you need a map in under 20 ms (rise takes 1.6 s)" in found
    assert "disagree" not in found, "three methods are too few to say so"


def test_time_counts_not_passes() -> None:
    slow = standing("lrp", 0.5, math.nan, 1.0, 2)
    assert "grad_cam if you need a map in under 20 ms" in sentence([slow, CAM]), (
        "as many passes, a fraction of the time"
    )
    assert "if you need" not in sentence([CAM, LRP])


def test_it_says_why_metrics_disagree() -> None:
    found = sentence([BEST, CAM, LRP, GRADIENT])
    assert found.endswith(
        "the metrics disagree about lrp: its maps change more with the class than other methods' do (rank "
        "correlation -0.60, median of the others 0.20), but its maps change more under noise (rank correlation 0.20, "
        "median of the others 0.80)."
    )

    noisier = replace(GRADIENT, checks={"stability": 0.1, "class": -0.9})
    assert "disagree about grad_cam" in sentence([BEST, CAM, LRP, noisier]), "the best one of those that are disputed"
    bump = standing("center_map", 0.2, -0.3, 0.0, 0, stability=1.0, **{"class": 1.0})
    assert found == sentence([BEST, CAM, LRP, GRADIENT, bump]), "what knows nothing of the model is no measure"


@pytest.mark.parametrize(
    "seconds, limit", [(0.0009, "1 ms"), (0.02, "20 ms"), (0.021, "50 ms"), (0.051, "100 ms"), (0.6, "1.0 s")]
)
def test_limits_are_round_and_not_below_what_was_measured(seconds: float, limit: str) -> None:
    fast = standing("grad_cam", 0.4, -0.1, seconds, 2)
    slow = standing("rise", 0.5, math.nan, 60.0, 4000)
    assert f"grad_cam if you need a map in under {limit} (" in sentence([slow, fast])


def test_what_knows_nothing_of_the_model_is_no_advice() -> None:
    bump = standing("center_map", 0.5, math.nan, 0.0, 0)
    assert sentence([bump, CAM]).startswith("No method beats center_map, which ignores the model, on 16 images")


def test_beside_nothing_but_baselines_it_is_said_without_a_median() -> None:
    bumps = [
        standing(name, 0.1, -0.3, 0.0, 0, stability=0.9, **{"class": 0.1})
        for name in ("center_map", "edge_map", "random_map")
    ]
    alone = standing("grad_cam", 0.4, math.nan, 0.01, 2, stability=0.2, **{"class": 0.5})
    assert "disagree about grad_cam" in sentence([alone, *bumps]) and "median" not in sentence([alone, *bumps])

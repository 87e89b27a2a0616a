"""Precision at k, mass in truth and earth mover's distance against direct answers."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from aha.metrics.localisation.earth_movers_distance import transport_cost
from aha.metrics.localisation.precision_at_k import precision_at


def test_transport_is_the_best_assignment_of_equal_parts() -> None:
    numbers = np.random.default_rng(0)
    for _ in range(5):
        places = numbers.random((8, 2))
        mass, goal = np.zeros(8), np.zeros(8)
        mass[:4], goal[4:] = 0.25, 0.25
        costs = np.linalg.norm(places[:4, None] - places[None, 4:], axis=-1)
        best = min(sum(costs[i, j] for i, j in enumerate(order)) for order in permutations(range(4))) / 4
        assert transport_cost(mass, goal, places) == pytest.approx(best)


def test_transport_on_a_line_is_the_area_between_the_distributions() -> None:
    numbers = np.random.default_rng(1)
    mass, goal = numbers.dirichlet(np.ones(6)), numbers.dirichlet(np.ones(6))
    line = np.stack([np.arange(6.0), np.zeros(6)], axis=1)
    assert transport_cost(mass, goal, line) == pytest.approx(np.abs(np.cumsum(mass - goal)).sum())
    assert transport_cost(goal, goal, line) == 0


def test_precision_counts_ties_in_part() -> None:
    truth = torch.tensor([True, True, False, False])
    assert precision_at(torch.tensor([3.0, 1.0, 2.0, 0.0]), truth, 2) == 0.5
    assert precision_at(torch.ones(4), truth, 2) == 0.5  # chance
    assert precision_at(torch.tensor([2.0, 1.0, 1.0, 1.0]), truth, 2) == pytest.approx((1 + 1 / 3) / 2)

"""Headroom: by hand on made-up scores, and wherever scores are shown."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import aha
from aha.metrics.curves.base import AVERAGE
from aha.models import load_model
from aha.results.headroom import headroom_of, is_oracle, oracle_of, worst_tenth
from aha.results.score_table import Row, Scores
from fakes import SIZE, TinyCNN, randomised

SMALL, LARGE = "search(budget=200)", "search(budget=900)"


def test_the_search_with_the_largest_budget_is_the_measure() -> None:
    assert oracle_of(["grad_cam", LARGE, SMALL, "search(no_such_thing=1)"]) == LARGE
    assert oracle_of([SMALL, "search(budget=2000, objective='deletion')"]) == SMALL
    assert oracle_of(["grad_cam"]) is None
    assert is_oracle(SMALL) and not is_oracle("mda")


def test_it_is_the_way_from_random_to_the_oracle() -> None:
    a, b, c = ("a", 0), ("b", 0), ("c", 0)
    found = headroom_of(
        {
            "random_map": {a: 0.1, b: 0.0, c: 0.2},
            "grad_cam": {a: 0.3, b: -0.1, c: 0.2},
            LARGE: {a: 0.5, b: 0.4, c: 0.21},
        }
    )
    assert found is not None and found.oracle == LARGE
    assert found.shares == {"grad_cam": {a: pytest.approx(0.5), b: pytest.approx(-0.25)}}  # c has no room


def test_without_a_measure_there_is_none() -> None:
    assert headroom_of({"grad_cam": {("a", 0): 1.0}, "random_map": {("a", 0): 0.0}}) is None
    assert headroom_of({"grad_cam": {("a", 0): 1.0}, LARGE: {("a", 0): 0.0}}) is None


def test_the_worst_tenth_has_at_least_one_image() -> None:
    shares = {(str(i), 0): float(-i) for i in range(25)}
    assert [name for name, _ in worst_tenth(shares)] == ["24", "23"]
    assert len(worst_tenth({("a", 0): 0.0, ("b", 0): 1.0})) == 1


def made_up(images: int) -> Scores:
    scores = Scores(model="made up")
    for i in range(images):
        values = {"random_map": 0.0, "grad_cam": 0.2 + 0.01 * i, LARGE: 0.5}
        for method, value in values.items():
            for reference, shift in (("black", -0.1), ("blur", 0.1), (AVERAGE, 0.0)):
                scores.rows.append(Row(f"{i}.jpg", method, "ins_del", "quick", 3, reference, value + shift))
    return scores


def test_tables_have_it_with_its_tail_and_the_budget_of_the_oracle() -> None:
    scores = made_up(20)
    summary = {(row.method, row.metric): row for row in scores.summary() if row.metric.startswith("headroom")}
    assert set(summary) == {("grad_cam", "headroom"), ("grad_cam", "headroom_worst_tenth")}
    mean, tail = summary["grad_cam", "headroom"], summary["grad_cam", "headroom_worst_tenth"]
    assert mean.reference == LARGE and mean.n == 20
    assert mean.mean == pytest.approx((0.2 + 0.01 * 9.5) / 0.5)
    assert tail.n == 2 and tail.mean == pytest.approx((0.2 + 0.005) / 0.5) and math.isnan(tail.standard_error)
    assert f"headroom ({LARGE}) ↑" in scores.to_markdown()


def test_an_evaluation_and_a_card_say_the_same(images: Tensor) -> None:
    model = load_model(randomised(TinyCNN()).double(), input_size=SIZE, mean=(0.5,) * 3, std=(0.25,) * 3)
    oracle = "search(parts=patches(grid=4), budget=300)"
    inputs = images[2:3].double()
    scores = aha.evaluate(model, inputs, ["grad_cam", "random_map", oracle], "ins_del(steps=20)")
    (row,) = scores.headroom()
    card = aha.explain(model, inputs, "grad_cam", card=True, oracle=oracle).cards[0]
    assert card.headroom == pytest.approx(row.value, abs=1e-4)
    assert oracle in card.sentence and "of the way there" in card.sentence
    assert aha.explain(model, inputs, "grad_cam", card=True).cards[0].headroom is None


def test_a_search_measures_and_does_not_win() -> None:
    from aha.bench.reporting.tables import summary_tables, verdict
    from aha.bench.run_reader import Group

    group = Group("made up", "0" * 12, "top1", made_up(12))
    found = verdict(group)
    assert found is not None and found.best == "grad_cam" and found.others == 1
    (table,) = summary_tables(group)
    assert table.rows[LARGE]["ins_del", AVERAGE].rank == 0
    assert table.rows["grad_cam"]["headroom", LARGE].mean == pytest.approx((0.2 + 0.055) / 0.5)
    assert table.rows["grad_cam"]["headroom_worst_tenth", ""].n == 1
    assert torch.isnan(torch.tensor(table.rows[LARGE]["ins_del", AVERAGE].p))

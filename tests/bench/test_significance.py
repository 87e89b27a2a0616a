"""What may be called more than chance."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from aha.bench.recommendation.record import Race
from aha.bench.recommendation.sentence import sentence
from aha.bench.recommendation.standings import scores_by, standings_of
from aha.bench.reporting.significance import holm, paired_p
from aha.bench.reporting.tables import against_best, summary_tables, verdict
from aha.bench.run_reader import Group
from aha.metrics.curves.base import AVERAGE
from aha.results.score_table import Row, Scores

Values = dict[str, dict[tuple[str, int], float]]


def column(**methods: list[float]) -> Values:
    """One value for each image; NaN where a method has none."""
    return {
        method: {(f"{i}.png", 0): value for i, value in enumerate(values) if not math.isnan(value)}
        for method, values in methods.items()
    }


def group_of(values: Values) -> Group:
    protocol = "ins_del(steps=10)"
    rows = [
        Row(image, method, "ins_del", protocol, label, AVERAGE, value)
        for method, own in values.items()
        for (image, label), value in own.items()
    ]
    return Group("model", "digest", "top1", Scores(rows))


@pytest.mark.parametrize("n", [2, 3, 4, 20])
def test_equal_differences_are_judged_by_their_number(n: int) -> None:
    """Without a variance Student's test says nothing; the sign test does."""
    expected = float(stats.binomtest(n, n).pvalue)
    assert paired_p([0.1] * n) == pytest.approx(expected)
    assert paired_p([-1 / 3 + 1e-16 * i for i in range(n)]) == pytest.approx(expected), "up to rounding"
    assert paired_p([0.0] * n) == 1.0


def test_the_choice_of_the_best_is_allowed_for() -> None:
    """As if all pairs had been looked at, by scipy's own test and Holm's correction written out."""
    generator = np.random.default_rng(3)
    values = column(**{f"m{k}": (generator.normal(0.1 * k, 1, 12)).tolist() for k in range(4)})
    order = sorted(values, key=lambda method: -sum(values[method].values()))
    pairs = {
        pair: float(stats.ttest_rel(*([*values[m].values()] for m in pair)).pvalue) for pair in combinations(order, 2)
    }
    least, expected = 0.0, {}
    for place, pair in enumerate(sorted(pairs, key=lambda pair: pairs[pair])):
        expected[pair] = least = max(least, min(1.0, pairs[pair] * (6 - place)))
    found = against_best(values, order, order)
    assert {m: gap.p for m, gap in found.items()} == pytest.approx({m: expected[order[0], m] for m in order[1:]})
    few = against_best(values, order, order[:1])
    only = holm({m: pairs[order[0], m] for m in order[1:]})
    assert {m: gap.p for m, gap in few.items()} == pytest.approx(only), "where only one could have been the best"


def test_the_best_of_many_alike_is_not_called_better() -> None:
    """Of thirty methods that are all the same but for noise, the luckiest is ahead of the unluckiest by chance."""
    wrong = 0
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(0, 1, (30, 10))
        values = column(**{f"m{k}": row.tolist() for k, row in enumerate(noise)})
        order = sorted(values, key=lambda method: -sum(values[method].values()))
        wrong += any(gap.p < 0.05 for gap in against_best(values, order, order).values())
    assert wrong <= 5, "one in twenty is allowed"


def test_methods_without_images_in_common_are_not_compared() -> None:
    nan = math.nan
    values = column(
        good=[0.5, 0.6, 0.7, 0.8, nan, nan],
        bad=[0.1, 0.2, 0.2, 0.3, nan, nan],
        elsewhere=[nan, nan, nan, nan, 0.4, 0.5],
    )
    group = group_of(values)
    (table,) = summary_tables(group)
    entries = {method: row["ins_del", AVERAGE] for method, row in table.rows.items()}
    assert entries["good"].is_top and not entries["elsewhere"].is_top
    assert entries["elsewhere"].common == 0 and entries["bad"].common == 4
    said = verdict(group)
    assert said is not None and list(said.apart) == ["elsewhere"] and said.others == 1
    found = standings_of(group, Race({}, list(values)))
    apart = next(s for s in found if s.method == "elsewhere")
    assert apart.common == 0
    assert "elsewhere" not in scores_by(found, "faithfulness")
    assert "elsewhere" not in sentence(found).split(";")[0]

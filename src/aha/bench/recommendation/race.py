"""A race of methods for a budget: each round scores those that are left on twice as many images (successive halving).

    run/
      race.json     rounds, what each method costs, who is out and why; so that a race goes on where it was
      ...           the rows of a benchmark, as of any run

Every round is a piece of a bench plan: what the folder has is not computed again. The first has as many methods as the
budget pays for by what they say of their cost, cheap ones first; with too little for two of them there is no race.
After each, the better half goes on, and of the others those that are not significantly worse than the best, as far as
the round's share of the budget goes. A last part of the budget is for the sanity checks of the best. Nothing is spent
beyond the budget: a pass that would go over it is not made.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from aha.bench.plan import Plan, Work
from aha.bench.recommendation.budget import Account, Budget, BudgetSpent, metered
from aha.bench.recommendation.ranking import FAITHFULNESS, faithfulness, median, own_group, ranking
from aha.bench.recommendation.record import Race
from aha.bench.reporting.significance import LEVEL, paired_p
from aha.bench.reporting.tables import differences
from aha.bench.run_reader import Group
from aha.bench.runner import BenchRun, Step
from aha.bench.store import RunStore
from aha.bench.work_units import Cells
from aha.core.disk import result_key
from aha.core.progress_line import duration
from aha.data.datasets import choose
from aha.data.images import LabelledImage
from aha.errors import OutputError, SpecError
from aha.methods import Method
from aha.metrics import load_metric
from aha.metrics.curves.base import CurveMetric
from aha.metrics.protocols import load_protocols
from aha.models import TargetModel

CHECKS = ("class_sensitivity", "stability", "randomisation")
FIRST_IMAGES, CHECKED_IMAGES = 2, 4
_FOR_CHECKS = 0.25  # share of the budget
_FIRST_ROUND = 0.5  # share of what rounds may spend, where it does not pay for all methods
_PATIENCE = 2.0  # times what a method was expected to take, before it is stopped
_LEAST = 2  # methods that go on


class Progress(NamedTuple):
    """What a listener hears: what is being done, and what has been spent."""

    what: str
    passes: int
    seconds: float


class Racing:
    """A race under way: `run` brings it to its end, or to that of its budget."""

    def __init__(
        self,
        plan: Plan,
        out: Path,
        model: TargetModel,
        budget: Budget,
        *,
        must_be_below: float | None = None,
        model_text: str = "model",
        on_step: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self.plan = replace(plan, metrics=(FAITHFULNESS,), maps="float16", optional=True)
        self.out, self.model, self.budget, self.must_be_below = out, model, budget, must_be_below
        self.bench = BenchRun(self.plan, out, model=model, share=(0, 1))
        self.texts = [str(method) for method in self.bench.work.methods]
        if len(self.texts) < _LEAST:
            reasons = "; ".join(f"{method}: {why}" for method, why in self.bench.work.left_out.items())
            raise SpecError(f"a race needs at least two methods that fit the model ({reasons})")
        self._report, self._tried = on_step, 0
        self._spent = (0, 0.0)  # by earlier races in the folder
        self._check_cells = self._cells(self.bench.work.methods, CHECKS)
        self.race = self._recalled()
        self.race.model_text = model_text
        for method, why in self.bench.work.left_out.items():
            self.race.out[method] = why

    def _recalled(self) -> Race:
        """The folder's race with these settings.

        Its rounds are decided again where other methods may take part, where there is more to spend, or where the
        pictures are others now: rows of what has not changed are kept, so that this costs nothing by itself.
        """
        settings = {
            "model": self.model.spec,
            "digest": self.model.digest,
            "data": self.plan.data,
            "seed": self.plan.seed,
            "targets": list(self.plan.targets),
        }
        known = Race.read(self.out)
        if known is None:
            return Race(settings, self.texts, must_be_below=self.must_be_below)
        if other := [_SAID.get(name, name) for name in settings if known.settings.get(name) != settings[name]]:
            raise OutputError(f"{self.out} holds a race with a different {' and '.join(other)}; choose another folder")
        allowed = known.finished or known.budget
        is_same = (
            (known.methods, known.must_be_below) == (self.texts, self.must_be_below)
            and (allowed is None or Budget(**allowed).covers(self.budget))
            and (not known.pictures or known.pictures == self._pictures(known.rounds[-1][1] if known.rounds else 0))
        )
        return known if is_same else Race(settings, self.texts, costs=known.costs, must_be_below=self.must_be_below)

    def _pictures(self, count: int) -> str:
        """Digest of so many of the pictures, and of how many there are."""
        chosen = choose(self.bench.images, count, self.plan.seed)
        return result_key(len(self.bench.images), *((image.id, self.bench.cells.picture(image)) for image in chosen))

    def run(self) -> Race:
        """Races; what is done already is not done again."""
        if self.race.finished is not None:
            with RunStore(self.out) as store:
                self._restore(store)
            return self.race
        self.check_budget()
        self.account = Account(self.out)
        self._spent = (self.account.passes, self.account.seconds)
        if self._tried:
            self.account.note(self.account.passes + self._tried, self.account.seconds)
        with RunStore(self.out) as store:
            self.bench.cells.done = self._check_cells.done = store.latest
            self._check_rest()
            self.race.budget = asdict(self.budget)
            try:
                with suppress(BudgetSpent):  # what was finished counts
                    self._go(store)
            finally:
                self._note_cells()
                self.race.write(self.out)
        self.race.finished = asdict(self.budget)
        self.race.write(self.out)
        return self.race

    def _restore(self, store: RunStore) -> None:
        """Computes rows again that a finished race has lost; they were paid for once, and cost the budget nothing."""
        lost = set(self.race.cells).difference(store.latest.values())
        if not lost:
            return
        self.bench.cells.done = store.latest
        images = max(count for _, count in self.race.rounds)
        for method in self.texts:
            for metrics in (self.plan.metrics, CHECKS):
                run = self._bench([method], images, metrics)

                def is_lost(image: LabelledImage, cells: Cells = run.cells) -> bool:
                    return any(cells.key(image, *parts) in lost for parts in cells.missing(image))

                run.feed(store, filter(is_lost, run.images), _silent)

    @property
    def first_passes(self) -> int:
        """Images through the model that the first round of all methods takes, by what they say of themselves."""
        return sum(self._expected.values())

    @cached_property
    def pace(self) -> float:
        """Seconds of one image through the model, as one of a batch."""
        batch = self.bench.inputs_of(self.bench.images[0])[None].expand(self.plan.batch_size, -1, -1, -1)
        took = math.inf
        for _ in range(2):  # the first pass of a process does more than the others
            start = time.perf_counter()
            with torch.no_grad():
                self.model.outputs(batch)
            took = min(took, time.perf_counter() - start)
            self._tried += len(batch)
        return took / len(batch)

    @cached_property
    def _expected(self) -> dict[str, int]:
        """Method -> passes that it and its scoring take in the first round; the cheap ones first."""
        metric, size = load_metric(FAITHFULNESS), self.model.stated_preprocessing().size
        assert isinstance(metric, CurveMetric) and isinstance(metric.steps, int)
        scoring = 2 * metric.steps * len(metric.references)
        images = choose(self.bench.images, FIRST_IMAGES, self.plan.seed)
        found = {}
        for method in sorted(
            self.bench.work.methods, key=lambda m: (m.cost(self.model, size).passes, m.family == "baseline")
        ):
            run = self._bench([str(method)], len(images))
            missing = sum(bool(run.cells.missing(image)) for image in run.images)  # rows that are there are free
            found[str(method)] = missing * (scoring + method.cost(self.model, size).passes)
        return found

    def _pays(self, allowance: tuple[float, float], passes: float) -> bool:
        """Do so many passes fit into an allowance of passes and seconds? By the time that they have taken so far."""
        if passes > allowance[0]:
            return False
        if math.isinf(allowance[1]):
            return True
        made, seconds, _ = map(sum, zip([0.0] * 3, *self.race.costs.values(), strict=True))
        return passes * (seconds / made if made else self.pace) <= allowance[1]

    def _price(self, passes: float) -> str:
        """The whole budget that leaves so many passes for rounds after what was spent, in the present one's units."""
        spent = self._spent
        prices = []
        if self.budget.passes is not None:
            prices.append(f"{math.ceil((passes + spent[0]) / (1 - _FOR_CHECKS)):,} passes")
        if self.budget.seconds is not None:
            seconds = (passes * self.pace + spent[1]) / (1 - _FOR_CHECKS)
            prices.append(duration(60 * math.ceil(seconds / 60) if seconds > 60 else math.ceil(seconds)))
        return " and ".join(prices)

    def check_budget(self) -> None:
        """Refuses a budget that cannot pay for the first round of two methods, before anything is spent."""
        whole = self.budget.shared(1 - _FOR_CHECKS)
        allowance = tuple(math.inf if part is None else part for part in (whole.passes, whole.seconds))
        least = sum(list(self._expected.values())[:_LEAST])
        if not self._pays((allowance[0], allowance[1]), least):
            raise SpecError(
                f"the budget is too small for a race: allow at least {self._price(least)} for {_LEAST} methods, "
                f"{self._price(self.first_passes)} for all {len(self.texts)}"
            )

    def _check_rest(self) -> None:
        """Refuses to begin anew with what an earlier race in the folder has left, if that is too little."""
        if self.race.rounds or not self.account.passes:
            return
        least = sum(list(self._expected.values())[:_LEAST])
        if least and not self._pays(self._left(_FOR_CHECKS), least):
            raise SpecError(
                f"{self.account.passes:,} passes and {self.account.seconds:.0f} s were already spent in {self.out}, "
                f"for other methods or images; allow {self._price(least)} altogether, or choose another folder"
            )

    def _first_round(self) -> list[str]:
        """All methods, or those that half of what rounds may spend pays for, the cheap ones first; others are out."""
        allowance = self._left(_FOR_CHECKS)
        if self._pays(allowance, self.first_passes):
            return list(self._expected)
        part = (_FIRST_ROUND * allowance[0], _FIRST_ROUND * allowance[1])
        chosen: list[str] = []
        passes = 0
        for method, own in self._expected.items():
            passes += own
            if len(chosen) >= _LEAST and not self._pays(part, passes):
                break
            chosen.append(method)
        self._leave_out([method for method in self._expected if method not in chosen], len(chosen))
        return chosen

    def _leave_out(self, methods: Sequence[str], tried: int) -> None:
        """These could not be paid for; the reason is the same for all of them, so that it can be told once."""
        need = self._price(self.first_passes)
        for method in methods:
            self.race.out[method] = (
                f"not tried: the budget covered {tried} of {len(self.texts)} methods, cheapest first; "
                f"about {need} would cover all"
            )

    def _note_cells(self) -> None:
        """Which rows are of the present methods, settings and pictures."""
        count = self.race.rounds[-1][1] if self.race.rounds else 0
        found = set(self.bench.cells.done.values())
        self.race.cells = sorted(
            key
            for image in choose(self.bench.images, count, self.plan.seed)
            for cells in (self.bench.cells, self._check_cells)
            for key in cells.keys(image)
            if key in found
        )

    def _go(self, store: RunStore) -> None:
        race, total = self.race, len(self.bench.images)
        for methods, images in list(race.rounds):
            self._round(store, methods, images)
        while ahead := self._next(total):
            race.rounds.append(ahead)
            race.pictures = self._pictures(ahead[1])
            race.write(self.out)
            if not self._round(store, *ahead):
                break
        self._checks(store)

    # Rounds

    def _next(self, total: int) -> tuple[list[str], int] | None:
        """Methods and number of images of the next round; None when there is none."""
        if not self.race.rounds:
            return self._first_round(), min(FIRST_IMAGES, total)
        images = self.race.rounds[-1][1]
        if images >= total:
            return None
        ranked = [method for method in self.ranked() if method in self.race.rounds[-1][0]]
        allowance = self._left(_FOR_CHECKS)
        rounds = max(1, math.ceil(math.log2(max(2, len(ranked)))))
        more = min(2 * images, total) - images
        kept = self._affordable(self._going_on(ranked), images + more, (allowance[0] / rounds, allowance[1] / rounds))
        if len(kept) < _LEAST:
            kept = self._affordable(ranked[:_LEAST], images + more, allowance)
        return (kept, images + more) if len(kept) >= _LEAST else None

    def _going_on(self, ranked: list[str]) -> list[str]:
        """The better half, and whoever is not significantly worse than the best."""
        values = faithfulness(self._group())
        half = -(-len(ranked) // 2)
        best = values[ranked[0]] if ranked else {}
        return [
            method
            for place, method in enumerate(ranked)
            if place < max(half, _LEAST) or not paired_p(differences(values[method], best)) < LEVEL
        ]

    def _affordable(self, methods: Sequence[str], images: int, allowance: tuple[float, float]) -> list[str]:
        """From the best on, as many as the allowance pays for on so many images; rows that are there are free."""
        kept: list[str] = []
        passes = seconds = 0.0
        for method in methods:
            run, cost = self._bench([method], images), self.race.cost(method)
            wanted = sum(bool(run.cells.missing(image)) for image in run.images)
            passes, seconds = passes + wanted * cost[0], seconds + wanted * cost[1]
            if passes > allowance[0] or seconds > allowance[1]:
                break
            kept.append(method)
        return kept

    def _round(self, store: RunStore, methods: Sequence[str], images: int) -> bool:
        """Scores the methods on so many images; false if the budget did not last."""
        going = [method for method in methods if method not in self.race.out]
        is_first, has_lasted = images == self.race.rounds[0][1], True
        for number, method in enumerate(going):
            expected = self._expected[method] if is_first else 0
            if is_first and number >= _LEAST and not self._pays(self._left(_FOR_CHECKS), expected):
                self._leave_out(going[number:], number)  # passes take longer than they seemed to
                break
            run = self._bench([method], images)
            what = f"{method} on {images} images"
            is_done = self._score(store, run, what, len(going) - number, _FOR_CHECKS, expected)
            if not is_done and is_first:
                self.race.out[method] = "stopped: it exceeded its share of the budget and its stated cost"
            has_lasted = has_lasted and (is_done or is_first)
            self.race.write(self.out)
        self._note_cells()
        self._drop_failed(going)
        self._drop_slow()
        done = [method for method in going if method not in self.race.out]
        if done and has_lasted:
            store.record_plan(self._bench(done, images).record())
        return has_lasted

    def _score(
        self, store: RunStore, run: BenchRun, what: str, sharers: int, kept_back: float, expected: int = 0
    ) -> bool:
        """What is missing of one method's run, for its share of what is left; false if that did not last.

        Where passes were expected of it, it gets as many as these and some more, even if its share is less.
        """
        wanted = [image for image in run.images if run.cells.missing(image)]
        if not wanted:
            return True
        left = self._left(kept_back)
        self._report(Progress(what, self.account.passes, self.account.seconds))
        before = (self.account.passes, self.account.seconds)
        is_done = True
        passes, seconds = (part / sharers for part in left)
        if expected:
            passes = min(left[0], max(passes, _PATIENCE * expected))
            if math.isfinite(seconds):
                seconds = min(left[1], max(seconds, _PATIENCE * expected * self.pace))
        try:
            with metered(self.account, passes, seconds):
                run.feed(store, iter(wanted), _silent)
        except BudgetSpent:
            is_done = False
        if is_done and run.plan.metrics == self.plan.metrics:
            former = self.race.costs.get(run.plan.methods[0], [0.0, 0.0, 0.0])
            spent = (self.account.passes - before[0], self.account.seconds - before[1], len(wanted))
            self.race.costs[run.plan.methods[0]] = [old + new for old, new in zip(former, spent, strict=True)]
        return is_done

    def _drop_failed(self, methods: Sequence[str]) -> None:
        group = self._group()
        values = faithfulness(group)
        reasons = {failure.method: failure.reason for failure in group.scores.failures}
        for method in methods:
            if not values.get(method) and method not in self.race.out:
                self.race.out[method] = f"failed: {reasons.get(method, 'no image could be scored')}"

    def _drop_slow(self) -> None:
        if self.must_be_below is None:
            return
        group = self._group()
        for method in self.texts:
            seconds = median(group.seconds.get(method, ()))
            if seconds is not None and seconds > self.must_be_below and method not in self.race.out:
                self.race.out[method] = f"a map takes {seconds:.2g} s, more than {self.must_be_below:.2g} s"

    # Checks

    def _checks(self, store: RunStore) -> None:
        """Sanity of as many methods, from the best on, as the rest of the budget pays for."""
        ranked = [method for method in self.ranked() if method not in self.race.out]
        images = min(CHECKED_IMAGES, self.race.rounds[-1][1]) if self.race.rounds else 0
        for number, method in enumerate(ranked):
            run = self._bench([method], images, CHECKS)
            sharers = min(_LEAST + 1, len(ranked) - number)
            if self._score(store, run, f"sanity of {method}", sharers, 0.0):
                store.record_plan(run.record())

    # What is known

    def ranked(self) -> list[str]:
        """Methods in the race, the best first, as `ranking` has them."""
        return ranking(faithfulness(self._group()), [m for m in self.texts if m not in self.race.out])

    def _group(self) -> Group:
        return own_group(self.out, self.race)

    def _left(self, kept_back: float) -> tuple[float, float]:
        """Passes and seconds that may still be spent, but for a share of the whole that is kept for later."""
        left = self.account.left(self.budget)
        kept = self.budget.shared(kept_back) if kept_back else None
        passes = left[0] - (kept.passes or 0 if kept else 0)
        return max(0.0, passes), max(0.0, left[1] - (kept.seconds or 0.0 if kept else 0.0))

    def _bench(self, methods: Sequence[str], images: int, metrics: Sequence[str] = ()) -> BenchRun:
        """The bench run of some of the methods on some of the images; all else is shared with the whole."""
        run, inputs = copy(self.bench), copy(self.bench.inputs)
        run.plan = replace(self.plan, limit=images, methods=tuple(methods), metrics=tuple(metrics) or self.plan.metrics)
        chosen = [method for method in self.bench.work.methods if str(method) in methods]
        run.work = Work(tuple(chosen), tuple(load_protocols(list(run.plan.metrics))))
        run.methods = run.work.methods
        inputs.images = choose(self.bench.images, images, self.plan.seed)
        inputs.count = len(inputs.images)
        run.inputs = inputs
        run.cells = self._cells(run.work.methods, run.plan.metrics)
        return run

    def _cells(self, methods: Sequence[Method], metrics: Sequence[str]) -> Cells:
        protocols, kinds = load_protocols(list(metrics)), self.bench.target_kinds
        return Cells(self.model, methods, protocols, kinds, self.plan.seed, self.bench.cells.done)


_SAID = {"digest": "weights", "targets": "target"}


def _silent(_step: Step) -> None:
    pass

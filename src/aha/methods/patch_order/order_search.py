"""The search for an order of parts within a budget: greedy from both ends, then moves of single parts.

A search is a generator: it yields lists of subsets that it wants the model's answers for, finds them in its game when
it is resumed, and returns its order. So several images can be searched at once, with their questions in one batch.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from aha.methods.perturbation.part_orders import PartGame, chain_of

Polish = Literal["swaps", "anneal", "none"]
Asking = Generator[list[int], None, None]
"""Yields subsets whose answers are in the game when it goes on."""

MOST_EXHAUSTED = 16  # parts; beyond, listing all subsets takes longer than asking about them should
_POLISHED = 0.35  # share of the budget that is kept for polishing
_IDLE = 40  # rounds without a question after which nothing new is to be expected
_LONGEST = 6  # places that a single move may reach across, plus one
_WARMTH = 0.3  # first temperature of annealing, in spreads of the changes that moves make


@dataclass
class OrderSearch:
    """One image's search.

    Attributes:
        game: the parts, and where answers are written.
        first: an order to start from, most important first.
        budget: subsets that may be asked about.
        polish: what is done with the budget that the greedy search leaves.
        asked: subsets asked about so far.
    """

    game: PartGame
    first: Sequence[int]
    budget: int
    polish: Polish = "swaps"
    asked: int = 0

    def run(self) -> Generator[list[int], None, list[int]]:
        """The best order that was found, at least as good as the first one."""
        if self.game.count <= MOST_EXHAUSTED and 2**self.game.count <= self.budget:
            yield from self._ask(range(2**self.game.count))
            return self.game.best_order()
        yield from self._ask(chain_of(self.first))
        left = self.budget - self.asked
        yield from self._greedy(left if self.polish == "none" else round((1 - _POLISHED) * left))
        order = self.game.best_order()
        if self.polish != "none":
            yield from self._polish(order)
        return self.game.best_order()

    def _ask(self, subsets: Iterable[int]) -> Asking:
        """Asks for what is needed to know the worth of the subsets, unless the budget does not allow all of it."""
        questions = self.game.unknown(subsets)
        if questions and self.asked + len(questions) <= self.budget:
            self.asked += len(questions)
            yield questions

    # Greedy from both ends

    def _greedy(self, budget: int) -> Asking:
        """The most important part in front, the least important one behind, until they meet.

        Each step asks again only about a window of parts, those that added most when they were last asked about: lazy
        greedy search. The window is as wide as the budget allows; at first it holds all parts, if that is affordable.
        """
        game, limit = self.game, self.asked + budget
        ends = _Ends(game, list(self.first))
        window = self._window(game.count, budget)
        if 2 * self._per_worth * game.count <= budget:
            window = game.count
        while window and len(ends.free) > 1:
            ahead, behind = ends.candidates(window)
            while len(ahead) > 1 and self.asked + len(game.unknown(ends.subsets(ahead, behind))) > limit:
                ahead, behind = ahead[:-1], behind[: len(ahead) - 1]
            subsets = ends.subsets(ahead, behind)
            yield from self._ask(subsets)
            if not all(map(game.is_known, subsets)):
                break
            ends.place(ahead, behind)
            window = max(1, self._window(len(ends.free), limit - self.asked))
        yield from self._ask(chain_of(ends.order()))

    @property
    def _per_worth(self) -> int:
        return len(self.game.questions(0))

    def _window(self, free: int, budget: int) -> int:
        """The widest window with which the rest of the greedy search stays within the budget."""
        worths = budget // self._per_worth
        fitting = (w for w in range(free, 0, -1) if sum(min(w, left) for left in range(1, free + 1)) <= worths)
        return next(fitting, 0)

    # Moves

    def _polish(self, order: list[int]) -> Asking:
        """Moves parts within disjoint stretches of the order, whose changes of the area simply add up."""
        generator = torch.Generator().manual_seed(0)
        idle, swept = 0, 0
        start, begun = self.asked, max(1, self.budget - self.asked)
        spread = 0.0
        while self.asked < self.budget and idle < _IDLE:
            # Neighbours change places, at odd and at even places in turn, until none should; then others.
            tried = neighbours(order, swept) if swept < 2 else random_moves(order, generator)
            before, moves = self.asked, self._affordable(order, list(tried))
            yield from self._ask(s for at, parts in moves for s in inner_subsets(order, at, parts))
            changes = [self._change(order, at, parts) for at, parts in moves]
            spread = max([spread, *map(abs, changes)])
            warmth = 0.0
            if self.polish == "anneal" and swept >= 2:
                warmth = _WARMTH * spread * (1 - (self.asked - start) / begun)
            is_better = False
            for (at, parts), change in zip(moves, changes, strict=True):
                luck = -math.log(max(1e-12, float(torch.rand((), generator=generator))))
                if change > 1e-9 or (warmth > 0 and -change < warmth * luck):
                    order[at : at + len(parts)] = parts
                    is_better = is_better or change > 1e-9
            swept = 0 if is_better and swept < 2 else swept + 1
            # Where nothing new can be asked, annealing would go to and fro between known orders for ever.
            idle = idle + 1 if self.asked == before and (self.polish == "anneal" or not is_better) else 0

    def _affordable(self, order: list[int], moves: list[tuple[int, list[int]]]) -> list[tuple[int, list[int]]]:
        """As many of the moves, from the first on, as the budget allows."""
        kept, wanted = [], set[int]()
        for at, parts in moves:
            more = wanted | set(self.game.unknown(inner_subsets(order, at, parts)))
            if self.asked + len(more) <= self.budget:
                kept.append((at, parts))
                wanted = more
        return kept

    def _change(self, order: list[int], at: int, parts: Sequence[int]) -> float:
        """What a move adds to the area."""
        start, game = subset_of(order[:at]), self.game
        old, new = order[at : at + len(parts)], parts
        area = 0.0
        for sign, stretch in ((-1, old), (1, new)):
            subset = start
            for part in stretch:
                area += sign * game.step(subset, part)
                subset |= 1 << part
        return area


class _Ends:
    """A greedy search on its way: parts placed from the front and from the back, and the free ones between.

    `gain` and `loss` are what a part added in front or cost behind, for each pixel, when it was last asked about; until
    then, its place in the first order stands for them.
    """

    def __init__(self, game: PartGame, first: list[int]) -> None:
        self.game, self.free = game, first
        self._front: list[int] = []
        self._back: list[int] = []
        self._shown, self._left = 0, game.everything  # subsets before and after the free parts
        never = 1e9  # asked about: such parts are tried first, in the first order's turn
        self._gain = {part: never - place for place, part in enumerate(first)}
        self._loss = {part: -never - place for place, part in enumerate(first)}

    def candidates(self, window: int) -> tuple[list[int], list[int]]:
        """Parts that may come next in front, and next behind."""
        ahead = sorted(self.free, key=lambda part: -self._gain[part])[:window]
        behind = sorted(self.free, key=lambda part: self._loss[part])[:window]
        return ahead, behind

    def subsets(self, ahead: Sequence[int], behind: Sequence[int]) -> list[int]:
        """What the candidates' gains and losses are estimated by."""
        shown, left = self._shown, self._left
        return [shown, left, *(shown | 1 << part for part in ahead), *(left ^ 1 << part for part in behind)]

    def place(self, ahead: Sequence[int], behind: Sequence[int]) -> None:
        """Places the best candidate in front, and the best of the others behind."""
        game = self.game
        for part in ahead:
            gain = game.worth(self._shown | 1 << part) - game.worth(self._shown)
            self._gain[part] = gain / game.sizes[part]
        for part in behind:
            loss = game.worth(self._left) - game.worth(self._left ^ 1 << part)
            self._loss[part] = loss / game.sizes[part]
        first = max(ahead, key=lambda part: self._gain[part])
        self._front.append(first)
        self._shown |= 1 << first
        self.free.remove(first)
        if others := [part for part in behind if part != first]:
            last = min(others, key=lambda part: self._loss[part])
            self._back.append(last)
            self._left ^= 1 << last
            self.free.remove(last)

    def order(self) -> list[int]:
        """All parts; the free ones keep the turn of the first order."""
        return [*self._front, *self.free, *reversed(self._back)]


def subset_of(parts: Iterable[int]) -> int:
    """The subset of these parts."""
    return sum(1 << part for part in parts)


def inner_subsets(order: Sequence[int], at: int, parts: Sequence[int]) -> list[int]:
    """Subsets that an order shows inside a stretch from place `at` on, where it has these parts instead of its own."""
    subset, found = subset_of(order[:at]), []
    for part in parts[:-1]:
        subset |= 1 << part
        found.append(subset)
    return found


def neighbours(order: Sequence[int], first: int) -> Iterator[tuple[int, list[int]]]:
    """Changes of places of the parts at `first` and `first + 1`, `first + 2` and `first + 3`, and so on."""
    for at in range(first, len(order) - 1, 2):
        yield at, [order[at + 1], order[at]]


def random_moves(order: Sequence[int], generator: torch.Generator) -> Iterator[tuple[int, list[int]]]:
    """Stretches of random length, in each of which the first part goes last, the last first, or both change places."""

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    at = draw(0, 2)
    while at < len(order) - 1:
        length = min(draw(2, _LONGEST + 1), len(order) - at)
        stretch = list(order[at : at + length])
        kind = draw(0, 3)
        if kind == 0:
            moved = [*stretch[1:], stretch[0]]
        elif kind == 1:
            moved = [stretch[-1], *stretch[:-1]]
        else:
            moved = [stretch[-1], *stretch[1:-1], stretch[0]]
        yield at, moved
        at += length + draw(0, 3)

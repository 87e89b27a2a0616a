"""Orders of the parts of an image as chains of subsets, and the best one through all subsets that were asked about.

An order of K parts shows the subsets S_0 = {} < S_1 < ... < S_K = everything. Each of them has a worth, by the model's
answers f: f(S) for Insertion, -f(the others) for Deletion, the difference for Insertion minus Deletion. The order's
value is the area under the worth over the share of pixels, by the trapezoid rule. So a subset that has been asked about
serves every order through it, and the best order among the known subsets is a longest path.

A subset is a whole number: bit p is set where part p is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Objective = Literal["ins_del", "insertion", "deletion"]


@dataclass
class PartGame:
    """The parts of one image, and what is known of the model's answers to subsets of them.

    Attributes:
        sizes: each part's share of the pixels (K,).
        objective: what an order is good for.
        answers: subset -> the model's score of the class with these parts shown.
    """

    sizes: Sequence[float]
    objective: Objective
    answers: dict[int, float] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of parts K."""
        return len(self.sizes)

    @property
    def everything(self) -> int:
        """The subset of all parts."""
        return (1 << self.count) - 1

    def questions(self, subset: int) -> list[int]:
        """Subsets whose answers the worth of this one is made of."""
        others = self.everything ^ subset
        return {"ins_del": [subset, others], "insertion": [subset], "deletion": [others]}[self.objective]

    def unknown(self, subsets: Iterable[int]) -> list[int]:
        """What has to be asked to know the worth of all these subsets, each once."""
        wanted = dict.fromkeys(question for subset in subsets for question in self.questions(subset))
        return [question for question in wanted if question not in self.answers]

    def is_known(self, subset: int) -> bool:
        """Is its worth known without asking the model?"""
        return all(question in self.answers for question in self.questions(subset))

    def worth(self, subset: int) -> float:
        """Height of the curve where the order has shown this subset."""
        if self.objective == "insertion":
            return self.answers[subset]
        without = self.answers[self.everything ^ subset]
        return -without if self.objective == "deletion" else self.answers[subset] - without

    def step(self, subset: int, part: int) -> float:
        """Area under the worth while the part is added to the subset."""
        return self.sizes[part] * (self.worth(subset) + self.worth(subset | 1 << part)) / 2

    def value(self, order: Sequence[int]) -> float:
        """Area under an order of which every subset is known."""
        return sum(self.step(subset, part) for subset, part in zip(chain_of(order), order, strict=False))

    def best_order(self) -> list[int]:
        """The order of largest value among those whose subsets are all known."""
        known = [subset for subset in self._mentioned() if self.is_known(subset)]
        best: dict[int, tuple[float, int]] = {0: (0.0, -1)}  # subset -> area so far, and the part that was added last
        for subset in sorted(known, key=int.bit_count):
            for part in parts_of(subset):
                before = subset ^ 1 << part
                if before in best:
                    area = best[before][0] + self.step(before, part)
                    if subset not in best or area > best[subset][0]:
                        best[subset] = (area, part)
        order, subset = [], self.everything
        while subset:
            part = best[subset][1]
            order.append(part)
            subset ^= 1 << part
        return order[::-1]

    def _mentioned(self) -> list[int]:
        if self.objective == "insertion":
            return list(self.answers)
        others = [self.everything ^ subset for subset in self.answers]
        return others if self.objective == "deletion" else list(dict.fromkeys([*self.answers, *others]))


def chain_of(order: Sequence[int]) -> list[int]:
    """The subsets (K + 1,) that an order shows."""
    chain = [0]
    for part in order:
        chain.append(chain[-1] | 1 << part)
    return chain


def parts_of(subset: int) -> list[int]:
    """The parts in a subset, in ascending order."""
    return [part for part in range(subset.bit_length()) if subset >> part & 1]

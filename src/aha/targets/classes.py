"""Class outputs, compared or alone: `logit`, `probability`, `log_odds`, `contrast`, `value`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from aha.errors import TargetError
from aha.models import TargetModel
from aha.models.explained import Answer
from aha.targets.base import ClassScore, Number, Shown, class_index, objective


@objective("logit")
@dataclass(frozen=True)
class Logit(ClassScore):
    """The raw output of a class. Deletion shows the output itself, which has no fixed range."""


@objective("probability")
@dataclass(frozen=True)
class Probability(ClassScore):
    """The probability of a class; methods differentiate its logit. Deletion shows it from 0 to 1."""


@objective("log_odds")
@dataclass(frozen=True)
class LogOdds(ClassScore):
    """Log of the probability of a class over that of all others; gradients do not saturate."""


@objective("contrast")
@dataclass(frozen=True)
class Contrast(Number):
    """The output of one class minus that of another: why this and not that. Deletion ends near 0 if it is explained."""

    first: int | str
    second: int | str

    def function(self, model: TargetModel, shown: Shown | None) -> Callable[[Answer], Tensor]:
        """Difference of two outputs."""

        def difference(answer: Answer) -> Tensor:
            outputs = answer.outputs
            first, second = (class_index(model, cls, outputs.shape[1]) for cls in (self.first, self.second))
            if first == second:
                raise TargetError(f"{self} compares a class with itself")
            return outputs[:, first] - outputs[:, second]

        return difference


@objective("value")
@dataclass(frozen=True)
class Output(Number):
    """One output as it is: of a regression, an embedding, or a class without any softmax."""

    index: int

    def function(self, model: TargetModel, shown: Shown | None) -> Callable[[Answer], Tensor]:
        """The output."""

        def value(answer: Answer) -> Tensor:
            outputs = answer.outputs
            if not 0 <= self.index < outputs.shape[1]:
                last = outputs.shape[1] - 1
                raise TargetError(f"{self} does not exist; {model.spec} has values 0 to {last}")
            return outputs[:, self.index]

        return value

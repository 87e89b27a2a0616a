"""From model outputs to the one number that is explained, trained on and measured.

Shapes: outputs (B, K) raw model outputs; classes (B,) int64; scores (B,).

A classifier with a single output is binary: class 1 is that output, class 0 its opposite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from aha.core.registry import Registry
from aha.errors import SpecError

ScoreFunction = Callable[[Tensor, Tensor], Tensor]

SCORES: Registry[Score] = Registry("score")


@dataclass(frozen=True)
class Score:
    """A named way from outputs and classes to scores.

    Attributes:
        name: as written in specs and manifests.
        function: outputs (B, K), classes (B,) -> scores (B,).
        raw: the score that gradients are taken of when this one is reported: back-propagating through a saturated
            softmax or sigmoid loses the signal, so methods differentiate the logit by default.
        is_probability: scores lie in [0, 1].
        splits_single: a single output tells two classes apart; a regression's single output is one value.
    """

    name: str
    function: ScoreFunction
    raw: str | None = None
    is_probability: bool = False
    splits_single: bool = True

    def __call__(self, outputs: Tensor, classes: Tensor) -> Tensor:
        """Scores (B,) of the given classes."""
        return self.function(outputs, classes.to(outputs.device))

    def num_classes(self, outputs: Tensor) -> int:
        """How many classes these outputs (B, K) tell apart."""
        return 2 if outputs.shape[1] == 1 and self.splits_single else outputs.shape[1]

    def per_class(self, outputs: Tensor) -> Tensor:
        """One output (B, num_classes) for each class."""
        is_split = self.num_classes(outputs) > outputs.shape[1]
        return torch.cat([-outputs, outputs], dim=1) if is_split else outputs

    def differentiated(self) -> Score:
        """The score whose gradient explains this one."""
        return self if self.raw is None else SCORES[self.raw]


def logit(outputs: Tensor, classes: Tensor) -> Tensor:
    """Raw output of the class; for a single output, its sign follows the class."""
    if outputs.shape[1] == 1:
        return torch.where(classes == 1, outputs[:, 0], -outputs[:, 0])
    return outputs.gather(1, classes[:, None])[:, 0]


def softmax(outputs: Tensor, classes: Tensor) -> Tensor:
    """Softmax probability of the class."""
    return log_softmax(outputs, classes).exp()


def log_softmax(outputs: Tensor, classes: Tensor) -> Tensor:
    """Log of the softmax probability; a single output is read as the logit of class 1 against class 0."""
    if outputs.shape[1] == 1:
        return F.logsigmoid(logit(outputs, classes))
    return logit(outputs.log_softmax(dim=1), classes)


def log_odds(outputs: Tensor, classes: Tensor) -> Tensor:
    """Log of the probability of the class over that of all others: what the softmax follows, without its saturation."""
    if outputs.shape[1] == 1:
        return logit(outputs, classes)
    others = outputs.scatter(1, classes[:, None], -torch.inf)
    return logit(outputs, classes) - others.logsumexp(dim=1)


def sigmoid(outputs: Tensor, classes: Tensor) -> Tensor:
    """Sigmoid probability of the class on its own: multi-label and binary classifiers."""
    return logit(outputs, classes).sigmoid()


def regression(outputs: Tensor, classes: Tensor) -> Tensor:
    """The predicted value itself; the "class" picks one of several outputs."""
    return outputs.gather(1, classes[:, None])[:, 0]


for _score in (
    Score("logit", logit),
    Score("softmax", softmax, raw="logit", is_probability=True),
    Score("log_softmax", log_softmax),
    Score("log_odds", log_odds),
    Score("sigmoid", sigmoid, raw="logit", is_probability=True),
    Score("regression", regression, splits_single=False),
):
    SCORES.register(_score.name)(_score)


def load_score(score: str | ScoreFunction | Score) -> Score:
    """A score by name, or a user's own `function(outputs (B, K), classes (B,)) -> (B,)`."""
    if isinstance(score, Score):
        return score
    if isinstance(score, str):
        return SCORES[score]
    if not callable(score):
        raise SpecError(f"a score is a name or a function of outputs and classes, not a {type(score).__name__}")
    return Score(getattr(score, "__name__", "custom"), score)


def are_usable(outputs: Tensor) -> Tensor:
    """Which rows of outputs (..., K) are numbers that can be compared: minus infinity rules a class out, as it may."""
    return ~(outputs.isnan() | outputs.isposinf()).any(dim=-1)

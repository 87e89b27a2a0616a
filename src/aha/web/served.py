"""A model on offer: what its results depend on, and which methods visitors may use on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aha import __version__
from aha.errors import ModelError
from aha.methods import Method, check_fit
from aha.methods.aha import AHA
from aha.methods.base import UPSAMPLING
from aha.models import TargetModel
from aha.web.payloads import ScoredClass
from aha.web.policy import allowed_method, check_budget


@dataclass(frozen=True)
class Served:
    """A model on offer.

    Attributes:
        name: as the page and its links call it.
        options: of `load_model` besides the spec, for the snippet.
        explainers: methods of the AHA family that belong to it.
    """

    name: str
    model: TargetModel
    options: Mapping[str, object] = field(default_factory=dict)
    explainers: Sequence[AHA] = ()

    @property
    def identity(self) -> tuple[object, ...]:
        """What else than picture, method and class a result depends on."""
        model = self.model
        return __version__, model.spec, model.digest, model.preprocessing, model.score.name, model.precision, UPSAMPLING

    def method(self, text: str) -> Method:
        """A method that visitors may use and that fits the model."""
        method = allowed_method(text, [one.explainer for one in self.explainers])
        if isinstance(method, AHA) and not method.explainer and not self.explainers:
            raise ModelError(f"AHA cannot read {self.name}: it has no gradients or no spatial layers")
        check_fit(method, self.model)
        check_budget(method, self.model, self.model.stated_preprocessing().size)
        return method

    def scored_class(self, index: int, score: float) -> ScoredClass:
        """A class for the page."""
        return {"index": index, "label": self.model.class_name(index), "score": score}

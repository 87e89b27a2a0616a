"""A model on offer: what its results depend on, and which methods visitors may use on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from aha import __version__
from aha.errors import ModelError
from aha.methods import Method, check_fit
from aha.methods.aha import AHA
from aha.methods.base import UPSAMPLING
from aha.models import TargetModel
from aha.targets.kinds import Kind, fitting_view, kind_of
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

    @cached_property
    def kind(self) -> Kind:
        """Whether it has classes, or explains regions or boxes alone."""
        return kind_of(self.model)

    @cached_property
    def fitting(self) -> TargetModel:
        """The model as methods see it where no image is known yet."""
        return fitting_view(self.model, self.kind)

    def check_classes(self) -> None:
        """Refuses models that have no class outputs."""
        if self.kind != "class":
            raise ModelError(f"{self.name} has no classes of whole images; ask about a {self.kind} of one")

    def method(self, text: str, view: TargetModel | None = None) -> Method:
        """A method that visitors may use and that fits the model, or a view of it."""
        if view is None:
            self.check_classes()
        model = self.model if view is None else view
        method = allowed_method(text, [one.explainer for one in self.explainers])
        if isinstance(method, AHA) and not method.explainer and not self.explainers:
            raise ModelError(f"AHA cannot read {self.name}: it has no gradients or no spatial layers")
        check_fit(method, model)
        check_budget(method, model, self.model.stated_preprocessing().places)
        return method

    def scored_class(self, index: int, score: float) -> ScoredClass:
        """A class for the page."""
        return {"index": index, "label": self.model.class_name(index), "score": score}

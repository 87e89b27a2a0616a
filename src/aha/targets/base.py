"""What is explained, as a value with a text: `contrast('lynx', 'cougar')`, `region(cls='road')`, `box(10, 20, 90, 80)`.

An objective turns a model into one whose only output is the number that is asked about; methods and metrics then work
on it as on any other model. Class objectives keep the class outputs and change their score.

Shapes: inputs (1, C, H, W) of one image; numbers (B,).
"""

from __future__ import annotations

import hashlib
import inspect
import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
from torch import Tensor

from aha.core.registry import Registry
from aha.core.spec import Spec, parse
from aha.errors import SpecError, TargetError
from aha.models import TargetModel
from aha.models.explained import Answer, Explained
from aha.models.loading.functions import name_of
from aha.models.loading.preprocessing import Geometry
from aha.models.scores import SCORES

OBJECTIVES: Registry[type[Objective]] = Registry("target")

O = TypeVar("O", bound="type[Objective]")  # noqa: E741
Classes = int | str
"""The class of a view that is explained: 0 of a number, else an index, a name or `top1`."""


@dataclass(frozen=True)
class Shown:
    """An image that an objective is bound to: its input (1, C, H, W) and where that lies in the picture."""

    inputs: Tensor
    geometry: Geometry


@dataclass(frozen=True)
class Objective(Spec):
    """Base of what can be explained. Subclasses are frozen dataclasses whose fields are the parameters."""

    is_per_image: ClassVar[bool] = False

    @abstractmethod
    def view(self, model: TargetModel, shown: Shown | None = None) -> TargetModel:
        """The model as methods and metrics see it; bound to an image where that matters (`is_per_image`).

        Without an image, coordinates are those of the model's input, and what would be found on the image is left
        open: enough to know which methods fit.
        """

    @property
    def classes(self) -> Classes:
        """Which class of the view is explained."""
        return 0


@dataclass(frozen=True)
class Number(Objective):
    """An objective with a number of its own."""

    is_probability: ClassVar[bool] = False

    @abstractmethod
    def function(self, model: TargetModel, shown: Shown | None) -> Callable[[Answer], Tensor]:
        """From what the network gave to numbers (B,)."""

    def inside(self, model: TargetModel) -> tuple[str, ...]:
        """Names of the modules whose outputs the function reads."""
        return ()

    def view(self, model: TargetModel, shown: Shown | None = None) -> TargetModel:
        """The model with this number as its only output."""
        function, inside = self.function(model, shown), self.inside(model)
        return model.explaining(Explained(str(self), function, inside, self.is_probability))


def objective(name: str) -> Callable[[O], O]:
    """Class decorator that registers an objective under the name of its text."""

    def add(cls: O) -> O:
        cls.name = name
        OBJECTIVES.register(name)(cls)
        return cls

    return add


@dataclass(frozen=True)
class Custom(Number):
    """The caller's own function of what the network returned, `(outputs) -> (B,)`."""

    call: Any
    name: ClassVar[str] = "custom"

    def function(self, model: TargetModel, shown: Shown | None) -> Callable[[Answer], Tensor]:
        """The function itself, after the model's own `output=`."""
        return lambda answer: self.call(answer.read)

    def __post_init__(self) -> None:
        if not callable(self.call):
            raise TargetError(f"a target is a text, a class or a function, not {self.call!r}")

    def __str__(self) -> str:
        """Its name, and a digest of its code where that can be read: another function is another target."""
        return f"custom({name_of(self.call)}{_digest_of_code(self.call)})"


def _digest_of_code(function: Any) -> str:
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return ""
    return f" {hashlib.blake2b(source.encode(), digest_size=4).hexdigest()}"


@dataclass(frozen=True)
class Held:
    """An array in memory as a parameter: equal by its content, written as a digest of it."""

    values: Any
    digest: str

    @classmethod
    def of(cls, given: Any) -> Any:
        """Arrays and tensors as held values; all else as it is."""
        if isinstance(given, Tensor):
            given = given.detach().cpu().numpy()
        if not isinstance(given, np.ndarray):
            return given
        content = np.ascontiguousarray(given)
        about = f"{content.dtype} {content.shape}".encode()
        return cls(given, hashlib.blake2b(about + content.tobytes(), digest_size=8).hexdigest())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Held) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"<array {self.digest}>"


_CLASS = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\bclass(?=\s*=)""")
_ONE_CLASS = re.compile(r"class\(\s*(?P<quote>['\"]?)(?P<name>.*)(?P=quote)\s*\)", re.DOTALL)
_SPEC = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*(?P<rest>\(.*\))?", re.DOTALL)


def read_target(target: Any, model: TargetModel | None = None) -> Any:
    """An `Objective` where the target is one, or its text, or a function; else the target, of classes, as it is.

    A word that is the name of one of the model's classes is that class. `class(281)` is the class 281.
    """
    if isinstance(target, Objective):
        return target
    if not isinstance(target, str):
        return Custom(target) if callable(target) else target
    text = target.strip()
    if one := _ONE_CLASS.fullmatch(text):
        return one["name"]
    found = _SPEC.fullmatch(text)
    if found is None or (model is not None and text in (model.class_names or ())):
        return target
    if found["name"] not in OBJECTIVES:
        return target
    if found["rest"] is None and found["name"] not in SCORE_WORDS:
        return target
    try:
        return parse(_CLASS.sub(lambda word: "cls" if word[0] == "class" else word[0], text), OBJECTIVES)
    except SpecError as error:
        raise TargetError(str(error)) from None


SCORE_WORDS = {"logit": "logit", "probability": "softmax", "log_odds": "log_odds"}
"""Targets that are another score of a class, and that score."""


@dataclass(frozen=True)
class ClassScore(Objective):
    """Another score of a class, the predicted one by default."""

    cls: int | str | None = None

    def view(self, model: TargetModel, shown: Shown | None = None) -> TargetModel:
        """The model with that score."""
        own = model.score
        score = own if self.name == "probability" and own.is_probability else SCORES[SCORE_WORDS[self.name]]
        return model.scored_by(score)

    @property
    def classes(self) -> Classes:
        """The class itself."""
        return "top1" if self.cls is None else self.cls


def class_index(model: TargetModel, cls: int | str, count: int | None = None) -> int:
    """The index of a class by its name or number, of `count` where that is known."""
    index = model.class_index(cls) if isinstance(cls, str) else cls
    if index < 0 or (count is not None and index >= count):
        there = "" if count is None else f"; {model.spec} has classes 0 to {count - 1}"
        raise TargetError(f"class {index} does not exist{there}")
    return index

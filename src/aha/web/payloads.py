"""What the store keeps and the page gets back, as JSON: one type for each kind of record, and that of a job."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from aha.results.viewer.records import CurvesRecord, Drawn

Status = Literal["waiting", "running", "done", "failed", "cancelled"]

# Pictures and classes


class PictureRecord(TypedDict):
    """A picture that was taken in."""

    key: str
    name: str
    width: int
    height: int


class NamedClass(TypedDict):
    """A class of a model."""

    index: int
    label: str


class ScoredClass(NamedClass):
    """A class, and what the model gives it."""

    score: float


# Results; their `model` is what `Workbench.identity_of` says of it, not its name


class ClassesResult(TypedDict):
    """The model's best classes."""

    kind: Literal["classes"]
    picture: str
    model: str
    classes: list[ScoredClass]


class AskedTarget(TypedDict):
    """A target that is no class: its text, or a brushed region of a class."""

    text: str
    cls: str
    rows: int
    columns: int
    bits: str


class MapResult(Drawn):
    """A method's map for one class, or of the one number of a target."""

    kind: Literal["map"]
    key: str
    picture: str
    model: str
    method: str
    target: int
    label: str
    score: float
    seconds: float
    asked: AskedTarget | None


class CurvesResult(TypedDict):
    """The curves of a map, by reference."""

    kind: Literal["curves"]
    key: str
    map: str
    protocol: str
    score: str
    is_probability: bool
    references: dict[str, CurvesRecord]


class ContrastResult(TypedDict):
    """How several classes share a picture."""

    kind: Literal["contrast"]
    picture: str
    model: str
    method: str
    classes: list[ScoredClass]
    colours: list[tuple[int, int, int]]
    height: int
    width: int
    units: dict[str, float]


class ChangeResult(Drawn):
    """Two classes while the pixels that speak for the first rather than the second go."""

    kind: Literal["change"]
    key: str
    picture: str
    model: str
    first: ScoredClass
    second: ScoredClass
    is_probability: bool
    fractions: list[float]
    scores: list[list[float]]
    place: int | None
    says: str | None


class PaintedResult(TypedDict):
    """What the model says to a picture with pixels brushed away."""

    kind: Literal["painted"]
    share: float
    classes: list[ScoredClass]
    best: int


class RefinementStep(TypedDict):
    """A step of a refinement: the keys of its map and curves, and the loss; no curves while they are measured."""

    step: int
    map: str
    curves: str | None
    loss: float


class RefinementResult(TypedDict):
    """A refinement, step by step."""

    kind: Literal["refinement"]
    picture: str
    model: str
    target: int
    steps: list[RefinementStep]


Result = ClassesResult | MapResult | CurvesResult | ContrastResult | ChangeResult | PaintedResult | RefinementResult


class Session(TypedDict):
    """A visitor's pictures, and a view of them that only the page understands."""

    pictures: list[str]
    view: dict[str, object]


# Answers to questions


class State(TypedDict):
    """A job, or, where the answer was known already, what it would have found."""

    key: str
    status: Status
    kind: NotRequired[str]
    progress: NotRequired[float | None]
    images: NotRequired[int]
    parts: NotRequired[list[RefinementStep]]
    seconds: NotRequired[float]
    error: NotRequired[str]
    ahead: NotRequired[int]
    result: NotRequired[Result]

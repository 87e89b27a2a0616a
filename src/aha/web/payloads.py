"""What the page gets and the store keeps, as JSON: one type for each kind of record."""

from __future__ import annotations

from collections.abc import Sequence
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


class Window(TypedDict):
    """The part of a picture that the model sees, in shares of its sides."""

    top: float
    left: float
    bottom: float
    right: float


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


class SharedSession(TypedDict):
    """A session as a link brings it back."""

    pictures: list[PictureRecord]
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


class MethodState(State):
    """The state of one method's map among several."""

    method: str


class MethodRefusal(TypedDict):
    """Why a method gives no map."""

    method: str
    error: str


class SeveralMaps(TypedDict):
    """One answer for each method, in their order."""

    status: Literal["done"]
    answers: list[MethodState | MethodRefusal]


class ClassSearch(TypedDict):
    """Classes that fit a text and, where none does, names that were perhaps meant."""

    classes: list[NamedClass]
    near: list[str]


# What the page knows from the start


class MethodAbout(TypedDict):
    """A method on offer."""

    text: str
    family: str
    summary: str


class ModelAbout(TypedDict):
    """A model on offer."""

    name: str
    kind: Literal["box", "region", "class"]
    classes: int
    height: int
    width: int
    score: str
    is_probability: bool
    digest: str
    methods: list[MethodAbout]
    suggested: list[str]
    explainers: list[str]


class RunAbout(TypedDict):
    """A run on offer."""

    name: str
    model: str


class About(TypedDict):
    """Everything on offer, and its limits."""

    version: str
    models: list[ModelAbout]
    references: Sequence[str]
    colour_maps: Sequence[str]
    examples: list[str]
    runs: list[RunAbout]
    curve_steps: dict[str, int]
    rounds: int
    most_classes: int
    max_upload: int
    max_pixels: int


# Runs


class RunColumn(TypedDict):
    """What was measured: a metric of a protocol with a reference."""

    metric: str
    protocol: str
    reference: str
    title: str


class RunMean(TypedDict):
    """A row of a run's summary; None where a number is not finite."""

    method: str
    metric: str
    protocol: str
    reference: str
    mean: float | None
    standard_error: float | None
    low: float | None
    high: float | None
    n: int
    arrow: str


class RunOverview(RunAbout):
    """The methods, metrics and means of a run."""

    images: int
    methods: list[str]
    columns: list[RunColumn]
    summary: list[RunMean]
    has_report: bool
    has_audit: bool


class RunImage(TypedDict):
    """An image of a run with one value; its class in words if the run's model is on offer."""

    image: str
    title: str
    target: int
    value: float
    outlier: bool
    label: NotRequired[str]

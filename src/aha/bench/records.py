"""What a run writes down, as it stands in its files: cells, what was found in each, and the plans it was asked for."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

Score = tuple[str, str, float]
"""Metric, reference, value."""
Curve = tuple[str, str, list[float], list[float]]
"""Kind, reference, shares of pixels and scores."""
Failed = tuple[str, str]
"""Metric, "" for all of them, and the reason."""
MapPlace = tuple[str, int, int, int, str, float, str]
"""File, offset, height, width, type, scale and checksum."""
PicturePlace = tuple[str, int, int, str]
"""File, offset, bytes and checksum."""


class Found(TypedDict):
    """What one map of a cell was found to be worth."""

    target: int
    score: float
    rows: list[Score]
    curves: list[Curve]
    map: NotRequired[MapPlace]


class Cell(TypedDict):
    """One image, method, protocol and kind of target."""

    key: str
    model: str
    digest: str
    method: str
    protocol: str
    asked: str  # the kind of target, by its name in the files of all versions
    image: str
    label: int | None
    found: list[Found]
    failures: list[Failed]
    version: str
    made: float  # seconds since 1970, for people
    content: str  # digest of the picture
    state: str  # digest of what the cells of all images depend on: method, metrics, version, ...
    truth: dict[str, str]  # digests of the boxes and mask, where a metric looks at them
    saved: NotRequired[str]  # digest of the image's own maps, where they were made elsewhere
    seconds: NotRequired[float | None]
    forward: NotRequired[float | None]
    backward: NotRequired[float | None]
    picture: NotRequired[PicturePlace | None]


class RunSettings(TypedDict):
    """What all numbers of a model in one folder have in common."""

    seed: int
    score: str
    precision: str
    engine: str
    preprocessing: str


class PlanEntry(TypedDict):
    """A plan as it was carried out."""

    key: NotRequired[str]
    plan: dict[str, Any]
    folder: str
    model: str
    digest: str
    classes: list[str]
    score: str
    settings: RunSettings
    methods: list[str]
    covered: dict[str, int]
    protocols: dict[str, list[str]]
    asked: list[str]
    images: int
    left_out: dict[str, str]
    kept: list[str] | None
    device: str
    versions: dict[str, str]

"""What can go wrong, as one tree.

AhaError                 every error this package raises on purpose; one clear line for the user
├── SpecError            a method, model or score text that cannot be understood
│   └── UnknownName      a name that is not registered; the nearest known names are suggested
├── ModelError           a model that cannot be built, loaded or read
│   ├── WeightsError     weights that do not fit, or that would need unpickling
│   └── CapabilityError  a method asks for internals that the model does not have
├── ImageError           an image that cannot be read or is not usable
├── MetricError          a metric cannot be computed for this image, map or model
├── TargetError          a class index or target description that does not fit the model
├── OutputError          a result that cannot be written
└── MissingExtra         an optional dependency is not installed; the install line is named

Warnings derive from AhaWarning, so that users can silence or escalate ours alone.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

__all__ = [
    "AhaError",
    "AhaWarning",
    "CapabilityError",
    "DamageWarning",
    "DeprecatedWarning",
    "ImageError",
    "MapWarning",
    "MetricError",
    "MissingExtra",
    "ModelError",
    "OutputError",
    "SpecError",
    "TargetError",
    "UnknownName",
    "WeightsError",
]

_HERE = str(Path(__file__).parent)
_LONGEST = 1400  # characters: a line that people read


def one_line(text: str) -> str:
    """A message as one line; of a long one, its beginning and its end."""
    line = " ".join(text.split()).encode("utf-8", "backslashreplace").decode()  # names of files may hold anything
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST * 2 // 3]} ... {line[-_LONGEST // 3 + 5 :]}"


class AhaError(Exception):
    """Base of all errors raised on purpose; the message is one line meant for the user."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


class SpecError(AhaError):
    """A specification text cannot be understood."""


class UnknownName(SpecError):
    """A name that is not registered."""


class ModelError(AhaError):
    """A model cannot be built, loaded or read."""


class WeightsError(ModelError):
    """Weights that do not fit the model, or that are not plain tensors."""


class CapabilityError(ModelError):
    """A method needs internals which this model cannot give."""


class ImageError(AhaError):
    """An image cannot be read or used."""


class MetricError(AhaError):
    """A metric cannot be computed."""


class TargetError(AhaError):
    """An explained class that does not exist or cannot be derived."""


class OutputError(AhaError):
    """A result cannot be written."""


class MissingExtra(AhaError):
    """An optional dependency is missing."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an extra: pip install 'aha-attribution[{extra}]'")
        self.extra = extra


class AhaWarning(UserWarning):
    """Base of the warnings of this package."""


class MapWarning(AhaWarning):
    """A map is flat or not finite."""


class DamageWarning(AhaWarning):
    """A file that was written earlier is damaged in part; the rest of it counts."""


class DeprecatedWarning(AhaWarning, FutureWarning):
    """Something still works but will be removed; unlike Python's DeprecationWarning it is shown by default."""


def warn(message: str, category: type[AhaWarning]) -> None:
    """Warns of the line outside this package from which the call came: there the user can do something about it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def deprecated(what: str, *, since: str, use: str) -> None:
    """Warns that `what` is deprecated since a version, `"0.2"`, and is removed in the minor release after it.

    A test reads `since` from the source and fails once that release has come and the old way is still there.
    """
    warn(f"{what} is deprecated since {since} and will be removed in {removal(since)}; use {use}", DeprecatedWarning)


def removal(since: str) -> str:
    """The version that removes what was deprecated in `since`: the next minor release."""
    major, minor = map(int, since.split("."))
    return f"{major}.{minor + 1}"

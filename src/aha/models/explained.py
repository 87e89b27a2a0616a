"""A number of one's own that is explained instead of a class output: what it reads of a pass, and what it is called.

Shapes: inputs (B, C, H, W); numbers (B,).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from aha.errors import ModelError
from aha.models.outputs import OutputReader, picked, read_outputs


@dataclass(frozen=True)
class Answer:
    """What a network gave in one pass.

    Attributes:
        returned: what its forward returned.
        inside: what the parts that were asked for returned, by name.
        size: height and width of the inputs.
        count: number of images B.
        reader: the model's own `output=`.
    """

    returned: Any
    inside: Mapping[str, Any]
    size: tuple[int, int]
    count: int
    reader: OutputReader = None

    @property
    def outputs(self) -> Tensor:
        """Class outputs, or an embedding (B, K)."""
        return read_outputs(self.returned, self.reader)

    @property
    def read(self) -> Any:
        """What was returned, or what `output=` picks of it; of any shape."""
        return picked(self.returned, self.reader)


@dataclass(frozen=True)
class Explained:
    """A number per image of a network.

    Attributes:
        name: its text, which manifests, keys and cards carry.
        function: from an answer to numbers (B,), or to several of them (B, D).
        inside: names of the parts whose outputs it reads.
        is_probability: the numbers lie in [0, 1].
        label: what drawings call it; its text by default.
        kind: what it is called for all images, where it is bound to one.
    """

    name: str
    function: Callable[[Answer], Tensor]
    inside: tuple[str, ...] = ()
    is_probability: bool = False
    label: str = ""
    kind: str = ""

    def numbers(self, answer: Answer) -> Tensor:
        """The numbers of one pass, checked."""
        found = self.function(answer)
        if not isinstance(found, Tensor) or found.dim() not in (1, 2) or len(found) != answer.count:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ModelError(f"{self.name} gives {shape}, not one number for each of {answer.count} images")
        return found

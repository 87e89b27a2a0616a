"""Which cells a plan has, what each is known by, and which are still to be done.

A cell is one image, method, protocol and kind of target. Its key is a digest of all that its numbers depend on, so that
whether a cell is done is asked of its key alone.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from aha import __version__
from aha.bench.plan import Work
from aha.core.disk import result_key
from aha.data.datasets import BenchImage
from aha.methods import Method
from aha.metrics.protocols import Protocol
from aha.models import TargetModel


class Cells:
    """The cells of one model's plan; `done` are the keys of those that are finished."""

    def __init__(self, model: TargetModel, work: Work, words: tuple[str, ...], seed: int, done: Set[str]) -> None:
        self._model, self._protocols, self.done = model, work.protocols, done
        common = result_key(
            __version__,
            model.spec,
            model.digest,
            model.preprocessing,
            model.score.name,
            model.precision,
            seed,
            *model.engine_key,
        )
        prints = {str(method): method.fingerprint(model) for method in work.methods}
        protocols = {p.name: [metric.in_full() for metric in p.metrics] for p in work.protocols}
        # Method, protocol and kind of target -> digest of what the cells of all images depend on.
        self._bases = {
            (method, protocol, word): result_key(common, text, metrics, word)
            for method, text in prints.items()
            for protocol, metrics in protocols.items()
            for word in words
        }

    @property
    def per_image(self) -> int:
        """Number of cells of one image."""
        return len(self._bases)

    def key(self, image: BenchImage, method: str, protocol: str, word: str) -> str:
        """What the cell is known by."""
        return result_key(self._bases[method, protocol, word], image.id, image.size)

    def keys(self, image: BenchImage) -> dict[tuple[str, str, str], str]:
        """Method, protocol and kind of target -> key, for all cells of an image."""
        return {parts: self.key(image, *parts) for parts in self._bases}

    def missing(self, image: BenchImage) -> list[tuple[str, str, str]]:
        """Method, protocol and kind of target of the image's cells that are to be done."""
        return [parts for parts, key in self.keys(image).items() if key not in self.done]

    def missing_protocols(self, image: BenchImage, method: Method, word: str) -> tuple[Protocol, ...]:
        """Protocols by which the method's map of the image is still to be judged."""
        return tuple(p for p in self._protocols if self.key(image, str(method), p.name, word) not in self.done)

    def line(self, image: BenchImage, method: str, protocol: str, word: str, **content: Any) -> dict[str, Any]:
        """The cell as it is written, with nothing found yet unless `content` says so."""
        return {
            "key": self.key(image, method, protocol, word),
            "model": self._model.spec,
            "digest": self._model.digest,
            "method": method,
            "protocol": protocol,
            "asked": word,
            "image": image.id,
            "label": image.label,
            "found": [],
            "failures": [],
            "version": __version__,
            **content,
        }

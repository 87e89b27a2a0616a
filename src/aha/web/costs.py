"""What a map will cost, in images through the model: enough to do cheap ones first.

What a method says of itself is what its parameters allow; what was seen once is known.
"""

from __future__ import annotations

import threading

from aha.methods import Method
from aha.web.served import Served


class Costs:
    """Costs of methods on models, learned as maps are made."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def learn(self, served: Served, method: Method, images: int) -> None:
        """Takes note of what a map has cost."""
        with self._lock:
            self._seen[served.name, method.in_full()] = images

    def of(self, served: Served, method: Method) -> int:
        """What a map will cost."""
        with self._lock:
            known = self._seen.get((served.name, method.in_full()))
        return method.cost(served.fitting, served.model.stated_preprocessing().size).passes if known is None else known

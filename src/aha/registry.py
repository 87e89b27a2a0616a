"""Named collections: methods, score functions, model sources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from typing import Generic, TypeVar

from aha.errors import UnknownName

T = TypeVar("T")


def nearest_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names most like `name`, best first."""
    return get_close_matches(name.lower(), list(known), n=count, cutoff=0.5)


class Registry(Generic[T]):
    """Names to things of one kind; registering a name twice is a mistake, looking up an unknown one explains itself."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files a thing under `name`."""

        def add(thing: T) -> T:
            if name in self._things:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._things[name] = thing
            return thing

        return add

    def __getitem__(self, name: str) -> T:
        try:
            return self._things[name]
        except KeyError:
            hints = nearest_names(name, self._things)
            close = f"did you mean {', '.join(hints)}?" if hints else f"known: {', '.join(sorted(self._things))}"
            raise UnknownName(f"unknown {self.kind} {name!r}; {close}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._things))

    def __len__(self) -> int:
        return len(self._things)

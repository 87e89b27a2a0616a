"""Named collections: methods, score functions, model sources."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Generic, TypeVar

from aha.errors import UnknownName

T = TypeVar("T")

_MOST_NAMED = 20  # names that still fit into one line


def nearest_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names most like `name`, best first."""
    return get_close_matches(name.lower(), list(known), n=count, cutoff=0.5)


def plainly(name: str) -> str:
    """A name without what people spell differently: `GradCAM`, `grad-cam` and `grad_cam` are the same."""
    return re.sub(r"[-_]", "", name).lower()


class Registry(Generic[T]):
    """Names to things of one kind; registering a name twice is a mistake, looking up an unknown one explains itself.

    Args:
        kind: what the things are, for messages.
        also: what else some of them are called, spelt plainly -> their names. With it, names may be spelt in any way.
    """

    def __init__(self, kind: str, also: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._things: dict[str, T] = {}
        self._also = also

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
            return self._things[self._own_name(name)]
        except KeyError:
            raise UnknownName(f"unknown {self.kind} {name!r}; {self._hint(name)}") from None

    def _own_name(self, name: str) -> str:
        """The name under which it is filed, if people may mean that by this one."""
        if name in self._things or self._also is None:
            return name
        plain = plainly(name)
        return next((known for known in self._things if plainly(known) == plain), self._also.get(plain, name))

    def _hint(self, name: str) -> str:
        if close := nearest_names(name, self._things):
            return f"did you mean {', '.join(close)}?"
        if len(self) > _MOST_NAMED:
            return f"`aha list {self.kind}s` shows all {len(self)}"
        return f"known: {', '.join(self)}"

    def __contains__(self, name: object) -> bool:
        return name in self._things or (isinstance(name, str) and self._own_name(name) in self._things)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._things))

    def __len__(self) -> int:
        return len(self._things)

"""Classes by name: the index of a name, and what may have been meant where there is none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache
from itertools import product

from aha.core.registry import nearest_names
from aha.errors import TargetError
from aha.models.loading.metadata import imagenet_names

_MOST_OFFERED = 5
_ALIKE = 0.8  # of words, as difflib measures it: "catt" and "cat"


def index_of(name: str, names: Sequence[str] | None) -> int:
    """The class with this name, or with this number written as text; other words for ImageNet's classes will do."""
    if re.fullmatch(r"-?\d+", name):
        return int(name)
    wanted, known = name.strip().lower(), [known.lower() for known in names or ()]
    if wanted in known:
        return known.index(wanted)
    synonyms = synonyms_of(tuple(names or ()))
    found = [index for index, words in enumerate(synonyms) if wanted in words]
    if len(found) == 1:
        return found[0]
    offered = perhaps_meant(name, names or ())
    advice = (
        f"did you mean {', '.join(offered)}?" if offered else "write top1, top5, label, a class index or a class name"
    )
    raise TargetError(f"unknown target {name!r}; {advice}")


def perhaps_meant(name: str, names: Sequence[str]) -> list[str]:
    """Classes that have these words, else one that is spelt much like them, else the names most like all of it."""
    wanted, synonyms = name.strip().lower(), synonyms_of(tuple(names))
    found = with_words(wanted, synonyms)
    if not found:
        spelt = {word for known in synonyms for one in known for word in _words(one)}
        close = [get_close_matches(word, spelt, cutoff=_ALIKE) for word in _words(wanted)]
        found = sorted({i for words in product(*close) for i in with_words(" ".join(words), synonyms)})
    originals = {known.lower(): known for known in names}
    return [names[i] for i in found[:_MOST_OFFERED]] or [originals[near] for near in nearest_names(wanted, originals)]


def with_words(wanted: str, synonyms: Sequence[Sequence[str]]) -> list[int]:
    """The classes that have all these words in one of their names."""
    words = set(_words(wanted))
    if not words:
        return []
    return [index for index, names in enumerate(synonyms) if any(words <= set(_words(name)) for name in names)]


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name)


@lru_cache(maxsize=4)
def synonyms_of(names: tuple[str, ...]) -> list[list[str]]:
    """All names of each class, in small letters: one of a model's own, several where they are ImageNet's."""
    own = [[name.lower()] for name in names]
    if names != tuple(imagenet_names()):
        return own
    from timm.data import ImageNetInfo

    lemmas = ImageNetInfo("imagenet-1k").label_descriptions()  # "tabby, tabby cat"
    return [
        [*first, *(name.strip().lower() for name in more.split(","))] for first, more in zip(own, lemmas, strict=True)
    ]

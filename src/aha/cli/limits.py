"""Work that this machine can hardly do is refused with its figures, unless it is wanted all the same."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aha.methods import Method
    from aha.models import TargetModel

_MOST_PASSES = 200_000  # of one map: an hour for a small network on a CPU
_MEMORY_WHERE_UNKNOWN = 16 * 2**30


def check_cost(methods: Iterable[Method], model: TargetModel, *, force: bool) -> None:
    """Refuses methods whose maps would take days or all memory.

    Raises:
        SpecError: One of them would; the figures are named.
    """
    from aha.errors import SpecError
    from aha.methods.cost import Cost

    if force or model.preprocessing is None:
        return
    limit = Cost(_MOST_PASSES, _memory() // 2)
    for method in methods:
        cost = method.cost(model, model.preprocessing.places)
        if not cost.within(limit):
            raise SpecError(
                f"{str(method)[:80]} needs about {cost} for one map, more than {limit}; choose fewer samples or a "
                "coarser grid, or add --force"
            )


def _memory() -> int:
    """Of the machine."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return _MEMORY_WHERE_UNKNOWN

"""Generated data sets and small networks trained on them, where the pixels that matter are known by construction."""

from aha.truth.sets import PREFIX, names_of_sets, trials_of

__all__ = ["PREFIX", "names_of_sets", "trials_of"]

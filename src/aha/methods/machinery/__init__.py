"""What methods are built on: orders of patches and the search for them, activation patching, relevance by layers.

Nothing here is a method: one file of `aha.methods` is one method, except `base` and `cost`.
"""

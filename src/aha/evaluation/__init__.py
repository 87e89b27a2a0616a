"""How far maps can be trusted, measured: one loop over batches, for maps from anywhere and results that go anywhere.

`loop.py` is the loop. Its maps come from a `MapSource` (a method, maps in memory, saved maps), its results go to a
`Sink` (memory, or a run folder, as `aha.bench` has it). `evaluate.py` and `cards.py` run it in memory.
"""

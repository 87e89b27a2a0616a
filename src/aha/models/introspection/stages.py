"""Where a model keeps places: the outputs from which class activation maps can be read.

A stage is the last output at each spatial resolution that is not a branch on the way to the next one. Transformers
with one sequence of tokens have a stage for each attention instead: the normalised tokens that it reads.

Why normalised: a layer norm ignores the length of the features at a place, so a gradient that comes back through it is
orthogonal to what went in, and their product, which HiResCAM takes, would be rounding noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aha.models.introspection.layout import Layout, read_layout
from aha.models.introspection.watching import Call


@dataclass(frozen=True)
class Site:
    """One output of the model that has a spatial reading: the `call`-th call of the module `name`."""

    name: str
    call: int
    layout: Layout
    in_tuple: bool = False  # the module returns (tensor, ...) rather than a tensor


Spot = tuple[Call, Layout]


def site_of(call: Call, layout: Layout) -> Site:
    """The public part of a call."""
    return Site(call.name, call.call, layout, call.in_tuple)


def find_spots(calls: list[Call], attention: list[tuple[int, ...]], batch: int, image: tuple[int, ...]) -> list[Spot]:
    """The calls whose output has a spatial layout; `attention` are the shapes of the model's attention matrices."""
    matrices = {shape[-2:] for shape in attention}
    spots: list[Spot] = []
    for call in calls:
        shape = call.output_shape
        if call.is_transparent or not shape or shape[0] != batch:
            continue
        if len(shape) == 3 and len(call.input_shape) not in (3, 4):
            continue
        if call.is_linear and shape[1:3] in matrices:
            continue  # heads that talk to each other: attention, not a map
        layout = read_layout(shape, image, [known.grid for _, known in spots])
        if layout is not None:
            spots.append((call, layout))
    return spots


def find_stages(
    spots: list[Spot], image: tuple[int, ...], attention_count: int, *, has_blocks: bool
) -> tuple[Site, ...]:
    """The stages, ordered by when they were made; `has_blocks` says that all attention is over one token sequence."""
    order = {id(call): index for index, (call, _) in enumerate(spots)}
    chosen = {order[id(spot[0])]: spot for spot in _last_of_each_grid(spots, image)}
    for call, layout in _read_by_attention(spots, attention_count):
        if has_blocks or layout.prefix:
            chosen[order[id(call)]] = (call, layout)
    return tuple(site_of(*chosen[index]) for index in sorted(chosen))


def _last_of_each_grid(spots: list[Spot], image: tuple[int, ...]) -> Iterator[Spot]:
    layouts = {id(call): layout for call, layout in spots}
    for grid in dict.fromkeys(layout.grid for _, layout in spots):
        here = [(call, layout) for call, layout in spots if layout.grid == grid]
        # Linear layers on tokens are parts of something larger: queries and keys, or a head for each token.
        whole = [
            s for s in here if not s[0].is_linear and (grid == image or not _is_branch(s[0], grid, image, layouts))
        ]
        last, layout = (whole or here)[-1]
        norms = [spot for spot in here if spot[0].is_norm and last in spot[0].reads]
        yield norms[0] if norms else (last, layout)


def _is_branch(call: Call, grid: tuple[int, ...], image: tuple[int, ...], layouts: dict[int, Layout]) -> bool:
    """Does it lie inside a module that takes this grid in and hands another one on, past a shortcut perhaps?"""
    around = call.parent
    while around is not None:
        after = layouts.get(id(around))
        if after is not None and after.grid != grid and not around.is_sequence:
            before = read_layout(around.input_shape, image, [grid])
            if before is not None and before.grid == grid:
                return True
        around = around.parent
    return False


def _read_by_attention(spots: list[Spot], count: int) -> Iterator[Spot]:
    """For each attention, the last normalised tokens before it, as the outermost module hands them on."""
    layouts = {id(call): layout for call, layout in spots}
    norms = {call.attention_after: call for call, layout in spots if call.is_norm and layout.kind == "NLC"}
    norms.pop(count, None)  # no attention follows
    for call in norms.values():
        outermost = call.handed_on_by or call
        yield (outermost, layouts[id(outermost)]) if id(outermost) in layouts else (call, layouts[id(call)])

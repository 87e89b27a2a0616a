"""What a model is made of, found by watching one forward pass: stages, transformer blocks, attention.

No library's classes are listed here. Parts are recognised by what they do; norms and pooling by that word in the name
of their class (`watching.py`). A transformer block is the outermost module call around exactly one attention call that
maps tokens (B, T, D) to tokens of the same shape. So a home-made ViT is read like one from timm, torchvision or
transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from torch import nn

from aha.models.introspection.layout import Layout, token_grid
from aha.models.introspection.stages import Site, find_spots, find_stages, site_of
from aha.models.introspection.watching import Call, watch
from aha.models.loading.fixed_inputs import FixedInputs
from aha.models.loading.functions import FunctionModule

__all__ = ["Site", "Structure", "probe"]


@dataclass(frozen=True)
class Structure:
    """The readable parts of a model for one input size.

    Attributes:
        stages: spatial outputs from shallow to deep; for token transformers, what the attention of each block reads,
            and what follows the last block.
        blocks: transformer blocks, empty unless every block attends globally over one token sequence.
        attention: ordinals, among all attention calls of a forward pass, of the blocks' attention.
        missing: capability -> why this model cannot give it.
        residual_mid: for each block, the norm that reads the tokens between attention and MLP: X^l plus what
            attention adds.
        spots: every output with a spatial reading, in the order in which they are made: what can be named as a layer.
    """

    stages: tuple[Site, ...]
    blocks: tuple[Site, ...]
    attention: tuple[int, ...]
    missing: Mapping[str, str] = field(default_factory=dict)
    residual_mid: tuple[Site, ...] = ()
    spots: tuple[Site, ...] = ()

    def site(self, index: int) -> Site:
        """A stage by its number, or, from their count on, one of the spots."""
        return self.stages[index] if index < len(self.stages) else self.spots[index - len(self.stages)]

    def spot_named(self, name: str) -> int | None:
        """The number by which `site` knows the last output of a module, if that has a spatial reading."""
        place = _last_named(name, self.spots)
        return None if place is None else len(self.stages) + place

    def block_named(self, name: str) -> int | None:
        """Which of the transformer blocks the module of this name is, if it is one."""
        return _last_named(name, self.blocks)

    @property
    def capabilities(self) -> frozenset[str]:
        """What methods may ask for, beyond the outputs themselves."""
        found = {
            "features": self.stages,
            "tokens": self.blocks,
            "attention": self.attention,
            "branches": self.residual_mid,
        }
        return frozenset({"gradients"} | {name for name, parts in found.items() if parts and name not in self.missing})


def _last_named(name: str, sites: Sequence[Site]) -> int | None:
    """The last of the sites with this name, or else, if there is but one such name, with this end of a name."""
    for match in (name.__eq__, lambda known: known.endswith(f".{name}")):
        found = [place for place, site in enumerate(sites) if match(site.name)]
        if found and len({sites[place].name for place in found}) == 1:
            return found[-1]
    return None


Matrices = list[tuple[int, tuple[int, ...]]]
"""Attention matrices of a forward pass: their ordinals and shapes."""

_BATCH = 2  # tells the images of a batch from other axes


def probe(module: nn.Module, run: Callable[[int], object], image: tuple[int, ...]) -> Structure:
    """Watches `run(count)`, a forward pass of `module` on so many images of size (H, W), and reads its structure."""
    batch = _BATCH
    calls, shapes, constant = watch(module, lambda: run(batch))
    matrices = list(enumerate(shapes))
    if isinstance(module, FixedInputs | FunctionModule):  # the same parts may read other inputs, which stay as they are
        calls = [call for call in calls if not call.is_constant]
        matrices = [matrix for matrix in matrices if matrix[0] not in constant]
    spots = find_spots(calls, shapes, batch, image)
    grids = [layout.grid for _, layout in spots if layout.kind != "NLC"]
    attention, why_no_attention = _find_attention(matrices, batch, image, grids)
    if not attention and (of_images := _that_grow(shapes, watch(module, lambda: run(batch + 1)).attention_shapes)):
        attention, why_no_attention = _find_attention(of_images, batch, image, grids)
    blocks = _find_blocks(calls, attention, shapes, batch, image, grids)
    missing: dict[str, str] = {}
    residual_mid = _find_residual_mid(calls, attention, blocks)
    if attention and not blocks:
        attention, why_no_attention = (), "its blocks do not pass on tokens as (batch, tokens, channels)"
    if not attention:
        missing |= dict.fromkeys(("attention", "tokens", "branches"), why_no_attention)
    elif not residual_mid:
        missing["branches"] = "its blocks do not add attention and MLP to the tokens one after the other"
    stages = find_stages(spots, image, len(shapes), has_blocks=bool(blocks))
    if not stages:
        missing["features"] = "no layer keeps a spatial layout"
    return Structure(stages, blocks, attention, missing, residual_mid, tuple(site_of(*spot) for spot in spots))


def _that_grow(shapes: list[tuple[int, ...]], for_one_more: list[tuple[int, ...]]) -> Matrices:
    """The attention whose matrices grow with the batch; that of a text tower inside the model stays what it is."""
    if len(shapes) != len(for_one_more):
        return []
    grown = [(i, shape) for i, shape in enumerate(shapes) if shape != for_one_more[i]]
    return grown if len(grown) < len(shapes) else []


def _find_attention(
    matrices: Matrices, batch: int, image: tuple[int, ...], grids: list[tuple[int, ...]]
) -> tuple[tuple[int, ...], str]:
    """Ordinals of the global attention calls over one token sequence, or the reason why there are none."""
    if not matrices:
        return (), "no softmax attention is computed"
    # Pooling by a class or latent query reads the tokens once and mixes nothing: it does not count.
    mixing = [(i, s) for i, s in matrices if s[-2] > 1]
    if not mixing:
        return (), "attention only pools, it does not mix tokens"
    sizes = {shape[-2:] for _, shape in mixing}
    if not all(_is_per_image(shape, batch) for _, shape in mixing):
        return (
            (),
            f"its attention is windowed (over {', '.join(str(s[1]) for s in sorted(sizes))} tokens at a time)",
        )
    if any(rows != columns for rows, columns in sizes):
        return (), "its attention reads pooled keys, so rows and columns are not the same tokens"
    if len(sizes) > 1:
        return (
            (),
            f"its number of tokens changes between layers ({', '.join(str(s[0]) for s in sorted(sizes))})",
        )
    (size, _) = next(iter(sizes))
    if token_grid(size, image, grids) is None:
        return (), f"its attention is over {size} channels or groups, not over places"
    return tuple(i for i, _ in mixing), ""


def _is_per_image(shape: tuple[int, ...], batch: int) -> bool:
    """One attention matrix per image and head: (B, h, T, S), or (B * h, T, S) where the heads are merged in."""
    return shape[0] == batch if len(shape) == 4 else len(shape) == 3 and shape[0] % batch == 0


def _find_blocks(
    calls: list[Call],
    attention: tuple[int, ...],
    shapes: list[tuple[int, ...]],
    batch: int,
    image: tuple[int, ...],
    grids: list[tuple[int, ...]],
) -> tuple[Site, ...]:
    blocks = []
    for ordinal in attention:
        num_tokens = shapes[ordinal][-1]
        grid = token_grid(num_tokens, image, grids)
        assert grid is not None
        layout = Layout("NLC", grid, prefix=num_tokens - prod(grid))
        around = [
            call
            for call in calls
            if call.attention_before == ordinal
            and call.attention_after == ordinal + 1
            and call.output_shape[:2] == (batch, num_tokens)
            and call.input_shape == call.output_shape
        ]
        if not around:
            return ()
        block = around[-1]  # calls finish from the inside out
        blocks.append(site_of(block, layout))
    return tuple(blocks)


def _find_residual_mid(calls: list[Call], attention: tuple[int, ...], blocks: tuple[Site, ...]) -> tuple[Site, ...]:
    """For each block, the first norm behind its attention that reads a sum which the block itself has made."""
    residual_mid = []
    for ordinal, site in zip(attention, blocks, strict=False):
        block = next(call for call in calls if (call.name, call.call) == (site.name, site.call))
        norms = [call for call in calls if call.is_norm and _lies_behind(call, block, ordinal)]
        if any(norm.handed_on_by is block for norm in norms):
            return ()  # norms behind the sums: what a block hands on is no sum of branches
        summed = [norm for norm in norms if norm.input_shape == block.input_shape and not norm.reads]
        if not summed:
            return ()
        residual_mid.append(site_of(summed[0], site.layout))
    return tuple(residual_mid)


def _lies_behind(call: Call, block: Call, ordinal: int) -> bool:
    """Does the call lie inside the block, outside of all that computes the block's attention, and later than it?"""
    around: Call | None = call
    while around is not None and around is not block:
        if around.attention_before != ordinal + 1:
            return False
        around = around.parent
    return around is block

"""What a model is made of, found by watching one forward pass: stages, transformer blocks, attention.

Nothing here knows a library's class names. A stage is the last output at each spatial resolution; a transformer block
is the outermost module call around exactly one attention call that maps tokens (B, T, D) to tokens of the same shape.
So a home-made ViT is read like one from timm, torchvision or transformers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from aha.models.attention import AttentionTap
from aha.models.hooks import first_tensor
from aha.models.layout import Layout, read_layout, token_grid

# Modules that hand on what they get, or whose 4-D outputs are attention matrices rather than maps.
_TRANSPARENT = (nn.Dropout, nn.Softmax, nn.Identity, nn.Flatten)


@dataclass(frozen=True)
class Site:
    """One output of the model that has a spatial reading: the `call`-th call of the module `name`."""

    name: str
    call: int
    layout: Layout
    in_tuple: bool = False  # the module returns (tensor, ...) rather than a tensor


@dataclass(frozen=True)
class Structure:
    """The readable parts of a model for one input size.

    Attributes:
        stages: spatial outputs from shallow to deep; for token transformers, what the attention of each block reads,
            and what follows the last block.
        blocks: transformer blocks, empty unless every block attends globally over one token sequence.
        attention: ordinals, among all attention calls of a forward pass, of the blocks' attention.
        missing: capability -> why this model cannot give it.
    """

    stages: tuple[Site, ...]
    blocks: tuple[Site, ...]
    attention: tuple[int, ...]
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def capabilities(self) -> frozenset[str]:
        """What methods may ask for, beyond the outputs themselves."""
        found = {"features": self.stages, "tokens": self.blocks, "attention": self.attention}
        return frozenset({"gradients"} | {name for name, parts in found.items() if parts and name not in self.missing})


@dataclass
class _Call:
    name: str
    call: int
    attention_before: int
    attention_after: int = 0
    input_shape: tuple[int, ...] = ()
    output_shape: tuple[int, ...] = ()
    in_tuple: bool = False
    is_site: bool = True
    is_norm: bool = False


class _Watcher:
    """Records module calls, in the order in which they finish, and attention calls among them."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []
        self.attention_shapes: list[tuple[int, ...]] = []
        self._open: list[_Call] = []
        self._count: Counter[str] = Counter()
        self._pooled: list[Tensor] = []

    def on_attention(self, weights: Tensor) -> Tensor:
        self.attention_shapes.append(tuple(weights.shape))
        return weights

    def on_enter(self, name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            tensor = first_tensor(args) if args else first_tensor(list(kwargs.values()))
            shape = () if tensor is None else tuple(tensor.shape)
            self._open.append(_Call(name, self._count[name], len(self.attention_shapes), input_shape=shape))
            self._count[name] += 1

        return hook

    def on_leave(self, module: nn.Module, _args: Any, output: Any) -> None:
        call = self._open.pop()
        call.attention_after = len(self.attention_shapes)
        tensor = first_tensor(output)
        call.output_shape = () if tensor is None else tuple(tensor.shape)
        call.in_tuple = isinstance(output, tuple)
        if tensor is not None and "pool" in type(module).__name__.lower():
            self._pooled.append(tensor)
        # A container that returns its pooling layer's output has nothing to show of its own.
        is_pooled = any(tensor is pooled for pooled in self._pooled)
        call.is_site = not is_pooled and not isinstance(module, _TRANSPARENT)
        call.is_norm = "norm" in type(module).__name__.lower()
        self.calls.append(call)


def probe(module: nn.Module, run: Callable[[], Any], batch: int, image: tuple[int, int]) -> Structure:
    """Watches `run()`, a forward pass of `module` on `batch` >= 2 images of size (H, W), and reads its structure."""
    watcher = _Watcher()
    with ExitStack() as stack:
        for name, part in module.named_modules():
            stack.callback(part.register_forward_pre_hook(watcher.on_enter(name), with_kwargs=True).remove)
            stack.callback(part.register_forward_hook(watcher.on_leave).remove)
        stack.enter_context(AttentionTap(watcher.on_attention))
        run()
    sites = _find_sites(watcher.calls, batch, image)
    grids = [site.layout.grid for site in sites if site.layout.kind != "NLC"]
    attention, why_no_attention = _find_attention(watcher.attention_shapes, batch, image, grids)
    blocks = _find_blocks(watcher.calls, attention, watcher.attention_shapes, batch, image, grids)
    missing: dict[str, str] = {}
    if attention and not blocks:
        attention, why_no_attention = (), "its blocks do not pass on tokens as (batch, tokens, channels)"
    if not attention:
        missing |= {"attention": why_no_attention, "tokens": why_no_attention}
    stages = _find_token_stages(watcher.calls, blocks, attention) if blocks else _find_stages(sites)
    if not stages:
        missing["features"] = "no layer keeps a spatial layout"
    return Structure(stages, blocks, attention, missing)


def _find_sites(calls: list[_Call], batch: int, image: tuple[int, int]) -> list[Site]:
    sites: list[Site] = []
    for call in calls:
        shape = call.output_shape
        if not call.is_site or not shape or shape[0] != batch:
            continue
        if len(shape) == 3 and len(call.input_shape) not in (3, 4):
            continue
        layout = read_layout(shape, image, [site.layout.grid for site in sites])
        if layout is not None:
            sites.append(Site(call.name, call.call, layout, call.in_tuple))
    return sites


def _find_stages(sites: list[Site]) -> tuple[Site, ...]:
    """One stage per grid: the last, outermost output there; ordered by when it was made.

    Sequences with a class token also keep their numbered layers: what follows the last mixing of tokens may be read
    at the class token alone, and then an earlier layer is the last to carry places.
    """
    kept = {site.layout.grid: index for index, site in enumerate(sites)}.values()
    layers = {s.name: i for i, s in enumerate(sites) if s.layout.prefix and s.name.rpartition(".")[2].isdigit()}
    outermost = [i for name, i in layers.items() if not any(name.startswith(f"{other}.") for other in layers)]
    return tuple(sites[index] for index in sorted({*kept, *outermost}))


def _find_token_stages(calls: list[_Call], blocks: tuple[Site, ...], attention: tuple[int, ...]) -> tuple[Site, ...]:
    """What carries places through a transformer: the normalised input of each block's attention, then the final tokens.

    The blocks' own outputs will not do where a layer norm follows. It ignores the length of a token, so a gradient
    that comes through it is orthogonal to the token, and their product, which HiResCAM takes, is rounding noise.
    """
    shape = next(c.output_shape for c in calls if (c.name, c.call) == (blocks[-1].name, blocks[-1].call))
    norms = [call for call in calls if call.is_norm and call.input_shape == call.output_shape == shape]
    before = []
    for block, ordinal in zip(blocks, attention, strict=True):
        inside = (n for n in norms if n.name.startswith(f"{block.name}.") and n.call == block.call)
        if (norm := next((n for n in inside if n.attention_after == ordinal), None)) is not None:
            before.append(Site(norm.name, norm.call, block.layout))
    if len(before) < len(blocks):
        before = list(blocks[:-1])  # norms follow the attention: the blocks hand on normalised tokens
    inner = tuple(f"{block.name}." for block in blocks)
    after = [n for n in norms if n.attention_before > attention[-1] and not n.name.startswith(inner)]
    last = Site(after[-1].name, after[-1].call, blocks[-1].layout) if after else blocks[-1]
    return (*before, last)


def _find_attention(
    shapes: list[tuple[int, ...]], batch: int, image: tuple[int, int], grids: list[tuple[int, int]]
) -> tuple[tuple[int, ...], str]:
    """Ordinals of the global attention calls over one token sequence, or the reason why there are none."""
    if not shapes:
        return (), "no softmax attention is computed"
    # Pooling by a class or latent query reads the tokens once and mixes nothing: it does not count.
    mixing = [(i, s) for i, s in enumerate(shapes) if s[-2] > 1]
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
    calls: list[_Call],
    attention: tuple[int, ...],
    shapes: list[tuple[int, ...]],
    batch: int,
    image: tuple[int, int],
    grids: list[tuple[int, int]],
) -> tuple[Site, ...]:
    blocks = []
    for ordinal in attention:
        num_tokens = shapes[ordinal][-1]
        grid = token_grid(num_tokens, image, grids)
        assert grid is not None
        layout = Layout("NLC", grid, prefix=num_tokens - grid[0] * grid[1])
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
        blocks.append(Site(block.name, block.call, layout, block.in_tuple))
    return tuple(blocks)

"""Sees softmax attention wherever it is computed, without knowing the model.

Fused attention (`scaled_dot_product_attention`, `nn.MultiheadAttention`) never forms the attention matrix, so there
is nothing to hook. While an `AttentionTap` is active it computes these operations explicitly, and it also sees plain
softmax calls; each attention matrix passes through one callback, which may record it or put another in its place.
No flag of the model is touched: the tap lives in PyTorch's function dispatch, for this thread, inside one `with`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor
from torch.overrides import TorchFunctionMode

from aha.errors import CapabilityError

OnAttention = Callable[[Tensor], Tensor]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Scaled queries (B, h, T, d), keys (B, h, S, d) and values -> mixed values (B, h, T, d)."""

_SOFTMAX = {torch.softmax, torch.Tensor.softmax, F.softmax, torch.special.softmax}
_SDPA = F.scaled_dot_product_attention
_MULTI_HEAD = F.multi_head_attention_forward


class _AttentionMode(TorchFunctionMode):
    """Calls these in place of every attention inside the block: fused, of several heads, or a softmax by hand."""

    def __init__(
        self, fused: Callable[..., Any], multi_head: Callable[..., Any], written_out: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self._fused, self._multi_head, self._written_out = fused, multi_head, written_out

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _SDPA:
            return self._fused(*args, **kwargs)
        if func is _MULTI_HEAD and not _has_rare_options(args, kwargs):
            return self._multi_head(*args, **kwargs)
        result = func(*args, **kwargs)
        if func in _SOFTMAX and result.dim() >= 3 and _dim(args, kwargs) in (-1, result.dim() - 1):
            return self._written_out(result)
        return result


class AttentionTap(_AttentionMode):
    """Passes every attention matrix (..., T, S) computed inside the block through `on_attention`, in order."""

    def __init__(self, on_attention: OnAttention) -> None:
        fused, several = (partial(f, on_attention=on_attention) for f in (explicit_attention, explicit_multi_head))
        super().__init__(fused, several, on_attention)


class AttentionSwap(_AttentionMode):
    """Calls `attend` in place of every fused attention; attention written out by hand cannot be replaced."""

    def __init__(self, attend: Attend) -> None:
        fused, several = (partial(f, attend=attend) for f in (explicit_attention, explicit_multi_head))
        super().__init__(fused, several, _refuse)


def _refuse(_weights: Tensor) -> Tensor:
    raise CapabilityError("its attention is written out by hand, which hides its keys and values")


def explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    on_attention: OnAttention | None = None,
    attend: Attend | None = None,
) -> Tensor:
    """`scaled_dot_product_attention` with its attention matrix (..., T, S) in the open, or with other mixing."""
    if enable_gqa:  # grouped queries: each key and value head serves several query heads
        repeats = query.shape[-3] // key.shape[-3]
        key, value = (x.repeat_interleave(repeats, dim=-3) for x in (key, value))
    query = query * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attend is not None:
        if attn_mask is not None or is_causal:
            raise CapabilityError("its attention depends on the places of its tokens (a mask or relative positions)")
        return attend(query, key, value)
    logits = query @ key.transpose(-2, -1)  # (..., T, S)
    if is_causal:
        attn_mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    if attn_mask is not None:
        is_bool = attn_mask.dtype == torch.bool
        # Subtracted, so that no rule for sums takes a mask, which only shifts, for a second signal.
        logits = logits.masked_fill(~attn_mask, -math.inf) if is_bool else logits - (-attn_mask)
    weights = logits.softmax(dim=-1)
    weights = weights if on_attention is None else on_attention(weights)
    return F.dropout(weights, dropout_p) @ value


def explicit_multi_head(
    query: Tensor,  # (T, B, E): nn.MultiheadAttention always calls with the sequence first
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    on_attention: OnAttention | None = None,
    attend: Attend | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`multi_head_attention_forward` with its attention matrix (B, h, T, S) in the open, or with other mixing."""
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    weights = separate if in_proj_weight is None else in_proj_weight.chunk(3)
    biases = (None, None, None) if in_proj_bias is None else in_proj_bias.chunk(3)

    def heads(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        assert weight is not None
        return rearrange(F.linear(x, weight, bias), "t b (h d) -> b h t d", h=num_heads)

    q, k, v = (heads(x, w, b) for x, w, b in zip((query, key, value), weights, biases, strict=True))
    seen: list[Tensor] = []

    def keep(matrix: Tensor) -> Tensor:
        seen.append(matrix if on_attention is None else on_attention(matrix))
        return seen[-1]

    rate = dropout_p if training else 0.0
    mixed = explicit_attention(q, k, v, attn_mask, rate, on_attention=keep, attend=attend)
    output = F.linear(rearrange(mixed, "b h t d -> t b (h d)"), out_proj_weight, out_proj_bias)
    if not (need_weights and seen):
        return output, None
    return output, seen[0].mean(dim=1) if average_attn_weights else seen[0]


def _has_rare_options(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Options of multi-head attention that no vision model uses; such calls stay fused and unseen."""
    is_batched = args[0].dim() == 3
    mask_dim = getattr(kwargs.get("attn_mask"), "ndim", 2)
    rare = (kwargs.get(name) is not None for name in ("key_padding_mask", "static_k", "static_v"))
    return not is_batched or mask_dim != 2 or args[7] is not None or args[9] or any(rare)


def _dim(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return kwargs["dim"] if "dim" in kwargs else args[1] if len(args) > 1 else None

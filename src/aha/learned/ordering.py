"""Soft orders: which share of each region belongs to the k most important ones, as a differentiable function.

The hard metrics sort; sorting has no useful gradient. AHA matches region scores to target ranks by entropic optimal
transport (Gumbel-Sinkhorn, paper section 3.1). Everything is in log space and float32 or better.

Symbols: a (B, K) region scores; p_j = (K + 1 - j) / K, j = 1..K the target positions (eq. 5); tau the temperature; Q
(B, K, K) the soft permutation, rows regions and columns ranks (the paper's P is its transpose); m (B, S, K) soft top-k
masks for S counts k_1 < ... < k_S.

Two forms with one meaning. The *full* one is the paper's: Q over all K ranks, masks by cumulative sums (eq. 8). The
*binned* one uses that only S cumulative sums are ever read: the ranks between two counts form one bin with their number
as capacity, and the kernel of a bin is the integral of the kernel over its ranks. It costs K (S + 1) instead of K^2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SINKHORN_ITERATIONS = 30


def target_positions(count: int, like: Tensor) -> Tensor:
    """p = (1, (K-1)/K, ..., 1/K), descending (K,)."""
    return torch.arange(count, 0, -1, device=like.device, dtype=like.dtype) / count


def standardised(scores: Tensor) -> Tensor:
    """Scores (B, K) with the mean and deviation of the target positions; a flat row stays flat.

    Transport depends on the scores only through exp(2 a_i p_j / tau), so rescaling them is a change of temperature:
    left free, the network would set its own. Shifts do not matter in the limit, but slow down convergence.
    """
    count = scores.shape[-1]
    mean, deviation = (count + 1) / (2 * count), math.sqrt((count**2 - 1) / 12) / count
    centred = scores - scores.mean(dim=-1, keepdim=True)
    spread = centred.square().mean(dim=-1, keepdim=True).clamp(min=1e-12).sqrt()
    return mean + deviation * centred / spread


def soft_permutation(
    scores: Tensor, temperature: float, *, noise: Tensor | None = None, iterations: int = SINKHORN_ITERATIONS
) -> Tensor:
    """Q (B, K, K) from standardised scores (B, K), eq. 6-7, after the given Sinkhorn iterations.

    Ranks are normalised first and regions last: each region's shares sum to exactly one, so that masks lie in [0, 1].
    """
    positions = target_positions(scores.shape[-1], scores)
    logits = -(scores[..., :, None] - positions).square() / temperature  # (B, K, K)
    if noise is not None:
        logits = logits + noise
    zero = torch.zeros_like(positions)
    return _sinkhorn(logits, zero, iterations).exp()


def soft_masks_full(
    scores: Tensor,
    counts: Tensor,
    temperature: float,
    *,
    noise: Tensor | None = None,
    iterations: int = SINKHORN_ITERATIONS,
) -> Tensor:
    """Soft top-k masks (B, S, K) through the full soft permutation (eq. 8); `counts` (S,) are whole numbers."""
    ordered = soft_permutation(scores, temperature, noise=noise, iterations=iterations).cumsum(dim=-1)  # (B, K, K)
    padded = torch.cat([torch.zeros_like(ordered[..., :1]), ordered], dim=-1)  # column k: the top k
    return padded[..., counts].transpose(-1, -2)


def soft_masks_binned(
    scores: Tensor,
    counts: Tensor,
    temperature: float,
    *,
    noise: Tensor | None = None,
    iterations: int = SINKHORN_ITERATIONS,
) -> Tensor:
    """Soft top-k masks (B, S, K) with one bin of ranks between consecutive counts."""
    total = scores.shape[-1]
    edges = torch.cat([counts.new_zeros(1), counts, counts.new_full((1,), total)]).to(scores)  # (S + 2,)
    # Rank j covers positions (K + 1/2 - j, K + 3/2 - j) / K: a bin covers the positions of its ranks.
    borders = (total + 0.5 - edges) / total  # descending
    logits = _log_kernel(scores, borders[1:], borders[:-1], temperature)  # (B, K, S + 1)
    if noise is not None:
        logits = logits + noise
    capacity = (edges[1:] - edges[:-1]).clamp(min=1e-30).log()  # (S + 1,)
    shares = _sinkhorn(logits, capacity, iterations).exp()
    return shares.cumsum(dim=-1)[..., :-1].transpose(-1, -2)


def _sinkhorn(logits: Tensor, log_capacity: Tensor, iterations: int) -> Tensor:
    """Log of the transport plan (B, K, J) with row sums 1 and, in the limit, column sums `exp(log_capacity)` (J,)."""
    rows = torch.zeros_like(logits[..., :1])  # log row scaling (B, K, 1)
    for _ in range(iterations):
        columns = log_capacity - torch.logsumexp(logits + rows, dim=-2)  # (B, J)
        columns = columns[..., None, :]
        rows = -torch.logsumexp(logits + columns, dim=-1, keepdim=True)
    return logits + columns + rows


def _log_kernel(scores: Tensor, low: Tensor, high: Tensor, temperature: float) -> Tensor:
    """log of the integral of exp(-(a - p)^2 / tau) over p in [low, high], up to a constant: (B, K, J).

    A difference of normal distribution functions, taken in the tail where it keeps its digits.
    """
    scale = math.sqrt(2 / temperature)
    u, v = (high - scores[..., None]) * scale, (low - scores[..., None]) * scale  # u > v
    flip = (u + v) > 0  # P(v < x < u) = P(-u < x < -v)
    upper, lower = torch.where(flip, -v, u), torch.where(flip, -u, v)
    log_upper, log_lower = torch.special.log_ndtr(upper), torch.special.log_ndtr(lower)
    gap = (log_lower - log_upper).clamp(max=-1e-6)
    kernel: Tensor = log_upper + torch.log(-torch.expm1(gap))
    return kernel


def gumbel_noise(shape: tuple[int, ...], generator: torch.Generator, like: Tensor) -> Tensor:
    """Gumbel(0, 1) noise, drawn on the CPU so that every device sees the same."""
    uniform = torch.rand(shape, generator=generator).clamp(min=1e-20)
    return -torch.log(-torch.log(uniform)).to(like)

"""Soft top-k masks in closed form: LapSum (Struski et al. 2025), beside the Sinkhorn forms of `ordering.py`.

Each region belongs to the top k by the distribution function of a Laplace law at its distance from a threshold,

    m_i = F((a_i - b) / alpha),   sum over i of m_i = k,

and the threshold b has a closed form once the scores are sorted: between two neighbouring scores the sum is a
quadratic in exp(b / alpha). So masks sum to k exactly, after one sort and no iterations. What is lost is transport:
softness is measured in scores, not in ranks, so where scores crowd more regions are undecided.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def soft_masks_lapsum(scores: Tensor, counts: Tensor, temperature: float, *, noise: Tensor | None = None) -> Tensor:
    """Soft top-k masks (B, S, K) of standardised scores (B, K) for counts (S,); noise (B, K) is in units of alpha."""
    # The kernel of `ordering.py` has variance tau / 2; a Laplace law of scale alpha has 2 alpha^2.
    alpha = math.sqrt(temperature) / 2
    units = scores / alpha
    if noise is not None:
        units = units + noise
    wanted = counts.to(units).expand(len(units), -1)  # (B, S)
    with torch.no_grad():
        found = thresholds(units, wanted)  # (B, S)
    # One Newton step from the solution changes nothing but the gradient, which becomes that of the solution.
    distance = units[:, None, :] - found[..., None]  # (B, S, K)
    density = (0.5 * torch.exp(-distance.detach().abs())).sum(dim=-1)
    exact = found + (laplace_cdf(distance).sum(dim=-1) - wanted) / density.clamp(min=1e-12)
    return laplace_cdf(units[:, None, :] - exact[..., None])


def thresholds(units: Tensor, wanted: Tensor) -> Tensor:
    """b (B, S) with sum over i of F(u_i - b) = k, for u (B, K) in units of alpha and 0 < k < K (B, S)."""
    count = units.shape[-1]
    ascending = units.sort(dim=-1).values  # (B, K)
    # Logs of sums of exp(-distance) to the scores at and below, and at and above, each score (B, K).
    below = torch.logcumsumexp(ascending, dim=-1) - ascending
    above = torch.logcumsumexp(-ascending.flip(-1), dim=-1).flip(-1) + ascending
    place = torch.arange(count, device=units.device)
    # The sum with b at each score, from K downwards: the score itself counts a half.
    reached = (count - 1 - place) + 0.5 - 0.5 * (above.exp() - 1) + 0.5 * (below.exp() - 1)  # (B, K)
    left = torch.searchsorted(-reached, -wanted, right=True) - 1  # last score whose sum is still at least k
    low, high = left.clamp(min=0), (left + 1).clamp(max=count - 1)
    start, stop = ascending.gather(-1, low), ascending.gather(-1, high)
    lower, upper = below.gather(-1, low).exp(), above.gather(-1, high).exp()
    spare = (count - 1 - left) - wanted  # scores above the gap, less k
    # lower/2 u + spare - upper/2 q/u = 0 with u = exp(start - b), q = exp(start - stop).
    root = (spare.square() + lower * upper * torch.exp(start - stop)).sqrt()
    ratio = torch.where(spare > 0, upper * torch.exp(start - stop) / (root + spare), (root - spare) / lower)
    inside = start - ratio.clamp(min=1e-37).log()
    before = ascending[:, :1] + torch.log(2 * (count - wanted)) - above[:, :1]  # all scores above b
    after = ascending[:, -1:] + below[:, -1:] - torch.log(2 * wanted)  # all scores below b
    return torch.where(left < 0, before, torch.where(left >= count - 1, after, inside))


def laplace_cdf(distance: Tensor) -> Tensor:
    """F(x) = 1/2 exp(x) below zero, 1 - 1/2 exp(-x) above."""
    tail = 0.5 * torch.exp(-distance.abs())
    return torch.where(distance > 0, 1 - tail, tail)

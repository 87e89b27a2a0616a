"""Correlations of maps and curves, along the last axis."""

from __future__ import annotations

import torch
from torch import Tensor


def average_ranks(values: Tensor) -> Tensor:
    """Ranks (n,) from 0, equal values sharing the mean of their ranks."""
    _, inverse, counts = torch.unique(values, sorted=True, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()  # the ranks of a value are end - count .. end - 1
    ranks: Tensor = (ends - (counts.double() + 1) / 2)[inverse]
    return ranks


def pearson(a: Tensor, b: Tensor) -> Tensor:
    """Pearson correlation of two vectors (n,); NaN if one is constant."""
    a, b = (x.double() - x.double().mean() for x in (a, b))
    return cosine(a, b)


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Spearman rank correlation of two vectors (n,); NaN if one is constant."""
    return pearson(average_ranks(a), average_ranks(b))


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine similarity of two vectors (n,); NaN if one is zero."""
    a, b = a.double(), b.double()
    return (a @ b) / (a @ a).sqrt() / (b @ b).sqrt()

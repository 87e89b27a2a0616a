"""Amortized Hybrid Attribution: a small network that learns to rank pixels by importance (Schinagl et al., 2026)."""

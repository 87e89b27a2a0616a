"""Attention flow against networkx, and against flows that can be seen."""

from __future__ import annotations

import networkx
import numpy as np
import pytest
import torch

from agreement import Vit, agrees, grid, native
from aha.methods.attention.attention_flow import largest_flows


def test_attention_flow_equals_networkx(vit: Vit) -> None:
    module, images, seen, rows, prefix = vit
    images, size = images[:1], 16 + prefix
    graph = networkx.DiGraph()
    for layer, matrices in enumerate(seen.attention):
        fused = matrices[0].detach().mean(dim=0) / 2 + torch.eye(size, dtype=torch.float64) / 2
        for i in range(size):
            for j in range(size):
                graph.add_edge((layer, j), (layer + 1, i), capacity=float(fused[i, j]))
    for end in range(size)[rows]:
        graph.add_edge((3, end), "read")  # no capacity: unlimited
    expected = torch.zeros(1, size)
    for patch in range(prefix, size, 3):  # networkx is slow
        expected[0, patch] = networkx.maximum_flow_value(graph, (0, patch), "read")
    found = native(module, images, "attention_flow", torch.tensor([0]))
    mask = grid(expected > 0, prefix)
    agrees(found * mask, grid(expected, prefix), 1e-6)
    assert mask.sum() == 6


def test_narrow_places_decide() -> None:
    """Two layers over two tokens: from 0 to 0 straight on, or by way of 1."""
    capacities = np.array([[[0.5, 0.0], [0.25, 1.0]], [[0.25, 0.125], [0.0, 1.0]]])
    assert largest_flows(capacities, [0, 1], [0]).tolist() == pytest.approx([0.375, 0.125])
    assert largest_flows(capacities, [0, 1], [0, 1]).tolist() == pytest.approx([0.5, 1.0])


def test_nothing_flows_where_nothing_is_connected() -> None:
    assert largest_flows(np.stack([np.eye(3)] * 4), [0, 1, 2], [1]).tolist() == [0.0, 1.0, 0.0]

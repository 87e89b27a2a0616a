"""Attention flow: how much could pass from each patch through the layers to the prediction, attention being pipes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aha.core.progress import in_parts
from aha.methods.base import Method, method
from aha.models import Captures, TargetModel


@method(
    "attention_flow",
    family="attention",
    needs={"attention"},
    reads=Captures(attention=True),
    citation="Abnar & Zuidema, ACL 2020",
)
@dataclass(frozen=True)
class AttentionFlow(Method):
    """Maximum flow from each patch, before the first block, to the tokens read, after the last; class-agnostic.

    The capacity from token j to token i through a block is `(A_ij + I_ij) / 2`, A being the mean over heads. There is
    one maximum flow for each patch, and it is exact: for 196 patches and twelve blocks, up to a minute an image. Often
    it is no more than the smaller of what can leave the patch and what can enter the token read.

    Reads: the attention of every block.
    Cost: one forward pass, and the flows.
    Example: `attention_flow`.
    """

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        trace = model.trace(images, attention=True)
        assert trace.readout is not None
        layers = torch.stack(
            [matrix.detach().double().mean(dim=1) for matrix in trace.attention], dim=1
        )  # (B, L, T, T)
        capacities = ((layers + torch.eye(layers.shape[-1]).to(layers)) / 2).cpu().numpy()
        prefix = trace.structure.blocks[0].layout.prefix
        starts, ends = range(prefix, layers.shape[-1]), trace.readout.nonzero()[:, 0].tolist()
        flows = torch.zeros(layers.shape[0], layers.shape[-1])  # (B, T)
        for image, capacity in enumerate(in_parts([*capacities])):
            flows[image, prefix:] = torch.from_numpy(largest_flows(capacity, starts, ends))
        return trace.to_grid(flows.to(images))  # (B, h, w)


def largest_flows(capacities: NDArray[np.float64], starts: Sequence[int], ends: Sequence[int]) -> NDArray[np.float64]:
    """The largest flow from each start to all ends together, through layers of capacities (L, T, T).

    `capacities[l, i, j]` leads from token j below layer l to token i above it.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_flow

    depth, size, _ = capacities.shape
    unit = 2**30 // len(ends)  # scipy counts in 32-bit whole numbers; a token takes in one unit at most
    layer, above, below = np.indices(capacities.shape).reshape(3, -1)
    amounts = np.rint(capacities.ravel() * unit)
    outlet = (depth + 1) * size  # one node behind all ends
    tails = np.concatenate([layer * size + below, depth * size + np.asarray(ends)])
    heads = np.concatenate([(layer + 1) * size + above, np.full(len(ends), outlet)])
    amounts = np.concatenate([amounts, np.full(len(ends), unit * 1.01)]).astype(np.int32)
    graph = csr_array((amounts, (tails, heads)), shape=(outlet + 1, outlet + 1), dtype=np.int32)
    graph.eliminate_zeros()
    return np.array([maximum_flow(graph, start, outlet).flow_value / unit for start in in_parts(starts)])

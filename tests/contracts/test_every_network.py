"""The universal explainer on the model families that people use: a map, finite, without a trace; no training.

Random weights and small pictures: what is tested is that it can read a network, not how well.
"""

from __future__ import annotations

import pytest
import torch

import aha
from aha.learned import universal
from aha.learned.universal import stages_by_stride
from aha.models import load_model
from fakes import changes, snapshot, surroundings
from families import TIMM, awake, built

# The others need large pictures, or seconds to be built: they are among the slow tests.
FAMILIES = [name for name, (size, _, _) in TIMM.items() if size < 128 and name != "vgg11_bn"] + [
    "levit_128s",
    "hiera_tiny_224",
    "coatnet_nano_rw_224",
    "pit_ti_224",
    "gcvit_xxtiny",
    "efficientformerv2_s0",
    "mvitv2_tiny",
]


def test_there_are_forty_families() -> None:
    assert len(set(FAMILIES)) >= 40


@pytest.mark.parametrize("name", FAMILIES)
def test_a_network_that_it_never_met(name: str) -> None:
    size, has_attention, _ = TIMM[name]
    module = awake(built(name))
    inputs = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(5))
    model = load_model(module, input_size=size, mean=(0.5,) * 3, std=(0.5,) * 3)
    before = (snapshot(module), surroundings())
    found = aha.explain(model, inputs, "aha('universal')", target=1)
    assert found.settings["explainer"] == "universal"
    assert universal.reading_of(model) == ("tokens" if has_attention else "stages")
    assert found.maps.shape == (2, size, size)
    assert found.maps.isfinite().all()
    assert (found.maps.amax(dim=(1, 2)) > found.maps.amin(dim=(1, 2))).all()
    assert changes(before[0], snapshot(module)) == []
    assert changes(before[1], surroundings()) == []
    if not has_attention:
        levels = stages_by_stride(model, inputs.shape[1:])
        deep = [stage for stage in levels if stage is not None]
        assert deep and deep == sorted(deep)

"""What every method promises about its cost: it says it before it starts, and does not say too little."""

from __future__ import annotations

import pytest
import torch
from every_method import FITTING, label
from torch import Tensor

from aha.methods import Method
from aha.models import load_model
from fakes import BUILDERS, SIZE

AT_MOST = 2
"""How many times as many passes as were foretold a map may take."""


@pytest.mark.parametrize("pair", [pair for pair in FITTING if pair[1] != "plain"], ids=label)
def test_a_map_takes_no_more_passes_than_were_foretold(pair: tuple[Method, str], images: Tensor) -> None:
    method, kind = pair
    model = load_model(BUILDERS[kind]()[0], input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    foretold = method.cost(model, (SIZE, SIZE))
    before = model.passes.total()
    method.seeded(0)(model, images[:1], torch.tensor([0]))
    measured = model.passes.total() - before
    assert measured <= AT_MOST * foretold.passes, f"{method} took {measured} passes and said {foretold}"

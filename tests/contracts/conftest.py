"""What the contract tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aha.learned.explainer import Explainer
from aha.learned.library import remember
from aha.learned.settings import Design
from aha.models import load_model
from fakes import BUILDERS, SIZE


@pytest.fixture(autouse=True, scope="module")
def _explainers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An explainer for each miniature model, where `aha` looks for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AHA_DATA", str(tmp_path_factory.mktemp("cache")))
        for build in BUILDERS.values():
            model = load_model(build()[0], input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3)
            if "features" in model.capabilities:
                remember(Explainer.for_target(model, Design(width=16, stride=8), seed=1))
        yield

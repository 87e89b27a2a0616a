"""ONNX: the graph of a convolutional network and of a transformer, run by ONNX Runtime, agrees with PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from aha.errors import ModelError, OutputError
from aha.learned.explainer import Explainer
from aha.learned.export import export_onnx
from aha.learned.settings import Design
from aha.models import load_model
from fakes import SIZE, TinyCNN, changes, randomised, snapshot, surroundings, tiny_vit


@pytest.mark.parametrize("rivals", [False, True], ids=["alone", "rivals"])
@pytest.mark.parametrize("kind", ["cnn", "vit"])
def test_the_graph_agrees_with_pytorch(kind: str, rivals: bool, tmp_path: Path) -> None:
    module = randomised(TinyCNN()) if kind == "cnn" else tiny_vit()
    target = load_model(module, input_size=SIZE, mean=[0.4] * 3, std=[0.2] * 3)
    explainer = Explainer.for_target(
        target, Design(stride=8, width=16, evidence="forward", rivals=rivals), seed=2
    ).eval()
    before = (snapshot(module), surroundings())
    assert export_onnx(explainer, target, tmp_path / "e.onnx") < 1e-4
    assert not changes(before[0], snapshot(module)) and not changes(before[1], surroundings())
    assert [path.name for path in tmp_path.iterdir()] == ["e.onnx"]
    session = onnxruntime.InferenceSession(str(tmp_path / "e.onnx"))
    for batch in (1, 5):
        pixels, classes = torch.rand(batch, 3, SIZE, SIZE), torch.arange(batch) % 3
        (found,) = session.run(["maps"], {"pixels": pixels.numpy(), "classes": classes.numpy()})
        expected = explainer.maps(target, target.to_inputs(pixels), classes).numpy()
        assert np.abs(found - expected).max() < 1e-4 * np.ptp(expected)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    target = load_model(randomised(TinyCNN()), input_size=SIZE, mean=[0.4] * 3, std=[0.2] * 3)
    explainer = Explainer.for_target(target, Design(stride=8, width=16, evidence="forward")).eval()
    with pytest.raises(OutputError, match="cannot write"):
        export_onnx(explainer, target, tmp_path / "missing" / "e.onnx")


def test_an_explainer_that_reads_gradients_is_refused(tmp_path: Path) -> None:
    target = load_model(randomised(TinyCNN()), input_size=SIZE, mean=[0.4] * 3, std=[0.2] * 3)
    explainer = Explainer.for_target(target, Design(evidence="backward", stride=8, width=16)).eval()
    with pytest.raises(ModelError, match="evidence=forward"):
        export_onnx(explainer, target, tmp_path / "e.onnx")
    assert not list(tmp_path.iterdir())

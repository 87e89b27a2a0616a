"""Faster copies: they answer like the module, never touch it, and step aside wherever they might not."""

from __future__ import annotations

import copy
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import aha
from aha.errors import AhaWarning, ModelError
from aha.models import TargetModel
from aha.models.running import inference as forward_only
from aha.models.running import inference_backends as copies
from aha.models.running.inference import ForwardOnly
from aha.models.running.inference_backends import FastCopy
from aha.models.scores import load_score
from fakes import randomised

SIZE = 16


class Network(nn.Module):
    """Convolutions with batch norms, a residual connection, work in place, and outputs in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8))
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        images.mul_(1.5)
        x = self.first(images).relu_()
        x = x + self.second(x)
        return {"logits": self.head(x.mean(dim=(2, 3)))}


def network() -> Network:
    module = randomised(Network())
    assert isinstance(module, Network)
    return module


def images(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


def installed(engine: str) -> bool:
    return find_spec(engine) is not None and find_spec("onnx") is not None


ENGINES = [
    pytest.param("compiled", marks=pytest.mark.slow),  # a C++ compiler at work
    pytest.param("onnxruntime", marks=pytest.mark.skipif(not installed("onnxruntime"), reason="not installed")),
    pytest.param("openvino", marks=pytest.mark.skipif(not installed("openvino"), reason="not installed")),
]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_answers_like_the_module(engine: str) -> None:
    module = network()
    before = copy.deepcopy(module.state_dict())
    plain = aha.load_model(module, batch_size=8)
    fast = aha.load_model(module, engine=engine, batch_size=8)
    for count in (19, 8, 1):  # full chunks, a part of one, a single image
        shown = images(count, seed=count)
        kept = shown.clone()
        expected, found = plain.outputs(shown), fast.outputs(shown)
        assert (expected.softmax(1) - found.softmax(1)).abs().max() < 1e-5
        assert torch.equal(shown, kept)
    assert fast.engine_facts["engine"] == engine
    assert fast.engine_facts["largest_probability_change"] < 1e-5
    assert fast.passes == plain.passes
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert not any(part._forward_hooks for part in module.modules())


@pytest.mark.parametrize("engine", [ENGINES[0], ENGINES[2]])
def test_a_copy_works_in_the_models_precision(engine: str) -> None:
    module = network()
    exact, plain = aha.load_model(module, batch_size=8), aha.load_model(module, precision="bfloat16", batch_size=8)
    fast = aha.load_model(module, precision="bfloat16", engine=engine, batch_size=8)
    shown = images(8)
    expected, rounded, found = (model.outputs(shown) for model in (exact, plain, fast))
    assert fast.engine_facts["engine"] == engine
    assert found.dtype == torch.float32
    # Where the processor has bfloat16 it is used: the answers are off by its rounding, and by no more than that.
    away = (found - expected).abs().max()
    assert away <= 4 * (rounded - expected).abs().max()
    assert fast.engine_facts["largest_probability_change"] <= forward_only.MOST_CHANGE["bfloat16"]


@pytest.mark.skipif(not installed("openvino") or not Path("/proc/self/task").is_dir(), reason="OpenVINO on Linux")
def test_openvino_ties_no_thread_to_a_core() -> None:
    """They would be the same cores in every process, so that two processes share one."""
    allowed = frozenset(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one core leaves nothing to choose")
    fast = aha.load_model(network(), engine="openvino", batch_size=8)
    fast.outputs(images(8))
    assert fast.engine_facts["engine"] == "openvino"
    seen: set[frozenset[int]] = set()
    is_over = threading.Event()

    def watch() -> None:  # it ties threads while it works, and lets go of them afterwards
        while not is_over.is_set():
            for task in Path("/proc/self/task").iterdir():
                with suppress(ProcessLookupError):
                    seen.add(frozenset(os.sched_getaffinity(int(task.name))))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(300):
        fast.outputs(images(8))
    is_over.set()
    watcher.join()
    assert seen == {allowed}


class Recorder:
    """Stands in for the makers of copies: a copy is the module itself, slightly off, and counts its runs."""

    def __init__(self, error: float = 0.0) -> None:
        self.error, self.made, self.runs, self.precisions = error, 0, 0, set[str]()

    def __call__(
        self, engine: str, module: nn.Module, output: object, example: Tensor, precision: str = "float32"
    ) -> FastCopy:
        self.made += 1
        self.precisions.add(precision)
        private = copy.deepcopy(module)

        def run(inputs: Tensor) -> Tensor:
            self.runs += 1
            answer: Tensor = private(inputs.clone())["logits"]
            return answer + self.error * torch.arange(answer.shape[1])

        return FastCopy(engine, run, rows=len(example))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], Recorder]]:
    def record(error: float = 0.0) -> Recorder:
        recorder = Recorder(error)
        monkeypatch.setattr(forward_only, "make_copy", recorder)
        return recorder

    yield record


def test_gradients_hooks_and_rules_see_the_module_itself(recorded: Callable[..., Recorder]) -> None:
    recorder, module = recorded(), network()
    model = aha.load_model(module, engine="compiled", batch_size=4)
    shown = images(4)
    leaf = shown.clone().requires_grad_()
    model.outputs(leaf).sum().backward()
    assert leaf.grad is not None
    with model.patched({"head": lambda output: output * 0}):
        assert not model.outputs(shown).any()
    with model.rules({"relu": lambda x, **_: x * 0}):
        model.outputs(shown)
    seen: list[int] = []
    handle = module.head.register_forward_hook(lambda *_: seen.append(1))
    model.outputs(shown)
    handle.remove()
    assert seen == [1]
    model.structure((3, SIZE, SIZE))
    assert recorder.runs == 0
    model.outputs(shown)
    assert recorder.runs > 0


def test_a_copy_follows_its_module(recorded: Callable[..., Recorder]) -> None:
    recorder, module = recorded(), network()
    model = aha.load_model(module, engine="compiled", batch_size=4)
    shown = images(4)
    model.outputs(shown)
    with torch.no_grad():
        module.head.bias += 1
    changed = model.outputs(shown)
    assert recorder.made == 2
    assert torch.allclose(changed, TargetModel.outputs(aha.load_model(module), shown))


def test_a_copy_that_answers_otherwise_is_not_used(recorded: Callable[..., Recorder]) -> None:
    recorded(0.1)
    module = network()
    model, plain = aha.load_model(module, engine="compiled", batch_size=4), aha.load_model(module)
    with pytest.warns(AhaWarning, match="compiled is not used: it changes a probability by"):
        found = model.outputs(images(4))
    assert torch.equal(found, plain.outputs(images(4)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # one line is enough
        model.outputs(images(4))
    assert model.engine_facts == {
        "engine": "eager",
        "engine_asked": "compiled",
        "largest_probability_change": None,
    }


def test_a_copy_that_goes_wrong_later_is_dropped(recorded: Callable[..., Recorder]) -> None:
    recorder, module = recorded(), network()
    model, plain = aha.load_model(module, engine="compiled", batch_size=4), aha.load_model(module)
    model.outputs(images(4))
    recorder.error = 0.1
    with pytest.warns(AhaWarning, match="not used any more"):
        found = model.outputs(images(4, seed=1))  # the second pass is compared again
    assert torch.equal(found, plain.outputs(images(4, seed=1)))


def test_what_cannot_be_copied_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> FastCopy:
        raise RuntimeError("no compiler\nand many more lines")

    monkeypatch.setattr(forward_only, "make_copy", fail)
    model = aha.load_model(network(), engine="compiled", batch_size=4)
    with pytest.warns(AhaWarning, match="compiled is not used: no compiler$"):
        assert model.outputs(images(3)).shape == (3, 5)


def test_auto_waits_until_the_work_has_proved_long(
    recorded: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, module = recorded(), network()
    monkeypatch.setattr(forward_only, "_fastest", lambda run, _: 1.0 if isinstance(run, FastCopy) else 2.0)
    model = aha.load_model(module, engine="auto", batch_size=4)
    model.outputs(images(8))
    assert recorder.made == 0
    monkeypatch.setattr(forward_only, "_PATIENCE", 0.0)
    model.outputs(images(3))  # no full chunk
    assert recorder.made == 0
    model.outputs(images(4))
    assert recorder.made > 0
    assert model.engine_facts["engine"] == "compiled"  # the first of equals


def test_auto_keeps_the_module_where_nothing_is_faster(
    recorded: Callable[..., Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded()
    monkeypatch.setattr(forward_only, "_fastest", lambda run, _: 1.0)
    monkeypatch.setattr(forward_only, "_PATIENCE", 0.0)
    model = aha.load_model(network(), engine="auto", batch_size=4)
    model.outputs(images(4))
    assert model.engine_facts["engine"] == "eager"


def test_an_engine_is_told_the_precision_of_the_model(recorded: Callable[..., Recorder]) -> None:
    for precision in ("float32", "bfloat16"):
        recorder = recorded()
        aha.load_model(network(), engine="compiled", precision=precision, batch_size=4).outputs(images(4))
        assert recorder.precisions == {precision}


def test_in_half_precision_the_odd_image_may_be_further_off() -> None:
    """On the edge between two classes rounding tips over; a copy that is wrong is wrong for most images."""
    judge = ForwardOnly("openvino", None, load_score("softmax"), "bfloat16")
    expected = torch.zeros(16, 2)
    found = expected.clone()
    found[0, 0] = 1.0
    assert judge.changes(expected, found).max() > 0.2
    for _ in range(20):
        assert not judge._why_too_far("openvino", judge.changes(expected, found))
    wrong = judge.changes(expected, expected + torch.tensor([1.0, 0.0]))  # .23 off, every image
    assert "on average, more than 2e-01" in judge._why_too_far("compiled", wrong)
    assert any("more than 5e-02" in judge._why_too_far("openvino", wrong) for _ in range(10))  # after a good start
    exact = ForwardOnly("openvino", None, load_score("softmax"))
    assert "more than 1e-04" in exact._why_too_far("openvino", exact.changes(expected, found))


def test_results_of_an_engine_say_so(recorded: Callable[..., Recorder]) -> None:
    recorded(1e-6)
    options = {"input_size": SIZE, "mean": (0.5,) * 3, "std": (0.5,) * 3, "batch_size": 16}
    model = aha.load_model(network(), engine="compiled", **options)  # type: ignore[arg-type]
    plain = aha.load_model(network(), **options)  # type: ignore[arg-type]
    found = aha.explain(model, images(2), "rise(n=32)")
    assert found.settings["engine"] == "compiled"
    assert 0 < found.settings["largest_probability_change"] < 1e-5  # type: ignore[operator]
    expected = aha.explain(plain, images(2), "rise(n=32)")
    assert "engine" not in expected.settings
    assert torch.allclose(found.maps, expected.maps, atol=1e-4)


@pytest.mark.parametrize(
    ("engine", "options", "said"),
    [
        ("tensorrt", {}, "unknown engine 'tensorrt'; known: eager, compiled, onnxruntime, openvino, auto"),
        ("onnxruntime", {"precision": "bfloat16"}, "works in float32; leave out"),
        ("openvino", {"precision": "float16"}, "works in float32 and bfloat16; leave out"),
    ],
)
def test_engines_that_cannot_be_are_refused(engine: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        aha.load_model(network(), engine=engine, **options)  # type: ignore[arg-type]


def test_an_engine_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "find_spec", lambda name: None)
    with pytest.raises(aha.AhaError, match=r"aha-attribution\[openvino\]"):
        aha.load_model(network(), engine="openvino")

"""What other threads may notice of a call: nothing."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

import aha
from aha.core.library_warnings import without_warnings
from aha.data.images import read_image
from aha.errors import ModelError
from aha.learned.explainer import Explainer
from aha.learned.export import export_onnx
from aha.learned.settings import Design
from aha.models import load_model
from aha.models.running.inference_backends import make_copy
from aha.models.running.rng import OwnNumbers
from fakes import CLASSES, SIZE, TinyCNN, changes, plain_module, randomised, snapshot, surroundings, tiny_vit


class Noisy(nn.Module):
    """A classifier that draws although it is in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = randomised(TinyCNN())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(F.dropout(x, 0.5, training=True) + torch.rand_like(x))


class Rain(nn.Module):
    """Adds noise to what it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class Meeting(nn.Module):
    """A classifier in the middle of whose pass another thread does something."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.meanwhile = inner, lambda: None

    def forward(self, x: Tensor) -> Tensor:
        other = threading.Thread(target=self.meanwhile)
        other.start()
        other.join()
        return self.inner(x)


@pytest.mark.parametrize("inner", [plain_module, Noisy])
def test_numbers_that_another_thread_draws_meanwhile_are_not_drawn_again(
    inner: Callable[[], nn.Module], images: Tensor
) -> None:
    module = Meeting(inner()).eval()
    model = load_model(module, input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    torch.manual_seed(3)
    expected = [float(torch.rand(())) for _ in range(8)]
    torch.manual_seed(3)
    drawn: list[float] = []
    module.meanwhile = lambda: drawn.append(float(torch.rand(())))
    for method in ("gradient", "center_map"):
        aha.explain(model, images[:1], method, target=0)
    drawn.append(float(torch.rand(())))
    assert len(drawn) > 2
    assert drawn == expected[: len(drawn)]


def test_a_model_that_draws_leaves_the_global_generator_alone_and_repeats_itself(images: Tensor) -> None:
    model, noisy = load_model(Noisy(), input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3), Noisy()
    before = surroundings()
    first = aha.explain(model, images, "gradient", target=0).maps
    assert changes(before, surroundings()) == []
    torch.manual_seed(99)
    assert torch.equal(aha.explain(model, images, "gradient", target=0).maps, first)
    assert not torch.equal(noisy(images), noisy(images)), "it does draw"


def test_a_model_that_begins_to_draw_is_noticed(images: Tensor) -> None:
    module = nn.Sequential(nn.Identity(), randomised(TinyCNN())).eval()
    model = load_model(module, input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    model.outputs(images)
    module[0] = Rain()
    model.outputs(images)  # the pass that gives it away
    before = torch.get_rng_state()
    model.outputs(images)
    assert torch.equal(torch.get_rng_state(), before)


def test_own_numbers_are_those_of_the_seed() -> None:
    def draws() -> list[Tensor]:
        bare = nn.init.trunc_normal_(torch.empty(3, 4))
        halves = torch.full((6,), 0.5)
        return [
            bare,
            *(torch.rand(3), torch.randn(2, 2), torch.randperm(7), torch.randint(9, (4,)), torch.randint(3, 9, (4,))),
            *(torch.rand_like(halves), torch.randn_like(halves), torch.randint_like(halves, 0, 7)),
            *(torch.bernoulli(halves), torch.normal(0.0, 1.0, (3,)), torch.multinomial(halves, 2)),
            *(halves.clone().uniform_(), halves.clone().exponential_(), torch.empty(4).random_()),
            *(F.dropout(halves, 0.5), F.alpha_dropout(halves, 0.5, training=True), F.rrelu(-halves, training=True)),
            F.scaled_dot_product_attention(*[torch.ones(1, 1, 2, 2)] * 3, dropout_p=0.5),
        ]

    torch.manual_seed(5)
    expected = draws()
    before = torch.get_rng_state()
    with OwnNumbers(5):
        found = draws()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_three_threads_with_three_models_give_the_maps_that_they_give_alone(images: Tensor) -> None:
    methods = ("lrp", "rise(n=12)", "grad_cam", "smooth(gradient, n=3)", "occlusion(window=16, stride=16)")
    modules = [tiny_vit(), randomised(TinyCNN()), Noisy().eval()]
    models = [load_model(module, input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3) for module in modules]

    def maps(number: int) -> list[Tensor]:
        return [aha.explain(models[number], images[:2], method, target=0).maps for method in methods]

    alone = [maps(number) for number in range(3)]
    before = [*map(snapshot, modules), surroundings()]
    filters, show = list(warnings.filters), warnings.showwarning
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(maps, range(3), timeout=120))
    for found, expected in zip(together, alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert [changes(was, now) for was, now in zip(before, [*map(snapshot, modules), surroundings()], strict=True)] == [
        [] for _ in before
    ]
    assert (warnings.filters, warnings.showwarning) == (filters, show)


def test_no_call_changes_the_filters_of_warnings(
    images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are one list for all threads: who restores it may throw away what another has put there."""
    module = tiny_vit()
    for part in module.modules():
        part.register_full_backward_hook(lambda *_: None)
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "a.png")
    torch.save(module.state_dict(), tmp_path / "a.pth")
    plain = randomised(TinyCNN()).eval()
    target = load_model(plain, input_size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    explainer = Explainer.for_target(target, Design(stride=8, width=16, evidence="forward")).eval()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the filters of warnings were changed")

    with monkeypatch.context() as patch:  # pytest changes them itself, when this is over
        for name in ("filterwarnings", "simplefilter", "catch_warnings"):
            patch.setattr(warnings, name, refuse)
        for method in ("gradient", "grad_cam", "legrad", "attention_ig", "ixg_plus"):
            aha.explain(module, images[:1], method, target=random.randrange(CLASSES))
        read_image(tmp_path / "a.png")
        aha.models.loading.weights.read_weights(f"torch:{tmp_path}/a.pth")
        export_onnx(explainer, target, tmp_path / "a.onnx")
        make_copy("onnxruntime", plain, None, images)


def test_warnings_are_hushed_in_one_thread_alone() -> None:
    """Here every warning is an error, and another thread goes on meeting them, and adding filters that stay."""
    seen: list[str] = []

    def elsewhere() -> None:
        with contextlib.suppress(UserWarning):
            warnings.warn("elsewhere", stacklevel=1)
            seen.append("not hushed")
        warnings.filterwarnings("ignore", "of another thread")

    with without_warnings(), without_warnings():
        warnings.warn("here", stacklevel=1)
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
    warnings.warn("of another thread", stacklevel=1)
    assert seen == []
    with pytest.raises(UserWarning, match="here again"):
        warnings.warn("here again", stacklevel=1)
    warnings.filterwarnings("error", "in front")
    with without_warnings():
        warnings.warn("in front of ours", stacklevel=1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_explains_is_refused() -> None:
    """Nobody would ever give the lock back there, nor undo what the thread had changed."""
    model, other = load_model(randomised(TinyCNN())), load_model(randomised(TinyCNN()))
    images = torch.rand(1, 3, SIZE, SIZE)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with model.lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:  # nothing of pytest's may run here
        signal.alarm(60)
        code = 1
        try:
            with other.lock:
                model.outputs(images)
        except ModelError as error:
            code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert model.outputs(images).shape[0] == 1

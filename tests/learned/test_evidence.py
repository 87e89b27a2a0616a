"""Class evidence against closed forms and the package's own methods, and that it costs one pass each way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import aha
from aha.errors import ModelError
from aha.learned import library
from aha.learned.decoder import patch_means
from aha.learned.evidence import (
    LOG_ODDS,
    LOGIT,
    blocks_of_levels,
    captures,
    class_evidence,
    class_flows,
    evidence_channels,
    traced,
)
from aha.learned.explainer import Explainer
from aha.learned.settings import Design
from aha.methods import load_method
from aha.models import TargetModel, load_model
from fakes import CLASSES, SIZE, TinyCNN, randomised, tiny_vit

STATED = {"input_size": SIZE, "mean": [0.5] * 3, "std": [0.5] * 3}


def cnn() -> TargetModel:
    return load_model(randomised(TinyCNN()), **STATED)


def unit(maps: Tensor) -> Tensor:
    centred = maps - maps.mean(dim=(-2, -1), keepdim=True)
    return centred / centred.square().mean(dim=(-2, -1), keepdim=True).sqrt()


def test_the_deepest_evidence_of_a_cnn_is_hires_cam(images: Tensor) -> None:
    """Features times gradient, summed over channels, is HiResCAM before its ReLU."""
    target, classes = cnn(), torch.tensor([0, 1, 2, 0])
    stage = target.cam_stage()
    levels, start = class_evidence(
        traced(target, images, captures(target, images.shape[1:], [stage], [stage])), classes, [stage], LOGIT
    )
    trace = target.trace(images, features=[stage])
    (slopes,) = trace.gradients(classes, trace.features[stage])
    product = (trace.features[stage] * slopes).detach()
    torch.testing.assert_close(levels[0][:, 0], unit(product.sum(dim=1)))
    torch.testing.assert_close(levels[0][:, 1], unit(product.relu().sum(dim=1)))
    torch.testing.assert_close(levels[0][:, 2], unit(product.abs().sum(dim=1).sqrt()))
    torch.testing.assert_close(start, levels[0][:, 0])


def test_evidence_of_a_transformer_is_that_of_its_attention(images: Tensor) -> None:
    target, classes = load_model(tiny_vit(depth=4), **STATED), torch.tensor([0, 1, 2, 0])
    levels, start = class_evidence(
        traced(target, images, captures(target, images.shape[1:], [], [0, 1])), classes, [0, 1], LOGIT
    )
    assert [level.shape[1] for level in levels] == list(evidence_channels(target, 2)) == [8, 8]
    trace = target.trace(images, attention=True, score=LOGIT)
    slopes = trace.gradients(classes, *trace.attention)
    rows = [
        (a * s).relu().mean(dim=1)[:, 0] for a, s in zip(trace.attention, slopes, strict=True)
    ]  # of the class token
    maps = [trace.to_grid(row).detach() for row in rows]
    flow = load_method("grad_rollout")(target, images, classes)
    torch.testing.assert_close(levels[1][:, 1], unit(maps[2]), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(levels[0][:, 3], unit(flow), atol=1e-4, rtol=1e-4)
    both = unit(torch.stack(maps).mean(dim=0)) + unit(flow)
    torch.testing.assert_close(start, unit(both), atol=1e-4, rtol=1e-4)


def test_what_flows_into_the_class_is_a_row_of_the_product_of_all_later_blocks() -> None:
    """The slow way: whole matrices, the identity added and taken away again."""
    target = load_model(tiny_vit(depth=3), **STATED)
    trace = target.trace(torch.rand(2, 3, SIZE, SIZE), attention=True)
    drawn = [0.1 * torch.rand(2, *matrix.shape[-2:]) for matrix in trace.attention]
    one = torch.eye(drawn[0].shape[-1])
    for first, flow in enumerate(class_flows(trace, drawn)):
        product = one
        for matrix in drawn[first:]:
            product = (one + matrix) @ product
        torch.testing.assert_close(flow, (product - one)[:, 0])


def test_an_explainer_of_other_evidence_is_refused(
    images: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one of an earlier version, which read three values of each block; also where it is remembered."""
    target = load_model(tiny_vit(), **STATED)
    explainer = Explainer.for_target(target, Design(width=16))
    fewer = replace(explainer.config.decoder, evidence=tuple(n * 3 // 4 for n in explainer.config.decoder.evidence))
    former = Explainer(replace(explainer.config, decoder=fewer))
    with pytest.raises(ModelError, match="train it again"):
        former.check_target(target)
    monkeypatch.setenv("AHA_DATA", str(tmp_path))
    library.remember(former)
    for model in (target, load_model(tiny_vit())):  # also by a module that does not state the size of its inputs
        with pytest.raises(ModelError, match="train it again"):
            aha.explain(model, images, "aha")


def test_rivals_are_the_gradient_of_the_log_odds() -> None:
    outputs = torch.randn(3, CLASSES, requires_grad=True)
    classes = torch.tensor([0, 1, 2])
    chance = outputs.softmax(dim=1).gather(1, classes[:, None])[:, 0]
    torch.testing.assert_close(LOG_ODDS(outputs, classes), (chance / (1 - chance)).log())


def test_blocks_are_shared_out_among_levels() -> None:
    assert [list(blocks) for blocks in blocks_of_levels(5, 2)] == [[0, 1], [2, 3, 4]]
    assert sum(map(len, blocks_of_levels(12, 4))) == 12


@pytest.mark.parametrize("evidence", ["backward", "forward", "none"])
@pytest.mark.parametrize("kind", ["cnn", "vit"])
def test_a_map_costs_what_its_evidence_costs(kind: str, evidence: str, images: Tensor) -> None:
    target = cnn() if kind == "cnn" else load_model(tiny_vit(), **STATED)
    explainer = Explainer.for_target(target, Design(evidence=evidence, width=16))
    target.passes.clear()
    maps = explainer.maps(target, images, torch.tensor([0, 1, 2, 0]))
    assert maps.shape == (4, SIZE, SIZE) and bool(maps.isfinite().all())
    assert target.passes["forward"] == 4
    assert target.passes["backward"] == (4 if evidence == "backward" else 0)


def test_an_untrained_map_is_already_an_explanation(images: Tensor) -> None:
    """Learning starts from the evidence, drawn along the picture: its order is nearly HiResCAM's."""
    target, classes = cnn(), torch.zeros(4, dtype=torch.long)
    maps = Explainer.for_target(target, Design(width=16)).maps(target, images, classes)
    stage = target.cam_stage()
    _, cams = class_evidence(
        traced(target, images, captures(target, images.shape[1:], [stage], [stage])), classes, [stage], LOGIT
    )
    cams = torch.nn.functional.interpolate(cams[:, None], (SIZE, SIZE), mode="bilinear")[:, 0]
    pairs = [torch.stack([a.flatten(), b.flatten()]) for a, b in zip(maps, cams, strict=True)]
    assert min(float(torch.corrcoef(pair)[0, 1]) for pair in pairs) > 0.7


def test_patches_of_a_transformer_keep_together(images: Tensor) -> None:
    """A pixel's own value and a share of its patch's mean; nothing of the kind for a network without patches."""
    target, classes = load_model(tiny_vit(), **STATED), torch.zeros(4, dtype=torch.long)
    alone = Explainer.for_target(target, Design(width=16, cohesion=0)).maps(target, images, classes)
    drawn = Explainer.for_target(target, Design(width=16, cohesion=0.5)).maps(target, images, classes)
    h, w = target.structure().blocks[0].layout.grid
    means = alone.view(4, h, SIZE // h, w, SIZE // w).mean(dim=(2, 4))
    whole = means.repeat_interleave(SIZE // h, dim=1).repeat_interleave(SIZE // w, dim=2)
    torch.testing.assert_close(drawn, alone + 0.5 * whole)
    assert Explainer.for_target(cnn(), Design(width=16, cohesion=0.5)).config.decoder.cohesion == 0


def test_patch_means_of_a_size_that_patches_do_not_divide() -> None:
    drawn = torch.arange(35.0).view(1, 1, 5, 7)
    means = patch_means(drawn, (3, 4))
    assert means.shape == drawn.shape
    torch.testing.assert_close(means[0, 0, 2, 3], drawn[0, 0, 2:4, 2:4].mean())
    torch.testing.assert_close(means[0, 0, 4, 6], drawn[0, 0, 4, 6])

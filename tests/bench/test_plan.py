"""Plans: from files and settings, and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from worlds import tiny_model

from aha.bench.plan import Plan, as_toml, check_plan, fitted, make_plans, plan_of, read_plans
from aha.bench.runner import BenchRun
from aha.errors import CapabilityError, SpecError

SETTINGS = {"model": "timm:resnet18", "data": "x", "methods": ["gradient"]}


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = Plan(
        "timm:resnet18", 'odd "place"\\here', ("gradient", "smooth(gradient, n=3)"), targets=("top1", "label"), limit=7,
        maps="float16", weights="w.safetensors", pretrained=False, seed=3, texts=("a cat; asleep", "a dog"),
    )  # fmt: skip
    (tmp_path / "plan.toml").write_text(as_toml([plan]))
    assert read_plans(tmp_path / "plan.toml") == [plan] == [plan_of(plan.as_dict())]
    two = [plan, replace(plan, model="timm:resnet34", weights="v.safetensors")]
    (tmp_path / "plan.toml").write_text(as_toml(two))
    assert read_plans(tmp_path / "plan.toml") == two
    assert [p.limit for p in read_plans(tmp_path / "plan.toml", {"limit": 9})] == [9, 9]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"limit": 0}, "limit must be a whole number of at least 1, not 0"),
        ({"limit": True}, "whole number"),
        ({"seed": -1}, "of at least 0"),
        ({"maps": "half"}, "float16"),
        ({"filter": "best"}, "mda"),
        ({"pretrained": "no"}, "true or false"),
        ({"methods": [3]}, "methods must be a list of texts, not"),
        ({"methods": [""]}, "methods must not be empty"),
        ({"methods": []}, "lacks methods"),
        ({"model": ["a:b", "c:d"], "weights": ["one"]}, "2 models but weights for 1"),
        ({"score": "softmaxx"}, "did you mean softmax"),
        ({"metrics": ["quick", "deletion(stpes=3)"]}, "did you mean steps"),
        ({"metods": []}, "did you mean methods"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, object], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        make_plans({**SETTINGS, **change})


def test_optional_methods_are_left_out() -> None:
    plan = Plan("m", "x", ("gradient", "rollout", "no_such_method"), optional=True)
    work = fitted(check_plan(plan), tiny_model(), optional=True)
    assert [str(method) for method in work.methods] == ["gradient"]
    assert "needs attention" in work.left_out["rollout"] and "unknown method" in work.left_out["no_such_method"]
    with pytest.raises(CapabilityError):
        fitted(check_plan(replace(plan, methods=("rollout",))), tiny_model(), optional=False)
    with pytest.raises(SpecError, match="no method fits"):
        fitted(check_plan(replace(plan, methods=("rollout",))), tiny_model(), optional=True)


def test_keys_change_with_everything_that_matters(plan: Plan, tmp_path: Path) -> None:
    def keys(changed: Plan) -> set[str]:
        made = BenchRun(changed, tmp_path / "run", model=tiny_model())
        return {made.cells.key(image, *parts) for image in made.images for parts in made.cells.missing(image)}

    own = keys(plan)
    assert keys(replace(plan, batch_size=5, maps="float16", title="other")) == own
    for change in ({"seed": 1}, {"targets": ("label",)}, {"metrics": ("sparseness",)}, {"methods": ("center_map",)}):
        assert not keys(replace(plan, **change)) & own

"""What the site generates: complete tables, with scores and without."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from aha import catalogue, explain, load_model, methods
from aha.methods import METHODS
from aha.metrics import METRICS
from aha.metrics.protocols import PROTOCOLS

FOLDER = Path(methods.__file__).parent
DOCS = Path(__file__).parents[1] / "docs"
if not DOCS.is_dir():
    pytest.skip("the documentation is part of the source tree, not of the package", allow_module_level=True)

# By its values alone the one of the other protocol and photographs would stand first.
SCORES = """model,method,n,deletion,insertion,ins_del,ins_del_se,gap,gap_se,forward,backward,protocol
timm:resnet18,rise,4,0.1,0.5,0.4,0.02,-0.05,0.03,500.0,0.0,ins_del in 8 steps
timm:resnet18,grad_cam,10,0.137,0.483,0.346,0.014,0.0,0.0,1.0,1.0,quick
"""


def loaded(script: str) -> ModuleType:
    spec = spec_from_file_location(f"site_{script}", DOCS / f"{script}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hooks() -> ModuleType:
    return loaded("hooks")


def test_the_ten_calls_are_those_of_the_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    script = loaded("make_llms")
    assert script.OUT.read_text(encoding="utf-8") == script.llms_text(), "run `make llms`"
    assert len(script.CALLS) == 10
    monkeypatch.setattr(script, "CALLS", [script.CALLS[0]._replace(words="aha.no_such_call")])
    with pytest.raises(SystemExit, match=r"docs/index.md has 0 blocks with 'aha.no_such_call'"):
        script.llms_text()


def test_every_marker_is_known(hooks: ModuleType) -> None:
    pages = [path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")]
    markers = {name for page in pages for name in re.findall(r"<!-- generated: (\w+) -->", page)}
    assert markers == set(hooks.GENERATED)
    assert "<!-- generated" not in "".join(hooks.on_page_markdown(page) for page in pages)


def test_known_truth_is_one_table_of_sets_and_one_of_shortcuts(
    hooks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        "set,method,metric,mean,standard_error,n",
        "xor-white-8,,accuracy,0.99,,1",
        "xor-white-8,gradient,precision_at_k,0.9,0.03,24",
        "xor-white-8,random_map,precision_at_k,0.25,0.01,24",
        "shortcut-tag-1-0,gradient,precision_at_k,0.2,0.01,24",
        "shortcut-tag-1-1,gradient,precision_at_k,0.4,0.01,24",
        "shortcut-tag-0.5-0,gradient,precision_at_k,0.8,0.01,24",
        "shortcut-tag,gradient,shortcut_auroc,0.75,,9",
    ]
    (tmp_path / "truth.csv").write_text("\n".join(lines))
    monkeypatch.setattr(hooks, "RESULTS", tmp_path)
    first, second = hooks.truth().split("Detection of shortcuts")
    assert (
        "| `gradient` | **0.90 ± 0.03** | **0.30 ± 0.10** |" in first and "| `random_map` | 0.25 ± 0.01 |  |" in first
    )
    assert "| `gradient` | **0.75** |" in second and "random_map" not in second


def test_tables_are_complete(hooks: ModuleType) -> None:
    for made, registry in ((hooks.methods(), METHODS), (hooks.metrics(), METRICS), (hooks.protocols(), PROTOCOLS)):
        rows = re.findall(r"^\| `([\w-]+)` \|", made, re.MULTILINE)
        assert sorted(rows) == sorted(registry)
        columns = {line.replace("\\|", "").count("|") for line in made.splitlines() if line.startswith("|")}
        assert len(columns) == 1


def test_ideas_are_those_of_methods_that_exist(hooks: ModuleType) -> None:
    ideas = {row["method"]: row["idea"] for row in hooks.read(FOLDER / "ideas.csv")}
    assert set(ideas) <= set(METHODS)
    assert f"| {ideas['grad_cam']} |" in hooks.methods()


def test_costs_were_counted_for_all_methods(hooks: ModuleType) -> None:
    counted = {row["method"]: row for row in hooks.read(FOLDER / "cost.csv")}
    assert set(counted) == set(METHODS), "run benchmarks/method_cost.py again"
    assert catalogue.cost_of("random_map") == "0"
    assert catalogue.cost_of("grad_cam") == "1 + 1"


def test_the_cost_of_aha_is_what_a_map_takes() -> None:
    model = load_model("demo:efficientnet_lite0", input_size=64)
    pixels = np.zeros((64, 64, 3), dtype=np.uint8)
    explain(model, pixels, "aha")
    assert catalogue.cost_of("aha") == f"{model.passes['forward']} + {model.passes['backward']}"


def test_scores_are_shown_best_first_where_there_are_any(
    hooks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "RESULTS", tmp_path)
    assert "measure" in hooks.scores()
    assert "|" not in hooks.scores()
    (tmp_path / "scores_summary.csv").write_text(SCORES)
    shown = hooks.scores()
    assert "**timm:resnet18**" in shown
    assert "| 0.346 ± 0.014 | 0.137 | 0.483 | 1 + 1 | 10 | quick |" in shown
    assert shown.index("`grad_cam`") < shown.index("`rise`") and "-0.050 ± 0.030" in shown

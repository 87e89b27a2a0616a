"""Reports, comparisons, estimates: from stored rows alone, and right."""

from __future__ import annotations

import csv
import json
import math
import re
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from worlds import make_data, tiny_model

import aha
from aha.bench import Plan, compare_runs, merge_runs, read_run, run, write_report
from aha.bench.estimate import estimate
from aha.bench.papers import PAPERS, paper_plans, printed_beside, printed_values
from aha.bench.plan import FEW
from aha.bench.reporting.compare import as_text
from aha.bench.reporting.exports import write_tables
from aha.bench.reporting.significance import holm, paired_p
from aha.bench.reporting.tables import by_class, by_confidence, differences, headline, summary_tables
from aha.bench.runner import BenchRun
from aha.bench.store import ROWS
from aha.data.labelled import find_labelled
from aha.errors import AhaWarning, OutputError, SpecError
from aha.methods import load_method
from aha.results.templating import prose


@pytest.fixture
def finished(plan: Plan, tmp_path: Path) -> Path:
    run(replace(plan, maps="float16", methods=(*plan.methods, "center_map")), tmp_path / "run", model=tiny_model())
    return tmp_path / "run"


def test_the_report_has_everything_and_needs_nothing(finished: Path, plan: Plan, data: Path) -> None:
    page = write_report(finished)
    text = page.read_text().replace("<wbr>", "")
    assert "http://" not in re.sub(r"xmlns[^\"]*\"[^\"]*\"", "", text).replace("http://www.w3.org", "")
    assert not re.search(r"<(script|img|link)[^>]+(src|href)=\"(?!data:)", text)
    for words in (
        "Protocol",
        "ins_del (black) ↑ by the model's confidence",
        "ins_del (black) ↑ by class",
        "Examples",
        "How to repeat it",
        "ins_del (black) ↑",
        "Cost",
    ):
        assert words in text
    assert text.count("data:image/svg+xml") == 2  # curves, and quality over seconds
    assert 'class="r1 top"' in text
    names = {path.name for path in finished.iterdir()}
    assert {"scores.csv", "summary.csv", "per_class.csv", "tables.md", "tables.tex", "figures"} <= names
    assert "\\toprule" in (finished / "tables.tex").read_text() and "\\textbf{" in (finished / "tables.tex").read_text()
    assert {path.suffix for path in (finished / "figures").iterdir()} == {".svg", ".png"}
    rows = list(csv.DictReader((finished / "scores.csv").read_text().splitlines()))
    assert list(rows[0]) == ["image", "method", "metric", "protocol", "target", "reference", "value"]
    images = [image.path for image in find_labelled([data / "list.csv"])]
    methods = [*plan.methods, "center_map"]
    expected = aha.evaluate(tiny_model(), images, methods, list(plan.metrics))
    ours = {(r["image"], r["method"], r["metric"], r["reference"]): float(r["value"]) for r in rows}
    theirs = {(Path(r.image).name, r.method, r.metric, r.reference): r.value for r in expected.rows}
    assert ours == pytest.approx(theirs, abs=1e-6)
    summary = {(s.method, s.metric, s.reference): s.mean for s in read_run(finished).group().scores.summary()}
    assert summary == pytest.approx({(s.method, s.metric, s.reference): s.mean for s in expected.summary()}, abs=1e-6)
    again = write_report(finished, finished.parent / "elsewhere")
    assert again.read_text() == page.read_text()


def test_a_report_shows_photographs_with_their_maps_unless_told_not_to(plan: Plan, tmp_path: Path) -> None:
    run(replace(plan, metrics=("quick",), limit=3), tmp_path / "run", model=tiny_model())
    text = write_report(tmp_path / "run").read_text()
    assert text.count("what the model saw") == 3 and text.count("data:image/jpeg") == 3 * (1 + len(plan.methods))
    assert "one of the first pictures" not in text, "three are all there are"
    run(replace(plan, limit=3, maps="none"), tmp_path / "none", model=tiny_model())
    assert "what the model saw" not in write_report(tmp_path / "none").read_text()


def test_of_many_pictures_a_few_are_kept(tmp_path: Path, plan: Plan) -> None:
    data = make_data(tmp_path / "many", FEW + 3)
    many = replace(plan, data=f"csv:{data / 'list.csv'}", metrics=("ins_del(steps=2)",))
    run(many, tmp_path / "run", model=tiny_model())
    assert len(read_run(tmp_path / "run").group().maps) == FEW
    text = write_report(tmp_path / "run").read_text()
    assert text.count("one of the first pictures") == FEW and "disagree most" not in text
    made = BenchRun(many, tmp_path / "new", model=tiny_model())
    all_ = BenchRun(replace(many, maps="float16"), tmp_path / "new", model=tiny_model())
    assert estimate(made).bytes < estimate(all_).bytes


def test_marks_of_code_are_drawn_as_code(plan: Plan, tmp_path: Path) -> None:
    """The note of `quick` names protocols in backticks, which pages showed as they are."""
    run(replace(plan, metrics=("quick",), limit=2), tmp_path / "run", model=tiny_model())
    page = write_report(tmp_path / "run").read_text()
    shown = re.sub(r"(?s)<(script|style)>.*?</\1>", "", page)
    assert "`" not in shown and "<code>aha</code> curves" in shown
    assert "`" not in read_run(tmp_path / "run").group().scores._repr_html_()
    assert prose("<b> `a & b`") == "&lt;b&gt; <code>a &amp; b</code>"


def test_tables_rank_and_test(finished: Path) -> None:
    group = read_run(finished).group()
    (first, *_) = summary_tables(group)
    column = first.columns[0]
    entries = {method: row[column] for method, row in first.rows.items()}
    order = sorted(entries, key=lambda method: -entries[method].mean)
    assert [entries[method].rank for method in order] == [1, 2, 3] and math.isnan(entries[order[0]].p)
    values = {m: [r.value for r in group.scores.rows if (r.method, r.metric) == (m, column[0])] for m in order}
    raw = {pair: float(stats.ttest_rel(*(values[m] for m in pair)).pvalue) for pair in combinations(order, 2)}
    assert [entries[m].p for m in order[1:]] == pytest.approx([holm(raw)[order[0], m] for m in order[1:]], rel=1e-6)
    assert entries[order[0]].error == pytest.approx(float(stats.sem(values[order[0]])))
    chosen = headline(group)
    assert chosen is not None and chosen[1][0] == "ins_del"
    bands = by_confidence(group)
    assert bands is not None and sum(n for _, n, _ in bands.rows) == 6
    assert sum(n for _, n, _ in by_class(group)) == 6


def test_significance_against_scipy() -> None:
    generator = np.random.default_rng(0)
    for n in (2, 3, 10, 500):
        gaps = generator.normal(0.1, 1.0, n).tolist()
        assert paired_p(gaps) == pytest.approx(float(stats.ttest_1samp(gaps, 0).pvalue), rel=1e-9)
    assert paired_p([0.0, 0.0]) == 1.0 and paired_p([1.0, 1.0]) == 0.5 and math.isnan(paired_p([1.0]))
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})


def test_two_kinds_of_target_are_reported_apart(plan: Plan, tmp_path: Path) -> None:
    read = run(replace(plan, targets=("top1", "label")), tmp_path / "run", model=tiny_model())
    assert [group.target_kind for group in read.groups] == ["top1", "label"]
    text = write_report(tmp_path / "run").read_text()
    assert "predicted class" in text and "true class" in text
    heads, *lines = (tmp_path / "run" / "scores.csv").read_text().splitlines()
    assert heads == "image,method,metric,protocol,target,reference,value,target_kind,model"
    parquet = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "run" / "scores.parquet")
    assert parquet.column_names == heads.split(",") and parquet.num_rows == len(lines)
    assert parquet["value"].to_pylist() == [float(row["value"]) for row in csv.DictReader([heads, *lines])]
    assert set(parquet["target_kind"].to_pylist()) == {"top1", "label"}


def test_models_of_the_same_weights_are_kept_apart(plan: Plan, tmp_path: Path) -> None:
    """As CLIPs with other texts are: what is done of one is neither shown nor counted as done of the other."""
    for text, share in (("a", (0, 1)), ("b", (0, 2))):
        model = tiny_model()
        model.spec = f"clip:tiny[{text}]"
        made = BenchRun(plan, tmp_path / "run", model=model, share=share)
        made.run()
    assert {group.model: group.missing for group in read_run(tmp_path / "run").groups} == {
        "clip:tiny[a]": 0,
        "clip:tiny[b]": 12,
    }
    assert {row.n for row in write_tables(made).summary()} == {3}


def test_the_choice_of_a_filter_is_that_of_one_model(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = iter((["00.png"], ["01.png", "02.png"]))
    monkeypatch.setattr("aha.bench.inputs.mda_filter", lambda *_: next(chosen))
    for text in "abab":
        model = tiny_model()
        model.spec = f"clip:tiny[{text}]"
        made = BenchRun(replace(plan, filter="mda"), tmp_path / "run", model=model)
        made.run()
        assert [image.id for image in made.images] == {"a": ["00.png"], "b": ["01.png", "02.png"]}[text]


def test_what_is_missing_is_said(plan: Plan, data: Path, tmp_path: Path) -> None:
    (data / "03.png").write_bytes(b"nothing")
    run(plan, tmp_path / "run", model=tiny_model())
    rows = tmp_path / "run" / ROWS / "0000.jsonl"
    rows.write_bytes(b"".join(rows.read_bytes().splitlines(keepends=True)[:-3]))
    text = write_report(tmp_path / "run").read_text()
    assert "3 results of the plan are missing" in text
    assert "What could not be measured" in text and "03.png" in text
    with pytest.raises(OutputError, match="not the folder of a run"):
        write_report(tmp_path / "nothing")


def test_compare_and_merge(plan: Plan, tmp_path: Path) -> None:
    first = replace(plan, methods=("gradient",))
    run(first, tmp_path / "a", model=tiny_model())
    run(plan, tmp_path / "b", model=tiny_model())
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    assert {row.method for row in found} == {"gradient"} and all(row.difference == 0 and row.n == 6 for row in found)
    assert {row.verdict for row in found} == {"same"} and "gradient" in as_text(found)
    run(replace(plan, methods=("random_map",), seed=5), tmp_path / "c", model=tiny_model())
    other = compare_runs(tmp_path / "b", tmp_path / "c")
    assert {row.method for row in other} == {"random_map"} and any(row.difference != 0 for row in other)
    raw = [2 * float(stats.t.sf(abs(row.difference / row.standard_error), row.n - 1)) for row in other]
    corrected = holm(dict(enumerate(raw)))  # for all comparisons of the two runs
    assert len(other) > 1 and [row.p for row in other] == pytest.approx([*corrected.values()], rel=1e-6)
    assert merge_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "merged") == 24
    assert read_run(tmp_path / "merged").group().scores.summary() == read_run(tmp_path / "b").group().scores.summary()
    with pytest.raises(OutputError, match="holds a run already"):
        merge_runs([tmp_path / "a"], tmp_path / "merged")
    with pytest.raises(OutputError, match="in common"):
        compare_runs(tmp_path / "a", tmp_path / "c")


def test_pictures_of_the_same_name_are_not_the_same(plan: Plan, tmp_path: Path) -> None:
    other = make_data(tmp_path / "other", 6)
    (other / "00.png").rename(other / "kept")
    for number in range(1, 6):
        (other / f"{number:02d}.png").rename(other / f"{number - 1:02d}.png")
    (other / "kept").rename(other / "05.png")
    elsewhere = replace(plan, data=f"csv:{other / 'list.csv'}")
    run(plan, tmp_path / "a", model=tiny_model())
    run(elsewhere, tmp_path / "b", model=tiny_model())
    with pytest.raises(OutputError, match=r"b used a different image 0\d\.png; it cannot be merged"):
        merge_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()
    with pytest.raises(OutputError, match="in common"):
        compare_runs(tmp_path / "a", tmp_path / "b")
    run(replace(elsewhere, methods=("center_map",)), tmp_path / "a", model=tiny_model())
    assert read_run(tmp_path / "a").group().methods == ["center_map"]  # the others are of pictures that are gone


@pytest.mark.parametrize(
    ("metric", "former", "now"),
    [
        ("energy_in_box", "01.png,1,01.mask.bmp,11,10,31,30", "01.png,1,01.mask.bmp,1,1,9,9"),
        ("pointing_game", "01.png,1,01.mask.bmp,", "01.png,1,05.mask.bmp,"),
        ("sparseness", "01.png,1,", "01.png,2,"),
    ],
)
def test_rows_of_a_former_truth_do_not_count(
    metric: str, former: str, now: str, plan: Plan, data: Path, tmp_path: Path
) -> None:
    """Boxes, masks and labels may change as pictures do: the method that was not measured again has a row less."""
    plan = replace(plan, metrics=(metric,))
    run(plan, tmp_path / "run", model=tiny_model())
    run(plan, tmp_path / "before", model=tiny_model())
    listing = (data / "list.csv").read_text()
    assert former in listing
    (data / "list.csv").write_text(listing.replace(former, now))
    run(replace(plan, methods=("random_map",)), tmp_path / "run", model=tiny_model())
    found = read_run(tmp_path / "run").group()
    images = {row.image for row in found.scores.rows if row.method == "gradient"}
    assert len(images) == 5 and "01.png" not in images
    assert {row.n for row in found.scores.summary() if row.method == "random_map"} == {6} and found.missing == 1
    run(replace(plan, methods=("random_map",)), tmp_path / "after", model=tiny_model())
    with pytest.raises(OutputError, match=r"after used (different boxes|a different (mask|label)) for 01"):
        merge_runs([tmp_path / "before", tmp_path / "after"], tmp_path / "merged")
    assert {row.n for row in compare_runs(tmp_path / "before", tmp_path / "after")} == {5}
    (data / "list.csv").write_text(listing)  # and back again
    run(replace(plan, methods=("random_map",)), tmp_path / "run", model=tiny_model())
    assert read_run(tmp_path / "run").group().missing == 0


def test_a_clock_that_goes_back_hides_nothing(
    plan: Plan, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came later shows from the order of writing."""
    plan = replace(plan, metrics=("sparseness",))
    monkeypatch.setattr("time.time", lambda: 2e9)
    run(plan, tmp_path / "run", model=tiny_model())
    (data / "01.png").write_bytes((data / "02.png").read_bytes())
    monkeypatch.setattr("time.time", lambda: 1e9)
    run(replace(plan, methods=("gradient",)), tmp_path / "run", model=tiny_model())
    group = read_run(tmp_path / "run").group()
    assert {row.method: row.n for row in group.scores.summary()} == {"gradient": 6, "random_map": 5}
    fresh = {row.image: row.value for row in group.scores.rows if row.method == "gradient"}
    assert fresh["01.png"] == fresh["02.png"]


def test_rows_of_other_saved_maps_do_not_count(plan: Plan, data: Path, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.mkdir()
    for index in range(6):
        np.save(maps / f"{index:02d}.npy", np.random.default_rng(index).random((44, 50)))
    plan = replace(plan, methods=(), saved=str(maps), metrics=("sparseness", "deletion(steps=3, references=(black,))"))
    run(plan, tmp_path / "run", model=tiny_model())
    np.save(maps / "03.npy", np.random.default_rng(9).random((44, 50)))
    run(replace(plan, metrics=("sparseness",)), tmp_path / "run", model=tiny_model())
    assert read_run(tmp_path / "run").group().missing == 1
    run(plan, tmp_path / "other", model=tiny_model())
    np.save(maps / "03.npy", np.random.default_rng(3).random((44, 50)))
    run(plan, tmp_path / "run", model=tiny_model())
    with pytest.raises(OutputError, match=r"different maps by maps for 03\.png"):
        merge_runs([tmp_path / "run", tmp_path / "other"], tmp_path / "merged")


def test_rows_of_a_former_state_do_not_count(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(plan, tmp_path / "run", model=tiny_model())
    kind = type(load_method("gradient"))
    former = kind.fingerprint
    monkeypatch.setattr(kind, "fingerprint", lambda self, model: former(self, model) + " trained anew")
    run(replace(plan, limit=1), tmp_path / "run", model=tiny_model())
    found = read_run(tmp_path / "run").group()
    assert {row.method: row.n for row in found.scores.summary()} == {"gradient": 1, "random_map": 6}
    assert found.missing == 5 * len(plan.metrics)
    run(plan, tmp_path / "other", model=tiny_model())
    monkeypatch.undo()
    run(plan, tmp_path / "run", model=tiny_model())
    with pytest.raises(OutputError, match="a different version of gradient"):
        merge_runs([tmp_path / "run", tmp_path / "other"], tmp_path / "merged")


def test_means_and_tests_are_over_images(plan: Plan, tmp_path: Path) -> None:
    run(replace(plan, targets=("top3",)), tmp_path / "run", model=tiny_model())
    group = read_run(tmp_path / "run").group()
    assert all(entry.n == 6 for table in summary_tables(group) for row in table.rows.values() for entry in row.values())
    assert all(row.n == 6 for row in compare_runs(tmp_path / "run", tmp_path / "run"))
    ours, theirs = ({(f"{i}", k): v for i, v in enumerate(row) for k in range(5)} for row in ((1, 2, 4), (0, 3, 1)))
    assert differences(ours, theirs) == [1, -1, 3]


def test_curves_of_methods_that_score_last_are_drawn_too(plan: Plan, tmp_path: Path) -> None:
    cheap = tuple(f"random_map(seed={number})" for number in range(12))
    run(
        replace(plan, methods=("gradient", *cheap), metrics=plan.metrics[:1], limit=1),
        tmp_path / "run",
        model=tiny_model(),
    )
    run(replace(plan, methods=("center_map",), limit=1), tmp_path / "run", model=tiny_model())
    assert write_report(tmp_path / "run").is_file()


def test_maps_that_were_not_kept_are_spoken_of(plan: Plan, tmp_path: Path) -> None:
    run(replace(plan, limit=1), tmp_path / "run", model=tiny_model())
    with pytest.warns(AhaWarning, match="results of gradient, random_map did not keep all maps; choose another folder"):
        run(replace(plan, limit=2, maps="float16"), tmp_path / "run", model=tiny_model())


@pytest.mark.parametrize(
    ("changes", "options"), [({"seed": 5}, {}), ({}, {"score": "logit"}), ({}, {"precision": "bfloat16"})]
)
def test_runs_of_other_settings_are_not_merged(
    plan: Plan, tmp_path: Path, changes: dict[str, Any], options: dict[str, Any]
) -> None:
    """What `aha bench` would refuse to put into one folder; other images and methods are welcome there."""
    plan = replace(plan, methods=("center_map",), metrics=("sparseness",), limit=2)
    run(plan, tmp_path / "a", model=tiny_model())
    run(replace(plan, limit=3, methods=("edge_map",), metrics=("cost",)), tmp_path / "b", model=tiny_model())
    run(replace(plan, **changes), tmp_path / "c", model=tiny_model(**options))
    assert merge_runs([tmp_path / "a", tmp_path / "b"], tmp_path / "merged") == 5
    (name, value), *_ = [*changes.items(), *options.items()]
    with pytest.raises(OutputError, match=rf"c holds results of .* with {name}={value}, another ") as caught:
        merge_runs([tmp_path / "a", tmp_path / "b", tmp_path / "c"], tmp_path / "other")
    assert "\n" not in str(caught.value) and not (tmp_path / "other").exists()


def test_the_estimate_writes_nothing_and_is_about_right(plan: Plan, tmp_path: Path) -> None:
    made = BenchRun(replace(plan, maps="float16"), tmp_path / "run", model=tiny_model())
    expected = estimate(made)
    assert not (tmp_path / "run").exists() and expected.cells == 24 and expected.images == 6
    before = made.model.passes["forward"]
    made.run()
    assert expected.forward == pytest.approx(made.model.passes["forward"] - before, rel=0.1)
    size = sum(path.stat().st_size for folder in (ROWS, "maps") for path in (tmp_path / "run" / folder).iterdir())
    assert expected.bytes == pytest.approx(size, rel=0.4)
    assert set(expected.by_method) == set(plan.methods) and expected.seconds > 0


@pytest.mark.slow
def test_a_large_report_is_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """100 000 rows; in processor time, since other work goes on beside."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    from bench_overhead import report_seconds

    assert report_seconds(tmp_path) < 10
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 100_081


def test_papers(plan: Plan, tmp_path: Path, data: Path) -> None:
    for name in PAPERS:
        plans = paper_plans(f"paper:{name}", {}, tmp_path)
        assert all(made.paper == name and made.optional for made in plans)
    assert len(paper_plans("paper:caap-table1", {}, tmp_path)) == 4
    contrasted = paper_plans("paper:var-table1", {}, tmp_path)[0]
    assert contrasted.metrics == ("var",)
    assert {"grad_cam", "var(grad_cam, classes='grid')"} <= set(contrasted.methods), "without and with VAR"
    assert PAPERS["var-table1"].method("GradCam + VAR") in contrasted.methods
    assert printed_values("VAR 3", "ResNet-50 | predicted | ")["GradCam + VAR"]["IoU"] == 0.67
    with pytest.raises(SpecError, match="did you mean aha-table1"):
        paper_plans("paper:aha-tabel1", {}, tmp_path)
    with pytest.raises(SpecError, match="needs its images"):
        paper_plans("paper:aha-table1", {})
    changes = {"model": "module:TinyCNN", "data": plan.data, "methods": ["grad_cam", "tis"], "metrics": ["quick"]}
    (made,) = paper_plans("paper:aha-table1", changes)
    read = run(made, tmp_path / "run", model=tiny_model())
    assert json.loads((tmp_path / "run" / "plans.jsonl").read_text().splitlines()[0])["plan"]["paper"] == "aha-table1"
    beside = printed_beside(read.group("top1"), [made.as_dict()])
    printed = {row.metric: row.printed for row in beside if row.method == "grad_cam"}
    assert printed == {"deletion mean_of_3": 0.2858, "insertion mean_of_3": 0.4982, "ins_del mean_of_3": 0.2124}
    true = {row.metric: row.printed for row in printed_beside(read.group("label"), [made.as_dict()])}
    assert true["ins_del mean_of_3"] != printed["ins_del mean_of_3"]
    text = write_report(tmp_path / "run").read_text()
    assert "Compared with the paper" in text and "stands in for the paper&#39;s ViT-B/16" in text and "0.2858" in text

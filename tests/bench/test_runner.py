"""Running plans: equal to `aha.evaluate`, whatever the order, batch or share; resumed, extended, never doubled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from worlds import cells_of, count_lines, make_data, tiny_model

import aha
from aha.bench import read_run
from aha.bench.estimate import estimate
from aha.bench.plan import Plan
from aha.bench.runner import ENGINES, BenchRun
from aha.core.store import sound_lines
from aha.data.labelled import find_labelled
from aha.errors import DamageWarning
from aha.explain_folder import FileRun, find_pictures
from aha.methods import load_method
from fakes import Boom, changes, snapshot


def run(plan: Plan, out: Path, **options: object) -> BenchRun:
    made = BenchRun(plan, out, model=tiny_model(), **options)
    made.run()
    return made


def values(out: Path) -> dict[tuple[object, ...], float]:
    return {
        (cell["asked"], cell["method"], cell["protocol"], cell["image"], found["target"], metric, reference): value
        for cell in cells_of(out).values()
        for found in cell["found"]
        for metric, reference, value in found["rows"]
    }


def test_it_equals_evaluate(plan: Plan, data: Path, tmp_path: Path) -> None:
    plan = replace(plan, metrics=(*plan.metrics, "segmentation"), targets=("top1", "label"))
    model = tiny_model()
    before = snapshot(model.module)
    BenchRun(plan, tmp_path / "run", model=model).run()
    assert not changes(before, snapshot(model.module))
    images = find_labelled([data / "list.csv"])
    expected = {}
    for word in plan.targets:
        scores = aha.evaluate(
            tiny_model(),
            [image.path for image in images],
            list(plan.methods),
            list(plan.metrics),
            target=word,
            labels=[image.label for image in images],
            masks=[image.mask() for image in images],
        )
        assert not scores.failures
        expected |= {
            (word, r.method, r.protocol, Path(r.image).name, r.target, r.metric, r.reference): r.value
            for r in scores.rows
        }
    assert values(tmp_path / "run") == pytest.approx(expected, abs=1e-6)


def test_order_batch_and_share_do_not_matter(plan: Plan, tmp_path: Path) -> None:
    run(plan, tmp_path / "one")
    run(replace(plan, batch_size=5, methods=plan.methods[::-1], metrics=plan.metrics[::-1]), tmp_path / "other")
    for rank in (2, 0, 1):
        run(plan, tmp_path / "shared", share=(rank, 3))
    one, other, shared = (cells_of(tmp_path / name) for name in ("one", "other", "shared"))
    assert one.keys() == other.keys() == shared.keys() and len(one) == 6 * 2 * 2
    assert values(tmp_path / "one") == pytest.approx(values(tmp_path / "other"), abs=1e-6)
    assert values(tmp_path / "one") == pytest.approx(values(tmp_path / "shared"), abs=1e-6)
    assert len(list((tmp_path / "shared" / "rows").iterdir())) == 3


def test_finished_cells_are_skipped_and_more_can_be_asked_for(plan: Plan, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = run(replace(plan, limit=3, methods=("gradient",)), out)
    assert first.total == 6 and first.pending == 0
    before = cells_of(out)
    model = tiny_model()
    again = BenchRun(replace(plan, limit=3, methods=("gradient",)), out, model=model)
    before_run = model.passes["forward"]
    again.run()
    assert model.passes["forward"] == before_run and count_lines(out) == 6
    more = BenchRun(plan, out, model=tiny_model())
    assert more.pending == 24 - 6  # the smaller choice of images is part of the larger one
    steps = []
    more.run(steps.append)
    assert sum(step.cells for step in steps) == 18 and {step.method for step in steps} == set(plan.methods)
    assert count_lines(out) == 24 and before.items() <= cells_of(out).items()


def test_the_true_class_is_not_computed_twice(plan: Plan, tmp_path: Path) -> None:
    """Where the prediction is right, both kinds of target are the same map."""
    model = tiny_model()
    BenchRun(replace(plan, targets=("top1",)), tmp_path / "one", model=model).run()
    right = [c["image"] for c in cells_of(tmp_path / "one").values() if c["label"] == c["found"][0]["target"]]
    passes = model.passes["forward"]
    both = tiny_model()
    BenchRun(replace(plan, targets=("label", "top1")), tmp_path / "both", model=both).run()
    cells = cells_of(tmp_path / "both").values()
    assert {c["asked"] for c in cells} == {"label", "top1"} and len(cells) == 48
    share = len(set(right)) / 6
    assert both.passes["forward"] < passes * (2 - share) * 1.1
    for cell in cells:
        if cell["asked"] == "label":
            assert [found["target"] for found in cell["found"]] == [cell["label"]]


def test_failures_are_recorded_and_do_not_stop_the_run(
    plan: Plan, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aha.methods.gradients.gradient import Gradient

    (data / "02.png").write_bytes(b"nothing")
    original = Gradient.__call__

    def fails(self, model, images, classes):
        if any(abs(float(image.mean()) - MEAN) < 1e-6 for image in images):
            raise Boom("no map for this one")
        return original(self, model, images, classes)

    model = tiny_model()
    from aha.data.images import read_image

    MEAN = float(model.stated_preprocessing()(read_image(data / "04.png"))[0].mean())
    monkeypatch.setattr(Gradient, "__call__", fails)
    BenchRun(plan, tmp_path / "run", model=model).run()
    cells = cells_of(tmp_path / "run").values()
    failed = {(c["image"], c["method"]) for c in cells if not c["found"]}
    assert failed == {("02.png", "gradient"), ("02.png", "random_map"), ("04.png", "gradient")}
    reasons = {c["image"]: c["failures"][0][1] for c in cells if c["failures"]}
    assert "02.png" in reasons and reasons["04.png"] == "Boom: no map for this one"
    assert BenchRun(plan, tmp_path / "run", model=tiny_model()).pending == 0


def test_maps_are_kept_in_half_precision(plan: Plan, tmp_path: Path) -> None:
    from aha.bench.store import read_cells, read_map, read_picture

    run(replace(plan, maps="float16", limit=2), tmp_path / "run")
    cells = read_cells(tmp_path / "run")
    expected = aha.explain(tiny_model(), Path(plan.data[4:]).parent / cells[0]["image"], cells[0]["method"])
    stored = read_map(tmp_path / "run", cells[0]["found"][0]["map"])
    assert stored == pytest.approx(expected.maps[0].numpy(), abs=1e-3 * float(expected.maps.abs().max()))
    assert read_picture(tmp_path / "run", cells[0]["picture"]).size == stored.shape[::-1]


def test_mosaics(plan: Plan, tmp_path: Path) -> None:
    plan = replace(plan, metrics=("grid_pointing",))
    run(plan, tmp_path / "run")
    (cell, other) = cells_of(tmp_path / "run").values()
    assert cell["asked"] == other["asked"] == "grid" and len(cell["found"]) == 4
    assert BenchRun(plan, tmp_path / "run", model=tiny_model()).total == 2
    run(plan, tmp_path / "run")
    assert count_lines(tmp_path / "run") == 2


def test_mosaics_of_two_models_stay_side_by_side(plan: Plan, tmp_path: Path) -> None:
    more = make_data(tmp_path / "more", 8)
    (more / "list.csv").write_text("file,label\n" + "".join(f"{i:02d}.png,{i % 4}\n" for i in range(8)))
    plan = replace(plan, data=f"csv:{more / 'list.csv'}", metrics=("grid_pointing",), methods=("random_map",))
    for size in (32, 64):
        model = tiny_model(input_size=size)
        model.spec = f"module:{size}"
        with torch.no_grad():
            next(model.module.parameters()).add_(size / 1000)
        BenchRun(plan, tmp_path / "run", model=model).run()
    assert [len(group.facts) for group in read_run(tmp_path / "run").groups] == [8, 8]


def test_the_estimate_of_finished_mosaics_is_nothing(plan: Plan, tmp_path: Path) -> None:
    more = make_data(tmp_path / "more", 8)
    (more / "list.csv").write_text("file,label\n" + "".join(f"{i:02d}.png,{i % 4}\n" for i in range(8)))
    plan = replace(plan, data=f"csv:{more / 'list.csv'}", metrics=("grid_pointing",), methods=("random_map",))
    assert estimate(run(plan, tmp_path / "run")).cells == 0


@pytest.mark.filterwarnings("ignore:there were enough images")
def test_mosaics_that_cannot_be_filled_are_not_missed(plan: Plan, tmp_path: Path) -> None:
    """Eight pictures, five of them of one class, give one mosaic, whoever shares the work."""
    more = make_data(tmp_path / "more", 8)
    (more / "list.csv").write_text("file,label\n" + "".join(f"{i:02d}.png,{max(0, i - 4)}\n" for i in range(8)))
    plan = replace(plan, data=f"csv:{more / 'list.csv'}", metrics=("grid_pointing",), methods=("random_map",))
    for rank in range(2):
        made = run(plan, tmp_path / "run", share=(rank, 2))
        assert made.num_images == 1 and made.total == 1 - rank
    assert count_lines(tmp_path / "run") == 1 and read_run(tmp_path / "run").group("grid").missing == 0


def test_a_mosaic_with_a_picture_that_cannot_be_read_is_a_cell_with_a_reason(plan: Plan, tmp_path: Path) -> None:
    more = make_data(tmp_path / "more", 8)
    (more / "list.csv").write_text("file,label\n" + "".join(f"{i:02d}.png,{i % 4}\n" for i in range(8)))
    plan = replace(plan, data=f"csv:{more / 'list.csv'}", metrics=("grid_pointing",), methods=("random_map",))
    run(plan, tmp_path / "whole")
    (more / "03.png").write_bytes(b"nothing")
    run(plan, tmp_path / "run")
    good, bad = sorted(cells_of(tmp_path / "run").values(), key=lambda cell: len(cell["failures"]))
    assert len(good["found"]) == 4 and good in cells_of(tmp_path / "whole").values()
    assert not bad["found"] and "03.png" in bad["failures"][0][1]
    assert read_run(tmp_path / "run").group("grid").missing == 0
    run(plan, tmp_path / "run")
    assert count_lines(tmp_path / "run") == 2


def test_changed_truth_is_measured_again_and_other_cells_are_not(plan: Plan, data: Path, tmp_path: Path) -> None:
    """A mask matters to the metrics that look at it alone; a label is part of what is reported."""
    plan = replace(plan, metrics=("sparseness", "segmentation"))
    run(plan, tmp_path / "run")
    (data / "01.mask.bmp").write_bytes((data / "04.mask.bmp").read_bytes())
    missing = BenchRun(plan, tmp_path / "run", model=tiny_model())
    assert {(i.id, p) for i in missing.images for _, p, _ in missing.cells.missing(i)} == {("01.png", "segmentation")}
    listing = (data / "list.csv").read_text()
    (data / "list.csv").write_text(listing.replace("02.png,2", "02.png,3"))
    assert BenchRun(plan, tmp_path / "run", model=tiny_model()).pending == 2 + 4
    run(plan, tmp_path / "run")
    cells = cells_of(tmp_path / "run").values()
    assert len(cells) == 24 and {c["label"] for c in cells if c["image"] == "02.png"} == {3}


def test_what_ran_the_passes_is_noted_once_and_again_where_the_note_is_damaged(plan: Plan, tmp_path: Path) -> None:
    """A digit of the note is changed, so that it can still be read."""
    plan, out = replace(plan, engine="auto"), tmp_path / "run"
    path = out / ENGINES

    def noted() -> list[dict[str, object]]:
        BenchRun(plan, out, model=tiny_model(engine="auto")).run()
        return [line.record() for line in sound_lines([path])]

    first = noted()
    assert [(entry["engine"], entry["engine_asked"]) for entry in first] == [("eager", "auto")]
    assert noted() == first
    path.write_bytes(path.read_bytes().replace(b'"process":0', b'"process":7'))
    with pytest.warns(DamageWarning, match="line 1 is damaged"):
        assert noted() == first


@pytest.mark.filterwarnings("ignore::aha.AhaWarning")  # flat maps of a random network
def test_no_clean_image_is_run_twice(plan: Plan, data: Path, tmp_path: Path) -> None:
    """Whoever reads the images' own pass: the choice of classes, several methods, two kinds of target."""
    methods = ("grad_cam", "layer_cam", "gradient", "input_x_gradient", "eigen_cam", "random_map")
    plan = replace(plan, methods=methods, metrics=("sparseness",), targets=("top1", "label"))
    model = tiny_model()
    for method in methods:  # what is found out about a model is found out once
        aha.explain(model, data / "00.png", method)
    shown: list[int] = []
    model.module.register_forward_pre_hook(lambda _module, args: shown.append(len(args[0])))
    BenchRun(plan, tmp_path / "run", model=model).run()
    assert sum(shown) == 6
    forward = {cell["method"]: cell["forward"] for cell in cells_of(tmp_path / "run").values()}
    assert forward == {method: float(method != "random_map") for method in methods}  # as if each had been alone
    shown.clear()
    files = sorted(data.glob("*.png"))
    scores = aha.evaluate(model, files, list(methods), "sparseness")
    assert sum(shown) == 6 and not scores.failures
    shown.clear()
    pictures = find_pictures([str(file) for file in files], tmp_path / "maps", model)
    FileRun(model, pictures, [load_method(name) for name in methods], "top1", tmp_path / "maps").run(4)
    assert sum(shown) == 6
    shared = {(row.image, row.method, row.metric): row.value for row in scores.rows}
    for method in methods:
        for row in aha.evaluate(tiny_model(), files, method, "sparseness").rows:
            assert shared[row.image, row.method, row.metric] == pytest.approx(row.value, abs=1e-5)

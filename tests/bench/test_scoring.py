"""`evaluate`: what it counts, what it refuses, what it survives, and the table it gives."""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import aha
from aha.data.batches import iter_batches
from aha.data.mosaics import build_mosaics
from aha.errors import AhaWarning, CapabilityError, MetricError, MissingExtra, OutputError, SpecError, UnknownName
from aha.methods.baselines.center_map import CenterMap
from aha.metrics import METRICS, load_metric
from aha.metrics.protocols import PROTOCOLS, load_protocols
from aha.models.running.memory import PeakMemory
from aha.results.cards import Card, Curves, average_curves, lead_over
from aha.results.score_table import Row, Scores, student_quantile, summarise
from fakes import tiny_vit

QUICK = "deletion(steps=4)"


@pytest.fixture
def model():
    return aha.load_model(tiny_vit(), input_size=32, mean=[0.5] * 3, std=[0.5] * 3)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.shown = tiny_vit(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.shown += len(x)
        return self.inner(x)


def test_rows_are_tidy(model, images) -> None:
    scores = aha.evaluate(model, images, ["gradient", "random_map"], [QUICK, "insertion(steps=4)"])
    assert len(scores.rows) == 4 * 2 * 2 * 4  # images x methods x metrics x (3 references + average)
    row = scores.rows[0]
    assert (row.image, row.method, row.metric, row.reference) == ("image-0", "gradient", "deletion", "black")
    assert row.protocol == QUICK  # a metric on its own is its own protocol, in full
    assert {row.protocol for row in scores.rows} == {QUICK, "insertion(steps=4)"}
    assert not scores.failures


def test_an_image_on_which_a_method_fails_does_not_spoil_its_batch(model, images, monkeypatch) -> None:
    found = CenterMap.__call__
    (wanted,) = aha.evaluate(model, images, "center_map", "sparseness").values("center_map", "gini")[1:2]

    def fails_for_the_first(self, model, images, classes):
        if bool((images == first).all(dim=(1, 2, 3)).any()):
            raise CapabilityError("not this image")
        return found(self, model, images, classes)

    first = next(iter_batches(model, images, 8)).inputs[0]
    monkeypatch.setattr(CenterMap, "__call__", fails_for_the_first)
    with pytest.warns(AhaWarning, match="not this image"):
        scores = aha.evaluate(model, images, "center_map", "sparseness")
    assert [(failure.image, failure.reason) for failure in scores.failures] == [("image-0", "not this image")]
    values = scores.values("center_map", "gini")
    assert len(values) == len(images) - 1 and values[0] == wanted


def test_clean_images_and_references_are_shown_once_for_all_methods(images) -> None:
    module = Counting()
    model = aha.load_model(module, input_size=32, mean=[0.5] * 3, std=[0.5] * 3)
    methods = ["random_map", "center_map", "edge_map"]  # these ask the model nothing
    aha.evaluate(model, images, methods, ["deletion(steps=8)", "insertion(steps=8)", "neg_pos(steps=8)"])
    per_image = 1 + 3 + len(methods) * 2 * 3 * 7
    assert module.shown == len(images) * per_image


def test_batch_size_and_company_do_not_matter(model, images) -> None:
    together = aha.evaluate(model, images, "gradient", QUICK)
    alone = [aha.evaluate(model, images[i], "gradient", QUICK, batch_size=1).rows for i in range(4)]
    for ours, theirs in zip(together.rows, (row for rows in alone for row in rows), strict=True):
        assert ours[1:-1] == theirs[1:-1] and ours.value == pytest.approx(theirs.value, abs=1e-5)


def test_maps_from_elsewhere_score_like_the_method_that_made_them(model, images) -> None:
    found = aha.explain(model, images, "gradient")
    by_method = aha.evaluate(model, images, "gradient", QUICK)
    for given in (found, found.maps, found.numpy(), list(found.maps), {"mine": found.maps}):
        by_map = aha.evaluate(model, images, given, QUICK)
        assert [row.value for row in by_map.rows] == pytest.approx([row.value for row in by_method.rows], abs=1e-6)
    assert by_map.rows[0].method == "mine"


def test_explanations_are_scored_for_the_classes_that_they_are_of(model, images) -> None:
    found = aha.explain(model, images, "gradient", target=4)
    alone, named = aha.evaluate(model, images, found, QUICK), aha.evaluate(model, images, {"mine": found}, QUICK)
    expected = aha.evaluate(model, images, "gradient", QUICK, target=4)
    for scores in (alone, named):
        assert {row.target for row in scores.rows} == {4}
        assert [row.value for row in scores.rows] == pytest.approx([row.value for row in expected.rows], abs=1e-6)
    two = aha.explain(model, images, "gradient", target=[[4, 1]] * len(images))
    assert [row.target for row in aha.evaluate(model, images[:2], two[:4], "deletion(steps=2)").rows][::4] == [4, 1] * 2
    with pytest.raises(MetricError, match="is of class 4, not of 3; pass the classes of the maps as target="):
        aha.evaluate(model, images, found, QUICK, target=3)


def test_what_is_named_twice_counts_once(model, images) -> None:
    once = aha.evaluate(model, images, "gradient", QUICK)
    twice = aha.evaluate(model, images, ["gradient", "gradient()"], [QUICK, QUICK])
    assert twice.summary() == once.summary()


def test_classes_of_an_image_are_no_images_of_their_own() -> None:
    values = (0.1, 0.4, 0.2, 0.5)
    one, five = (
        Scores([Row(f"{i}", "m", "deletion", "p", k, "black", v) for i, v in enumerate(values) for k in range(count)])
        for count in (1, 5)
    )
    assert one.summary() == five.summary()
    assert one.summary()[0].n == 4


def test_a_mask_may_be_of_any_type(model, images) -> None:
    mask = torch.zeros(32, 32)
    mask[8:24, 8:24] = 0.7
    scores = [
        aha.evaluate(model, images[:1], "center_map", "segmentation", masks=[given]).rows
        for given in (mask, mask > 0, (mask > 0).to(torch.uint8))
    ]
    assert scores[0] == scores[1] == scores[2]


def test_maps_in_the_original_images_pixels_are_brought_to_the_input() -> None:
    model = aha.load_model(tiny_vit(), input_size=32, mean=[0.5] * 3, std=[0.5] * 3, fit="crop")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8))
    full = aha.explain(model, picture, "center_map").original_map()  # NaN outside the crop
    assert bool(full.isnan().any())
    ours = aha.evaluate(model, picture, [full], "deletion(steps=8, ties='raster')")
    direct = aha.evaluate(model, picture, "center_map", "deletion(steps=8, ties='raster')")
    assert ours.rows[-1].value == pytest.approx(direct.rows[-1].value, abs=0.02)


def test_several_targets_and_labels(model, images) -> None:
    scores = aha.evaluate(model, images, "gradient", QUICK, target="top2")
    assert len({(row.image, row.target) for row in scores.rows}) == 8
    labelled = aha.evaluate(model, images, "gradient", "chefer", target="label", labels=[0, 1, 2, 3])
    assert sorted({row.target for row in labelled.rows}) == [0, 1, 2, 3]


def test_masks_and_boxes_reach_the_metrics_in_model_pixels() -> None:
    model = aha.load_model(tiny_vit(), input_size=32, mean=[0.5] * 3, std=[0.5] * 3, fit="squash")
    picture = Image.new("RGB", (64, 64), "white")
    mask = np.zeros((64, 64), dtype=np.uint8)
    mask[:32, :32] = 1
    values = torch.zeros(32, 32)
    values[:16, :16] = 1.0
    scores = aha.evaluate(
        model, picture, [values], ["pointing_game", "energy_in_box"], masks=[mask], boxes=[[(0, 0, 32, 32)]]
    )
    assert {row.metric: row.value for row in scores.rows} == pytest.approx({"pointing_game": 1.0, "energy_in_box": 1.0})


def test_missing_truth_is_refused_before_any_work() -> None:
    module = Counting()
    model = aha.load_model(module, input_size=32, mean=[0.5] * 3, std=[0.5] * 3)
    with pytest.raises(MetricError, match="protocol seg needs masks"):
        aha.evaluate(model, torch.rand(1, 3, 32, 32), "gradient", "seg")
    with pytest.raises(MetricError, match="boxes"):
        aha.evaluate(model, torch.rand(1, 3, 32, 32), "gradient", "energy_in_box")
    with pytest.raises(MetricError, match="run the method again"):
        aha.evaluate(model, torch.rand(1, 3, 32, 32), torch.rand(1, 32, 32), "sanity")
    assert module.shown == 0


def test_unknown_names_and_unfit_methods_are_refused(model, images) -> None:
    with pytest.raises(UnknownName, match="deletion"):
        aha.evaluate(model, images, "gradient", "deletoin")
    with pytest.raises(SpecError):
        aha.evaluate(model, images, "gradiant", QUICK)
    plain = aha.load_model(
        nn.Sequential(nn.Flatten(), nn.Linear(3072, 5)), input_size=32, mean=[0.5] * 3, std=[0.5] * 3
    )
    with pytest.raises(CapabilityError):
        aha.evaluate(plain, images, "rollout", QUICK)


def test_a_bad_image_or_map_does_not_stop_the_others(model, tmp_path: Path) -> None:
    Image.new("RGB", (40, 40), "red").save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_text("no picture")
    with pytest.warns(AhaWarning, match=r"^1 measurements failed, \d+ succeeded .*bad.png is not a picture") as heard:
        scores = aha.evaluate(model, tmp_path, "gradient", QUICK)
    assert heard[0].filename == __file__  # the line of the call
    assert {Path(row.image).name for row in scores.rows} == {"good.png"}
    assert "bad.png" in scores.failures[0].reason
    maps = [torch.full((32, 32), math.nan), torch.rand(32, 32), torch.rand(5, 5)]
    with pytest.warns(AhaWarning, match="^2 measurements failed"):
        scores = aha.evaluate(model, torch.rand(3, 3, 32, 32), maps, QUICK)
    assert {row.image for row in scores.rows} == {"image-1"}
    assert [failure.image for failure in scores.failures] == ["image-0", "image-2"]


def test_an_evaluation_that_measured_nothing_says_so(images) -> None:
    """A module that states no normalisation has no black, no mean and no blur of it."""
    plain = aha.load_model(tiny_vit())
    with pytest.raises(MetricError, match="nothing could be measured: ") as caught:
        aha.evaluate(plain, images, [torch.rand(32, 32) for _ in range(4)], "deletion(references=(black,))")
    assert "(4 times)" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:1 measurements failed")
def test_truth_stays_with_its_image_when_another_cannot_be_read(tmp_path: Path) -> None:
    model = aha.load_model(tiny_vit(), input_size=32, mean=[0.5] * 3, std=[0.5] * 3, fit="squash")
    (tmp_path / "a.png").write_text("no picture")
    Image.new("RGB", (32, 32), "red").save(tmp_path / "b.png")
    masks = [np.zeros((32, 32), dtype=np.uint8) for _ in range(2)]
    masks[1][:8, :8] = 1
    maps = [torch.zeros(32, 32) for _ in range(2)]
    maps[1][:8, :8] = 1
    scores = aha.evaluate(model, tmp_path, maps, "pointing_game", masks=masks, labels=None)
    both = aha.evaluate(model, [tmp_path / "a.png", tmp_path / "b.png"], maps, "pointing_game", masks=masks)
    assert [row.value for row in both.rows] == [row.value for row in scores.rows] == [1.0]
    assert scores.failures[0].image.endswith("a.png")


class Unreadable(IterableDataset):
    """A stream whose second picture of three cannot be read."""

    def __iter__(self):
        return iter([Image.new("RGB", (32, 32), "red"), b"no picture", Image.new("RGB", (32, 32), "blue")])


@pytest.mark.filterwarnings("ignore:1 measurements failed")
@pytest.mark.parametrize("targets", ["top2", "0, 3", [[1], [2, 3], [0, 4]]])
def test_maps_stay_with_their_image_when_another_cannot_be_read(model, tmp_path: Path, targets) -> None:
    for name, colour in (("a", "red"), ("c", "blue")):
        Image.new("RGB", (32, 32), colour).save(tmp_path / f"{name}.png")
    (tmp_path / "b.png").write_text("no picture")
    maps = torch.zeros(6 if isinstance(targets, str) else 5, 32, 32)
    last = maps[-2:]
    last[:, :8, :8] = 1
    mask = torch.zeros(32, 32)
    mask[:8, :8] = 1
    for images in (tmp_path, sorted(tmp_path.iterdir()), Unreadable()):
        scores = aha.evaluate(model, images, maps, "pointing_game", target=targets, masks=[1 - mask, mask, mask])
        values = [row.value for row in scores.rows if row.image not in (str(tmp_path / "a.png"), "image-0")]
        assert values == [1.0, 1.0]


@pytest.mark.parametrize("count", [3, 5, 7])
def test_another_number_of_maps_than_of_images_and_classes_is_refused(model, images, count: int) -> None:
    maps = torch.rand(count, 32, 32)
    for given in (images[:2], DataLoader(images[:2], batch_size=1)):
        with pytest.raises(MetricError, match=rf"^mine: {count} maps(, but 2 images have 4 classes| are too few)"):
            aha.evaluate(model, given, {"mine": maps}, "sparseness", target="top2")


def test_mosaics_are_judged_for_each_of_their_classes(model) -> None:
    generator = np.random.default_rng(0)
    pictures = [(Image.fromarray(generator.integers(0, 255, (20, 20, 3), dtype=np.uint8)), i % 4) for i in range(8)]
    mosaics = list(build_mosaics(model, pictures, count=2))
    scores = aha.evaluate(model, mosaics, "center_map", "grid")
    found = scores.values("center_map", "grid_pointing")
    assert len(found) == 2 * 4 and found == pytest.approx([0.25] * 8, abs=1e-3)  # the centre is nobody's cell
    with pytest.raises(MetricError, match="needs mosaics"):
        aha.evaluate(model, torch.rand(1, 3, 32, 32), "gradient", "grid")


def test_failing_metrics_are_recorded(model, images) -> None:
    with pytest.warns(AhaWarning, match="needs a label"):
        scores = aha.evaluate(model, images[0], "gradient", [QUICK, "positive(steps=2, against='label')"])
    assert scores.rows and [f.metric for f in scores.failures] == ["positive"]
    assert "needs a label" in scores.failures[0].reason


def test_constant_maps_are_defined(model, images) -> None:
    scores = aha.evaluate(model, images[0], [torch.zeros(32, 32)], "aha")
    assert not scores.failures and all(math.isfinite(row.value) for row in scores.rows)


def test_cost_counts_passes(model, images) -> None:
    aha.evaluate(model, images, "grad_cam", QUICK)  # the structure is known from here on
    scores = aha.evaluate(model, images, "integrated_gradients(steps=6)", "cost")
    found = {row.metric: row.value for row in scores.rows}
    assert found["forward_images"] == 6 and found["backward_images"] == 6 and found["seconds"] > 0


def test_every_protocol_is_written_down() -> None:
    assert {"aha", "rise", "mda", "chefer", "seg", "caap", "grid", "pic", "sanity", "quick"} <= set(PROTOCOLS)
    for name in PROTOCOLS:
        assert PROTOCOLS[name].note and load_protocols(name) == [PROTOCOLS[name]]


def test_curves_are_kept(model, images) -> None:
    scores = aha.evaluate(model, images[:2], "gradient", "quick")
    curves = scores.curves("gradient")
    assert len(curves) == 2 * 2 * 3 and len(curves[0].fractions) == 33
    by_hand = np.trapezoid(curves[0].scores, curves[0].fractions)
    assert by_hand == pytest.approx(scores.rows[0].value, abs=1e-6)
    assert len(scores.plot().axes) == 6 and scores.plot("bars").axes
    with pytest.raises(SpecError, match="unknown plot 'bar'; known: curves, bars"):
        scores.plot("bar")


def table() -> Scores:
    values = {"a": [0.1, 0.2, 0.4], "b": [0.3, 0.3, 0.9]}
    rows = [
        Row(f"{i}.png", m, "deletion", "quick", 1, "average", v) for m, vs in values.items() for i, v in enumerate(vs)
    ]
    return Scores(rows, protocols=(PROTOCOLS["quick"],), model="demo")


def test_summary_is_student_with_standard_error() -> None:
    row = next(r for r in table().summary() if r.method == "a")
    values = np.array([0.1, 0.2, 0.4])
    assert row.mean == pytest.approx(values.mean()) and row.n == 3
    assert row.standard_error == pytest.approx(stats.sem(values))
    low, high = stats.t.interval(0.95, 2, loc=values.mean(), scale=stats.sem(values))
    assert (row.low, row.high) == pytest.approx((low, high), abs=1e-4)
    assert math.isnan(summarise("a", "m", "p", "", [1.0]).standard_error)
    for freedom in (1, 2, 3, 5, 10, 100, 1000):
        assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=5e-3)


def test_figures_of_all_images_say_of_how_many() -> None:
    """Fewer images have an accuracy curve than a score curve."""
    values = {"aic": [0.5], "sic": [0.1, 0.2, 0.9]}
    rows = [Row(f"{i}.png", "a", column, "pic", 1, "", v) for column, vs in values.items() for i, v in enumerate(vs)]
    (median,) = (row for row in Scores(rows, protocols=(PROTOCOLS["pic"],)).summary() if row.metric == "sic_median")
    assert (median.mean, median.n) == (0.2, 3)


def test_files(tmp_path: Path) -> None:
    scores = table()
    scores.to_csv(tmp_path / "scores.csv")
    lines = list(csv.DictReader((tmp_path / "scores.csv").read_text().splitlines()))
    assert list(lines[0]) == ["image", "method", "metric", "protocol", "target", "reference", "value"]
    assert float(lines[2]["value"]) == 0.4 and len(lines) == 6
    scores.summary_to_csv(tmp_path / "summary.csv")
    assert (tmp_path / "summary.csv").read_text().startswith("method,metric,protocol,reference,mean")
    with pytest.raises(OutputError):
        scores.to_csv(tmp_path / "nowhere" / "scores.csv")


def test_tables_name_protocol_arrow_and_n() -> None:
    text = table().to_markdown()
    assert "protocol quick" in text and "deletion (average) ↓" in text and "| 3 |" in text and "0.233 ± 0.088" in text
    rows = [row._replace(value=value) for row, value in zip(table().rows, [-1e-3, 2e-3, -1.1e-3] * 2, strict=True)]
    assert "0.0000 ± 0.0010" in Scores(rows, protocols=(PROTOCOLS["quick"],)).to_text()  # and not -3.333e-05
    latex = table().to_latex()
    assert r"\toprule" in latex and r"$\downarrow$" in latex and r"\pm" in latex and latex.count(r"\\") == 3


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"aha-attribution\[parquet\]"):
        table().to_parquet(tmp_path / "scores.parquet")
    assert not list(tmp_path.iterdir())


def test_card_compares_whole_curves(model, images) -> None:
    found = aha.explain(model, images[:2], "gradient", card=True)
    assert len(found.cards) == 2
    card = found.cards[0]
    assert set(card.baselines) == set(card.leads) == {"random_map", "center_map", "edge_map"}
    assert card.leads["edge_map"].mean == pytest.approx(
        card.curves.ins_del - card.baselines["edge_map"].ins_del, abs=1e-5
    )
    direct = aha.evaluate(model, images[0], found.maps[:1], card.protocol)
    assert card.curves.ins_del == pytest.approx(direct.rows[-1].value, abs=1e-5)
    assert card.curves.deletion[0] == pytest.approx(float(found.scores[0]), abs=1e-5)
    assert (
        f"averages {card.curves.mean_deletion:.2f} ({card.baselines['random_map'].mean_deletion:.2f}" in card.sentence
    )


def curves_of(deletion: float, insertion: float) -> Curves:
    return Curves((0.0, 1.0), (deletion, deletion), (insertion, insertion))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (
            [0.5, 0.52, 0.48],
            "Better than random pixels (Ins-Del +0.50 ± 0.01), a blob in the centre (Ins-Del +0.40 ± 0.01) ",
        ),
        ([0.1, 0.12, 0.08], "Better than random pixels (Ins-Del +0.10 ± 0.01), but not than a blob in the centre "),
        ([0.1, -0.2, 0.3], "This map is no better than chance here: Ins-Del +0.07 ± 0.15 over random pixels. "),
        ([0.0041, 0.004, 0.0042], "This map is no better than chance here: Ins-Del +0.00 ± 0.00 over random pixels. "),
        ([-0.3, -0.31, -0.32], "This map is no better than chance here: Ins-Del -0.31 ± 0.01 over random pixels. "),
    ],
)
def test_card_is_no_louder_than_its_errors(values: list[float], says: str) -> None:
    """Ins-Del of a map for three references, beside baselines of 0, 0.1 and 0.2."""
    own = [curves_of(0.2, 0.2 + value) for value in values]
    others = {"random_map": 0.0, "center_map": 0.1, "edge_map": 0.2}
    leads = {name: lead_over(own, [curves_of(0.2, 0.2 + level)] * 3) for name, level in others.items()}
    averages = {name: curves_of(0.2, 0.2 + level) for name, level in others.items()}
    card = Card(average_curves(own), averages, leads, "ins_del", "probability")
    assert card.sentence.startswith(says)


def test_protocols_in_full_rebuild_themselves() -> None:
    for name in PROTOCOLS:
        for chosen in PROTOCOLS[name].metrics:
            assert load_metric(chosen.in_full()) == chosen
    assert "ties='random'" in PROTOCOLS["aha"].metrics[0].in_full()


def test_peak_memory_sees_a_large_tensor() -> None:
    with PeakMemory(torch.device("cpu")) as peak:
        held = torch.ones(40_000_000)  # 160 MB
        time.sleep(0.05)
    del held
    if peak.bytes is None:
        pytest.skip("this system does not tell")
    assert peak.bytes > 120e6


def test_cost_includes_memory_where_it_is_known(model, images) -> None:
    found = {row.metric for row in aha.evaluate(model, images, "gradient", "cost").rows}
    assert {"seconds", "forward_images", "backward_images"} <= found <= set(METRICS["cost"].columns)


def test_values_never_mix_protocols_or_references() -> None:
    scores = Scores(
        rows=[
            Row(image, "gradient", "deletion", protocol, 0, reference, value)
            for image, protocol, reference, value in [
                ("a", "few", "black", 0.1),
                ("b", "few", "black", 0.2),
                ("a", "many", "black", 0.3),
                ("a", "many", "blur", 0.4),
                ("a", "many", "average", 0.5),
                ("a", "apart", "black", 0.6),
                ("a", "apart", "blur", 0.7),
            ]
        ]
    )
    with pytest.raises(MetricError, match=r"deletion of gradient was measured with the protocols few, many and apart"):
        scores.values("gradient", "deletion")
    assert scores.values("gradient", "deletion", protocol="few") == [0.1, 0.2]
    assert scores.values("gradient", "deletion", protocol="many") == [0.5]  # what a metric says of all its references
    with pytest.raises(MetricError, match=r"references black and blur; say which with reference="):
        scores.values("gradient", "deletion", protocol="apart")
    assert scores.values("gradient", "deletion", "blur", "apart") == [0.7]
    assert scores.values("rise", "deletion") == []

"""`recommend`: the planted best is found, the budget holds, and nothing is computed twice, whatever happened before."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from typer.testing import CliRunner
from worlds import make_data

import aha
from aha.bench.recommendation.budget import SPENT, Account, Budget, BudgetSpent, metered, read_duration
from aha.bench.recommendation.ranking import faithfulness, own_group, ranking
from aha.bench.recommendation.recommend import LIGHTER, candidates, outlook, prepare
from aha.bench.recommendation.record import RACE, Race
from aha.bench.recommendation.result import Recommendation, recommendation
from aha.bench.recommendation.sentence import sentence
from aha.bench.recommendation.standings import Standing
from aha.cli import app
from aha.errors import DamageWarning, OutputError, SpecError
from aha.methods import METHODS
from aha.methods.base import Method
from aha.models import TargetModel, load_model
from fakes import SIZE, TinyCNN, randomised

HERE = Path(__file__).parent
_PATIENCE = 300  # seconds; a busy machine is slow, not wrong


class Corner(nn.Module):
    """Its class 0 depends on how bright the top left quarter is, and on nothing else."""

    def forward(self, x: Tensor) -> Tensor:
        bright = x[:, :, : SIZE // 2, : SIZE // 2].mean(dim=(1, 2, 3))
        return torch.stack([6 * bright, *[torch.zeros_like(bright)] * 3, -6 * bright], dim=1)  # (B, 5)


def corner_model() -> TargetModel:
    model = load_model(Corner(), input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3, fit="squash", batch_size=16)
    model.spec = "module:Corner"
    return model


@dataclass(frozen=True)
class Fake(Method):
    """The true map, blurred by noise: the more of it, the worse; `passes` images are shown to the model for nothing."""

    noise: float = 0.0
    passes: int = 1

    def __call__(self, model: TargetModel, images: Tensor, classes: Tensor) -> Tensor:
        for image in images:
            other = image + 1  # what the model makes of the image itself is known
            model.outputs(other.expand(self.passes, *image.shape))
        truth = torch.zeros(SIZE, SIZE)
        truth[: SIZE // 2, : SIZE // 2] = 1
        maps = []
        for image in images:
            seed = int(image.abs().sum() * 1000) % 2**31
            drawn = torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(seed))
            maps.append((1 - self.noise) * truth + self.noise * drawn + 1e-3 * drawn)
        return torch.stack(maps).to(images)


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Twelve methods, registered for the test; the sixth is the best, the last cannot be paid for."""
    noises = [0.95, 0.9, 0.85, 0.8, 0.75, 0.3, 0.7, 0.9, 0.95, 1.0, 0.98]
    texts = []
    for number, noise in enumerate([*noises, 0.0]):
        name = f"fake_{number}"
        passes = 1 if number < len(noises) else 10_000

        made = dataclass(frozen=True)(
            type(name, (Fake,), {"__annotations__": {"noise": float, "passes": int}, "noise": noise, "passes": passes})
        )
        made.name, made.family = name, "gradient"
        monkeypatch.setitem(METHODS._things, name, made)
        texts.append(name)
    return texts


@pytest.fixture
def photos(tmp_path: Path) -> str:
    return f"csv:{make_data(tmp_path / 'photos', 24) / 'list.csv'}"


def test_the_planted_best_is_found_for_less_than_the_budget(fakes: list[str], photos: str, tmp_path: Path) -> None:
    model, budget = corner_model(), 9000
    model.outputs(torch.zeros(1, 3, SIZE, SIZE))  # how many classes it has
    before = sum(model.passes.values())
    found = aha.recommend(model, photos, passes=budget, methods=fakes, target="0", out=tmp_path / "race")
    spent = sum(model.passes.values()) - before
    assert found.method == "fake_5"
    assert found.confidence > 0.95
    assert 0 < spent <= budget
    assert Account(tmp_path / "race").passes == spent
    assert "fake_11" in found.left and "budget" in found.left["fake_11"]
    assert found.sentence.startswith("Use fake_5: fake_")
    assert max(s.n for s in found.standings) > min(s.n for s in found.standings), "all were judged alike: no race"
    assert found.standings[0].n == max(s.n for s in found.standings)
    assert 'aha.explain(model, "PICTURE.jpg", "fake_5", target=0)' in found.to_markdown()
    page = found.page.read_text()
    assert found.sentence in page
    assert "Where the best methods disagree" in page and "data:image/" in page
    assert found.report.is_file()


def test_a_second_time_computes_nothing_and_a_larger_budget_goes_on(
    fakes: list[str], photos: str, tmp_path: Path
) -> None:
    model, out = corner_model(), tmp_path / "race"
    options = {"methods": fakes[:6], "target": "0", "out": out}
    first = aha.recommend(model, photos, passes=1800, **options)  # type: ignore[arg-type]
    files = {p: p.read_bytes() for p in (out / "rows").iterdir()}
    before = sum(model.passes.values())
    again = aha.recommend(model, photos, passes=1800, **options)  # type: ignore[arg-type]
    assert sum(model.passes.values()) == before
    assert again.as_dict() == first.as_dict()
    assert {p: p.read_bytes() for p in (out / "rows").iterdir()} == files
    more = aha.recommend(model, photos, passes=4000, **options)  # type: ignore[arg-type]
    assert sum(model.passes.values()) > before
    assert Account(out).passes <= 4000
    assert max(s.n for s in more.standings) > max(s.n for s in first.standings)
    with pytest.raises(OutputError, match="a different target"):
        aha.recommend(model, photos, passes=1800, methods=fakes[:6], target="1", out=out)


def test_one_more_method_joins_a_race_that_keeps_its_rows(fakes: list[str], photos: str, tmp_path: Path) -> None:
    model, out = corner_model(), tmp_path / "race"
    aha.recommend(model, photos, passes=1500, methods=fakes[:3], target="0", out=out)
    kept = (out / "rows" / "0000.jsonl").read_bytes()
    found = aha.recommend(model, photos, passes=5000, methods=[*fakes[:3], "fake_5"], target="0", out=out)
    assert found.method == "fake_5"
    assert (out / "rows" / "0000.jsonl").read_bytes().startswith(kept)


@pytest.mark.parametrize("budget", [720, 800, 1000])
def test_no_budget_is_overrun(fakes: list[str], photos: str, tmp_path: Path, budget: int) -> None:
    model, out = corner_model(), tmp_path / "race"
    model.outputs(torch.zeros(1, 3, SIZE, SIZE))  # how many classes it has
    before = sum(model.passes.values())
    aha.recommend(model, photos, passes=budget, methods=[*fakes[:3], "fake_11"], target="0", out=out)
    assert 0.3 * budget < sum(model.passes.values()) - before <= budget
    assert Account(out).passes <= budget


class Counted(TinyCNN):
    """Counts the images that it sees, and its copies too."""

    seen = 0

    def forward(self, x: Tensor) -> Tensor:
        Counted.seen += len(x)
        return super().forward(x)


def test_randomised_copies_of_the_model_are_paid_for(photos: str, tmp_path: Path) -> None:
    model = load_model(randomised(Counted()), input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3, fit="squash")
    model.structure((3, SIZE, SIZE))  # what is tried out once is nobody's cost
    Counted.seen, budget = 0, 3000
    aha.recommend(model, photos, passes=budget, methods=["rise(n=200)", "random_map"], out=tmp_path / "race")
    paid = Account(tmp_path / "race").passes
    assert 0.5 * budget < paid <= budget
    assert Counted.seen <= paid + 8


def test_what_was_too_expensive_wins_where_there_is_more_to_spend(
    fakes: list[str], photos: str, tmp_path: Path
) -> None:
    model, out, best = corner_model(), tmp_path / "race", "fake_11(passes=600)"
    options = {"methods": [*fakes[:3], best], "target": "0", "out": out}
    small = aha.recommend(model, photos, passes=1200, **options)  # type: ignore[arg-type]
    assert "share of the budget" in small.left[best]
    large = aha.recommend(model, photos, passes=40_000, **options)  # type: ignore[arg-type]
    alone = aha.recommend(model, photos, passes=40_000, **(options | {"out": tmp_path / "alone"}))  # type: ignore[arg-type]
    assert large.method == alone.method == best
    assert large.standings[0].n == alone.standings[0].n > 2 and large.confidence > 0.95
    assert Account(out).passes <= 40_000


def test_pictures_that_have_changed_are_scored_anew(fakes: list[str], photos: str, tmp_path: Path) -> None:
    model, out = corner_model(), tmp_path / "race"
    options = {"methods": fakes[:4], "target": "0", "out": out}
    aha.recommend(model, photos, passes=1500, **options)  # type: ignore[arg-type]
    for file in (tmp_path / "photos").glob("*.png"):
        Image.open(file).transpose(Image.Transpose.FLIP_TOP_BOTTOM).save(file)
    with pytest.raises(SpecError, match=r"were already spent in .* altogether"):
        aha.recommend(model, photos, passes=1200, **options)  # type: ignore[arg-type]
    spent = Account(out).passes
    found = aha.recommend(model, photos, passes=spent + 2000, **options)  # type: ignore[arg-type]
    alone = aha.recommend(model, photos, passes=9000, **(options | {"out": tmp_path / "alone"}))  # type: ignore[arg-type]
    race = Race.read(out)
    assert race is not None
    ours, theirs = (
        faithfulness(own_group(place, read)) for place, read in ((out, race), (tmp_path / "alone", _race(alone)))
    )
    for method, values in ours.items():
        assert values and all(
            theirs[method][image] == value for image, value in values.items() if image in theirs[method]
        )
    assert found.method == alone.method


def _race(found: Recommendation) -> Race:
    race = Race.read(found.folder)
    assert race is not None
    return race


def test_luck_with_few_images_wins_nothing() -> None:
    """C left after two images on which everybody did well; leads are taken over B, which has most images."""
    values = {
        "B": {(str(i), 0): 0.1 for i in range(16)},
        "A": {(str(i), 0): 0.3 if i < 2 else 0.12 for i in range(15)},
        "C": {(str(i), 0): 0.29 for i in range(2)},
    }
    assert ranking(values, ["B", "C", "A"]) == ["A", "B", "C"]


def test_a_method_that_does_not_fit_is_named(fakes: list[str], photos: str, tmp_path: Path) -> None:
    found = aha.recommend(
        corner_model(), photos, passes=1500, methods=[*fakes[:2], "legrad"], target="0", out=tmp_path / "race"
    )
    assert "attention" in found.left["legrad"] and "legrad" in found.to_markdown()
    with pytest.raises(SpecError, match="at least two methods that fit"):
        aha.recommend(corner_model(), photos, passes=1500, methods=["fake_0", "legrad"], out=tmp_path / "other")


def test_where_all_fail_the_reasons_are_told(photos: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Tensor:
        raise RuntimeError("out of luck")

    for name in ("center_map", "edge_map"):
        monkeypatch.setattr(METHODS[name], "__call__", fail)
    with pytest.raises(OutputError, match="out of luck"):
        aha.recommend(
            corner_model(), photos, passes=1500, methods=["center_map", "edge_map"], target="0", out=tmp_path / "race"
        )


def test_a_hopeless_budget_is_refused_before_anything_is_spent(fakes: list[str], photos: str, tmp_path: Path) -> None:
    racing = prepare(corner_model(), photos, passes=300, methods=fakes, target="0", out=tmp_path / "race")
    with pytest.raises(SpecError, match=r"at least 331 passes for 2 methods, 1,984 passes for all 12"):
        racing.run()
    short = prepare(corner_model(), photos, budget=1e-6, methods=fakes, target="0", out=tmp_path / "race")
    with pytest.raises(SpecError, match=r"too small for a race: allow at least \d+ s for 2 methods, \d+ s for all 12"):
        short.run()
    assert not (tmp_path / "race").exists()


def test_a_small_budget_recommends_among_what_it_pays_for(fakes: list[str], photos: str, tmp_path: Path) -> None:
    """A budget for half of the methods: each got a share that was enough for none."""
    costly = "rise(n=400)"
    options = {"methods": [costly, *fakes[:8]], "target": "0", "out": tmp_path / "race"}
    found = aha.recommend(corner_model(), photos, passes=1200, **options)  # type: ignore[arg-type]
    assert found.method is not None and found.call
    assert costly in found.left, "cheap methods come first"
    assert 2 <= len(found.standings) < 9 and len(set(found.left.values())) == 1
    told = found.to_markdown()
    assert told.count("not tried: the budget covered") == 1, "a reason is told once"
    assert "nan" not in told and "passes would cover all" in told
    assert Account(tmp_path / "race").passes <= 1200


def test_a_time_that_passes_overrun_leaves_methods_out_and_still_recommends(
    fakes: list[str], photos: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model seemed a hundred times as fast as it is: what was tried until then is compared."""
    racing = prepare(corner_model(), photos, budget=30, methods=fakes[:8], target="0", out=tmp_path / "race")
    monkeypatch.setitem(racing.__dict__, "pace", 1e-6)
    racing.race.costs["fake_0"] = [1.0, 0.04, 1.0]  # 124 passes of a method: 5 s
    racing.run()
    found = recommendation(tmp_path / "race")
    assert found.method in fakes[:8] and 2 <= len(found.standings) < 8


def test_every_candidate_in_its_lighter_form_can_be_computed(tmp_path: Path) -> None:
    """`kernel_shap(n=300)` had fewer coalitions than its parts need, and failed on every picture."""
    model = load_model(randomised(TinyCNN()), input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3, fit="squash")
    inputs = torch.rand(1, 3, SIZE, SIZE)
    for text in set(candidates(model)) & set(LIGHTER.values()):
        assert aha.explain(model, inputs, text).maps.isfinite().all(), text


def test_columns_are_explained_and_one_image_has_no_interval() -> None:
    best = Standing("rise", 1, 0.5, math.nan, math.nan, 1, math.nan, math.nan, math.nan, 1.0, 500, {"class": 0.1})
    next_ = Standing("lrp", 1, 0.4, math.nan, math.nan, 1, -0.1, math.nan, math.nan, 0.1, 2, {"stability": 0.9})
    found = Recommendation("m", [best, next_], {}, {}, sentence([best, next_]), Path())
    heads, rows = found.table()
    assert heads == [
        *("method", "Ins-Del ↑", "behind the best ↓", "n", "class ↓", "stability ↑", "seconds ↓", "passes ↓"),
    ]
    assert set(found.legend) == set(heads[1:]) and all(found.legend.values())
    assert "nan" not in found.to_markdown()
    assert rows[1][2] == "0.100 ?" and "(0.100 behind)" in found.sentence, "one sign in sentence and table"


def test_slow_methods_are_out_where_maps_must_be_fast(fakes: list[str], photos: str, tmp_path: Path) -> None:
    found = aha.recommend(
        corner_model(), photos, passes=1500, methods=fakes[:4], target="0", out=tmp_path / "race", must_be_below=1e-9
    )
    race = Race.read(tmp_path / "race")
    assert race is not None and set(race.out) == set(fakes[:4])
    assert all("more than" in why for why in race.out.values())
    assert all(standing.out for standing in found.standings)
    assert found.sentence.startswith("No method is left")
    assert found.method is None and found.call == "" and "Ruled out:\n- a map takes" in found.to_markdown()
    other = aha.recommend(corner_model(), photos, passes=1500, methods=fakes[:4], target="0", out=tmp_path / "race")
    assert other.sentence.startswith("Use "), "without the limit they are back"


def test_a_race_survives_being_killed(photos: str, tmp_path: Path) -> None:
    """Killed for good, in a process of its own; what was paid for stays paid."""
    script = textwrap.dedent(
        f"""
        import sys
        sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]
        from worlds import tiny_model
        import aha
        options = dict(methods=["gradient", "random_map", "center_map"], out={str(tmp_path / "race")!r})
        found = aha.recommend(tiny_model(), {photos!r}, passes=900, **options)
        print(found.method)
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    rows = tmp_path / "race" / "rows" / "0000.jsonl"
    process = subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.DEVNULL)
    end = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < end:
        if rows.is_file() and rows.read_bytes().count(b"\n") >= 3:
            process.send_signal(signal.SIGKILL)
        time.sleep(0.005)
    assert process.wait() == -signal.SIGKILL
    paid = Account(tmp_path / "race").passes
    assert 0 < paid <= 900
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("gradient", "random_map", "center_map")
    assert paid <= Account(tmp_path / "race").passes <= 900
    race = Race.read(tmp_path / "race")
    assert race is not None and race.finished is not None


# Parts


def test_a_metered_model_stops_before_it_spends_too_much(tmp_path: Path) -> None:
    model, account = corner_model(), Account(tmp_path)
    inputs = torch.zeros(4, 3, SIZE, SIZE)
    with metered(account, passes=10, seconds=1e9):
        model.outputs(inputs)
        model.outputs(inputs)
        with pytest.raises(BudgetSpent):
            model.outputs(inputs)
    assert model.passes["forward"] == 8 and account.passes == 8
    assert Account(tmp_path).passes == 8
    model.outputs(inputs)
    assert account.passes == 8, "what is done outside is not counted"
    with metered(account, passes=100, seconds=0), pytest.raises(BudgetSpent):
        model.outputs(inputs)


def test_a_damaged_account_is_refused(tmp_path: Path) -> None:
    Account(tmp_path).note(123, 4.5)
    whole = (tmp_path / SPENT).read_bytes()
    for damaged in (whole.replace(b"123", b"122"), whole[:-1], b""):
        (tmp_path / SPENT).write_bytes(damaged)
        with pytest.raises(OutputError, match="spent budget is unknown"):
            Account(tmp_path)


def test_times_are_read() -> None:
    assert [read_duration(text) for text in ("30min", "90 s", "1.5h", "100ms")] == [1800, 90, 5400, 0.1]
    for text in ("soon", "10", "-3s", "0s"):
        with pytest.raises(SpecError, match="not a time"):
            read_duration(text)
    with pytest.raises(SpecError, match="give a budget"):
        Budget()
    assert Budget(passes=10).covers(Budget(passes=10)) and not Budget(passes=10).covers(Budget(passes=11))
    assert not Budget(passes=10).covers(Budget(seconds=5.0))


def test_all_methods_that_fit_race_but_the_oracle(tmp_path: Path) -> None:
    texts = candidates(corner_model())
    assert "random_map" in texts and "rise(n=500)" in texts
    assert not any(text.startswith(("search", "smooth", "var", "aha")) for text in texts)
    for text in texts:
        aha.load_method(text)


def test_a_dry_run_says_the_cost_and_writes_nothing(photos: str, tmp_path: Path) -> None:
    racing = prepare(corner_model(), photos, passes=5000, methods=["gradient", "random_map"], out=tmp_path / "race")
    cost = outlook(racing)
    assert (cost.methods, cost.images, cost.spent, cost.is_finished) == (2, 24, 0, False)
    assert cost.first_passes == 2 * 2 * (60 + 2)
    assert not (tmp_path / "race").exists()


def test_what_is_no_race_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="not the folder of a race"):
        recommendation(tmp_path)
    (tmp_path / RACE).write_text("{}")
    with pytest.warns(DamageWarning, match="damaged"), pytest.raises(OutputError, match="not the folder of a race"):
        recommendation(tmp_path)
    with pytest.raises(SpecError, match="at least two"):
        prepare(corner_model(), str(tmp_path), passes=10, methods=["gradient"])


def test_the_command(photos: str, tmp_path: Path) -> None:
    command = ["recommend", "--model", "timm:test_resnet", "--no-pretrained", "--input-size", "64", "--data", photos]
    command += ["--method", "grad_cam", "--method", "random_map", "--limit", "3", "--passes", "700"]
    command += ["--out", str(tmp_path / "race"), "--device", "cpu"]
    dry = CliRunner().invoke(app, [*command, "--dry-run"])
    assert dry.exit_code == 0 and "2 methods, 3 images; at most 700 passes" in dry.stdout
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["method"] in ("grad_cam", "random_map") and answer["call"].startswith("aha.explain(")
    assert "finished: nothing to compute" in CliRunner().invoke(app, [*command, "--dry-run"]).stdout
    if find_spec("onnxruntime") and find_spec("onnx"):
        fast = [*command, "--out", str(tmp_path / "fast"), "--engine", "onnxruntime", "--json"]
        told = CliRunner().invoke(app, fast)
        assert told.exit_code == 0, told.output
        assert "engine='onnxruntime'" in json.loads(told.stdout)["call"]
        assert Account(tmp_path / "fast").passes <= 700
    bad = CliRunner().invoke(app, [*command[:-1], "cpu", "--budget", "soon"])
    assert bad.exit_code == 1 and "not a time" in bad.output

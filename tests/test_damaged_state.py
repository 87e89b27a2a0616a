"""State files of every kind, damaged at random: repaired, or refused in one line; never other numbers."""

from __future__ import annotations

import json
import math
import random
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from aha.auditing.run import audit
from aha.bench.plan import Plan
from aha.bench.recommendation.recommend import recommend
from aha.bench.recommendation.record import Race
from aha.bench.runner import BenchRun
from aha.bench.store import read_cells, read_map
from aha.data.datasets import find_data
from aha.errors import AhaError, DamageWarning
from aha.explain_folder import FileRun
from aha.interop.shards import WriteShards, begin
from aha.learned.settings import load_settings
from aha.learned.training.loop import train
from aha.methods import load_method
from aha.models import TargetModel, load_model
from aha.results.saved_maps import find_maps
from aha.web.cache import Cache, Gone
from fakes import SIZE, TinyCNN, randomised
from mutations import damage

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

KEY = "0123456789abcdef" * 2


@dataclass(frozen=True)
class State:
    """A folder that something can be continued from.

    Attributes:
        folder: as a finished run left it.
        files: its state, as patterns.
        again: continues the run in a folder and gives all that it then says.
    """

    folder: Path
    files: tuple[str, ...]
    again: Callable[[Path], Any]


@pytest.fixture(scope="module")
def model() -> TargetModel:
    module = randomised(TinyCNN()).eval()
    return load_model(module, input_size=SIZE, mean=[0.5] * 3, std=[0.5] * 3, fit="squash", batch_size=8, device="cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for index in range(3):
        pixels = np.random.default_rng(index).integers(0, 255, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    (folder / "list.csv").write_text("file,label\n" + "".join(f"{index}.png,{index}\n" for index in range(3)))
    return folder


def explained(model: TargetModel, photos: Path, out: Path) -> dict[Any, Any]:
    images = find_data((str(photos / "list.csv"),), model)
    FileRun(model, images, [load_method("gradient"), load_method("center_map")], "top1", out).run(2)
    items = json.loads((out / "manifest.json").read_text())["items"]
    maps = {
        (saved.image, saved.method, saved.target): saved.read().tolist()
        for saved in find_maps(out, list(photos.glob("*.png")))
    }
    listed = {(Path(i["image"]), i["method"], i["target"]): (i["label"], i["score"]) for i in items}
    assert listed.keys() == maps.keys()
    return {place: (maps[place], listed[place]) for place in maps}


def measured(model: TargetModel, photos: Path, out: Path) -> dict[Any, Any]:
    plan = Plan(
        "m", str(photos / "list.csv"), ("gradient", "random_map"), ("sparseness",), ("top1", "label"), maps="float32"
    )
    BenchRun(plan, out, model=model).run()
    return {
        (c["asked"], c["method"], c["image"]): (
            c["label"],
            c["failures"],
            [(f["target"], f["score"], f["rows"], read_map(out, f["map"]).tolist()) for f in c["found"]],
        )
        for c in read_cells(out)
    }


def raced(model: TargetModel, photos: Path, out: Path) -> Any:
    found = recommend(model, photos / "list.csv", passes=100_000, methods=["gradient", "random_map"], out=out)
    race = Race.read(out)
    assert race is not None
    return race.rounds, race.out, [(s.method, s.n, s.mean, dict(s.checks)) for s in found.standings]


def audited(model: TargetModel, photos: Path, out: Path) -> Any:
    found = audit(model, f"csv:{photos / 'list.csv'}", "gradient", against="center_map", out=out, steps=2)
    said = found.as_dict()
    return said["parts"], said["leads"], said["failures"]


def sharded(model: TargetModel, photos: Path, out: Path) -> Any:
    """As `aha explain --shards` does it, with a model that has no name."""
    begin(out, {"methods": ["gradient"], "seed": 0})
    files = sorted(photos.glob("*.png"))
    write = WriteShards(model, ["gradient"], "top1", out, maps="float32")
    for part in (files[:2], files[2:]):
        write({"key": [file.name for file in part], "path": [str(file) for file in part]})
    rows = [row for shard in sorted(out.glob("*.parquet")) for row in pyarrow.parquet.read_table(shard).to_pylist()]
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: (row["target"], row["score"], row["map"]) for row in rows}


def trained(model: TargetModel, photos: Path, out: Path) -> Any:
    chosen = load_settings("smoke", ["steps=2", "width=16", "perturbations=2", "batch_size=2", "save_every=1"])
    found = train(model, photos / "list.csv", out, settings=chosen, resume=(out / "run.json").exists())
    return found.digest


def kept(out: Path) -> Any:
    store = Cache(out)
    record = store.find("results", KEY)
    if record is None:  # counts as never made, and is made again
        store.put("results", KEY, {"kind": "map", "score": 0.25}, {"npz": _packed()})
        record = store.find("results", KEY)
    try:
        return record, store.array(KEY, "values").tolist()
    except Gone:
        assert store.find("results", KEY) is None, "it would never be made again"
        return kept(out)


def _packed() -> bytes:
    import io

    buffer = io.BytesIO()
    np.savez(buffer, values=np.arange(6.0))
    return buffer.getvalue()


@pytest.fixture(scope="module")
def states(model: TargetModel, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[State, Any]]:
    place = tmp_path_factory.mktemp("states")
    made = {
        "explain": State(
            place / "explain",
            ("journal.jsonl", "manifest.json", "*/*.npz"),
            lambda out: explained(model, photos, out),
        ),
        "bench": State(
            place / "bench", ("rows/*.jsonl", "plans.jsonl", "maps/*.bin"), lambda out: measured(model, photos, out)
        ),
        "recommend": State(
            place / "recommend",
            ("race.json", "spent.json", "plans.jsonl", "rows/*.jsonl"),
            lambda out: raced(model, photos, out),
        ),
        "audit": State(
            place / "audit",
            (
                "audit-settings.json",
                "thresholds.toml",
                "against.json",
                "plans.jsonl",
                *("rows/*.jsonl", "maps/*.bin", "against/rows/*.jsonl", "against/maps/*.bin"),
            ),
            lambda out: audited(model, photos, out),
        ),
        "shards": State(place / "shards", ("shards.json", "*.parquet"), lambda out: sharded(model, photos, out)),
        "train": State(
            place / "train", ("run.json", "state.pt", "metrics.jsonl"), lambda out: trained(model, photos, out)
        ),
        "explorer": State(place / "explorer", ("results/*",), kept),
    }
    return {name: (state, state.again(state.folder)) for name, state in made.items()}


def same(found: Any, expected: Any) -> bool:
    """Equal, as far as an image computed alone equals one computed in a batch."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[name], value) for name, value in expected.items())
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-7)
    return bool(found == expected)


def survives(states: dict[str, tuple[State, Any]], name: str, seeds: range, tmp_path: Path) -> tuple[int, int]:
    """Damages a state again and again; counts what was repaired and what was refused."""
    state, expected = states[name]
    repaired = refused = 0
    for seed in seeds:
        chance, out = random.Random(seed), tmp_path / str(seed)
        shutil.copytree(state.folder, out)
        file = chance.choice(sorted(path for pattern in state.files for path in out.glob(pattern)))
        how = damage(file, chance)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamageWarning)
            try:
                assert same(state.again(out), expected), how
                assert same(state.again(out), expected), f"{how}, the second time"
                repaired += 1
            except AhaError as error:
                assert "\n" not in str(error) and len(str(error)) < 500, how
                refused += 1
        assert not list(out.rglob("*.partial"))
        shutil.rmtree(out)
    return repaired, refused


# Of 1000; a race is expensive, since it ends with a page and a report.
SHARES = {"explain": 200, "bench": 200, "recommend": 80, "audit": 80, "shards": 200, "train": 120, "explorer": 200}


@pytest.mark.parametrize("name", SHARES)
def test_a_sample_of_damage(name: str, states: dict[str, tuple[State, Any]], tmp_path: Path) -> None:
    count = SHARES[name] // 20
    repaired, refused = survives(states, name, range(count), tmp_path)
    assert repaired + refused == count and repaired > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARES)
def test_a_thousand_damages(name: str, states: dict[str, tuple[State, Any]], tmp_path: Path) -> None:
    repaired, refused = survives(states, name, range(1000, 1000 + SHARES[name]), tmp_path)
    assert repaired + refused == SHARES[name]
    if name not in ("train", "recommend", "audit"):  # what can be computed again is never refused
        assert refused == 0

"""Texts of a two-tower model on the command line: every command that takes a model takes them alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command_line import pictures, run
from two_towers import tiny_processor, tiny_siglip

TEXTS = ("a cat; asleep", "a dog on grass", "two cars")  # the first cannot be said in brackets
SAID = tuple(word for text in TEXTS for word in ("--text", text))
FAST = ("--metrics", "ins_del(steps=2, references=(black,))")


@pytest.fixture
def model(tmp_path: Path) -> str:
    place = tmp_path / "siglip"
    tiny_siglip().save_pretrained(place)
    tiny_processor().save_pretrained(place)
    return f"clip:{place}"


@pytest.mark.parametrize("command", ["evaluate", "bench"])
def test_texts_are_measured_as_they_are_explained(command: str, model: str, tmp_path: Path) -> None:
    folder, out = pictures(tmp_path / "in", 1), tmp_path / "out"
    images = (folder,) if command == "evaluate" else ("--data", folder)
    done = run(command, *images, "--model", model, *SAID, *FAST, "--method", "legrad", "--out", out)
    assert done.exit_code == 0, done.output
    (plan,) = (json.loads(line) for line in (out / "plans.jsonl").read_text().splitlines())
    assert plan["classes"] == list(TEXTS) and plan["score"] == "sigmoid"


def test_a_plan_holds_texts(model: str, tmp_path: Path) -> None:
    folder, plan = pictures(tmp_path / "in", 1), tmp_path / "plan.toml"
    plan.write_text(f'model = "{model}"\ntexts = {json.dumps(TEXTS)}\ndata = "{folder}"\nmethods = ["legrad"]\n')
    done = run("bench", plan, *FAST, "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["model"] == f"{model}[{'; '.join(TEXTS)}]"


def test_shards_take_texts(model: str, tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    folder, out = pictures(tmp_path / "in", 2), tmp_path / "out"
    asked = ("--method", "legrad", "--target", TEXTS[0], "--shards", "parquet", "--out", out)
    done = run("explain", folder, "--model", model, *SAID, *asked)
    assert done.exit_code == 0, done.output
    rows = [row for shard in out.glob("*.parquet") for row in pq.read_table(shard).to_pylist()]
    assert [row["label"] for row in rows] == [TEXTS[0]] * 2

"""What the explorer answers equals what the library computes."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import MODEL, REFERENCES, asked, make_bench, make_client, png, upload
from PIL import Image
from starlette.testclient import TestClient

import aha
from aha.bench import Plan, run
from aha.metrics import Case, Sample
from aha.metrics.curves.ins_del import InsDel
from aha.models import TargetModel
from aha.perturb.perturbation import deletion_masks, rank_pixels
from aha.perturb.references import Black, Blur
from aha.web.runs import read_runs
from aha.web.workbench import Workbench


def values(client: TestClient, key: str, record: dict[str, Any]) -> np.ndarray[Any, Any]:
    content = client.get(f"/api/results/{key}/values").content
    return np.frombuffer(content, "<f2").reshape(record["height"], record["width"]) * record["unit"]


def test_about_names_models_methods_and_examples(client: TestClient) -> None:
    about = client.get("/api/about").json()
    (model,) = about["models"]
    assert model["name"] == MODEL
    texts = [method["text"] for method in model["methods"]]
    assert "grad_cam" in texts
    assert "aha" not in texts  # served without its explainers
    assert set(model["suggested"]) <= {"grad_cam", "integrated_gradients(steps=20)", "smooth(gradient)"}
    assert about["examples"] == ["example 100", "example 101"]
    assert [run["model"] for run in about["runs"]] == [MODEL]


def test_classes_are_the_models_own(client: TestClient, picture: str, loaded: TargetModel) -> None:
    found = asked(client, "/api/classes", picture=picture, model=MODEL)["classes"]
    image = Image.open(io.BytesIO(png(1)))
    inputs, _ = loaded.stated_preprocessing()(image)
    probabilities = loaded.outputs(inputs[None]).softmax(dim=1)[0]
    best = probabilities.topk(10)
    assert [one["index"] for one in found] == best.indices.tolist()
    np.testing.assert_allclose([one["score"] for one in found], best.values.tolist(), rtol=1e-4)


def test_a_map_is_what_explain_gives(client: TestClient, shown_map: dict[str, Any], loaded: TargetModel) -> None:
    expected = aha.explain(loaded, Image.open(io.BytesIO(png(1))), "grad_cam", 3).maps[0].numpy()
    found = values(client, shown_map["key"], shown_map)
    np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(expected).max())
    assert shown_map["unit"] == pytest.approx(np.abs(expected).max())


def test_ranks_are_the_order_of_the_curves(client: TestClient, shown_map: dict[str, Any], bench: Workbench) -> None:
    content = client.get(f"/api/results/{shown_map['key']}/ranks").content
    ranks = np.frombuffer(content, "<u4").reshape(shown_map["height"], shown_map["width"])
    exact = torch.from_numpy(bench.store.array(shown_map["key"], "values"))
    assert np.array_equal(ranks, rank_pixels(exact, seed=0).numpy())
    half = ranks.size // 2
    assert np.array_equal(ranks >= half, deletion_masks(rank_pixels(exact), torch.tensor([half]))[0].numpy())


def test_curves_are_those_of_the_metric(client: TestClient, shown_map: dict[str, Any], loaded: TargetModel) -> None:
    found = asked(client, "/api/curves", map=shown_map["key"], references=REFERENCES, steps=5)["references"]
    assert set(found) == {"black", "blur", "average"}
    image = Image.open(io.BytesIO(png(1)))
    inputs, _ = loaded.stated_preprocessing()(image)
    maps = aha.explain(loaded, image, "grad_cam", 3).maps
    case = Case(Sample(loaded, "a", inputs), 3, maps[0])
    scores = {v.reference: v.value for v in InsDel(steps=5, references=(Black(), Blur()))(case)}
    for name, score in scores.items():
        assert found[name]["ins_del"] == pytest.approx(score, abs=1e-6)
        assert found[name]["fractions"] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1], abs=1e-3)
        assert found[name]["deletion"][0] == pytest.approx(found[name]["insertion"][-1], abs=1e-6)


def test_contrast_shares_sum_to_one(client: TestClient, picture: str) -> None:
    found = asked(client, "/api/contrasts", picture=picture, model=MODEL, method="grad_cam", classes=[3, 7, 9])
    assert [one["index"] for one in found["classes"]] == [3, 7, 9]
    assert len({tuple(colour) for colour in found["colours"]}) == 3
    key = client.post(
        "/api/contrasts", json={"picture": picture, "model": MODEL, "method": "grad_cam", "classes": [3, 7, 9]}
    ).json()["key"]
    shape = (3, found["height"], found["width"])
    shares = np.frombuffer(client.get(f"/api/results/{key}/shares").content, "<f2").reshape(shape).astype(float)
    np.testing.assert_allclose(shares.sum(axis=0), 1, atol=3e-3)
    won = np.frombuffer(client.get(f"/api/results/{key}/won").content, "<f2").reshape(shape)
    assert not won[shares < 1 / 3 - 0.01].any()  # only places that a class wins are its own


def test_the_model_view_is_the_models_input(client: TestClient, picture: str, loaded: TargetModel) -> None:
    answer = client.get(f"/api/pictures/{picture}/input?model={MODEL}")
    assert "immutable" not in answer.headers.get("cache-control", ""), "another session may call another model so"
    shown = np.asarray(Image.open(io.BytesIO(answer.content)))
    inputs, _ = loaded.stated_preprocessing()(Image.open(io.BytesIO(png(1))))
    expected = loaded.to_pixels(inputs).clamp(0, 1).permute(1, 2, 0).numpy() * 255
    np.testing.assert_allclose(shown, expected, atol=1)


@pytest.mark.parametrize(("reference", "colour"), [("black", 0), ("white", 255)])
def test_reference_pictures(client: TestClient, picture: str, reference: str, colour: int) -> None:
    answer = client.get(f"/api/pictures/{picture}/reference?model={MODEL}&reference={reference}")
    assert (np.asarray(Image.open(io.BytesIO(answer.content))) == colour).all()


def test_classes_are_found_by_name_and_number(client: TestClient) -> None:
    by_name = client.get(f"/api/classes?model={MODEL}&search=tabby").json()["classes"]
    assert 281 in [one["index"] for one in by_name]
    by_number = client.get(f"/api/classes?model={MODEL}&search=281").json()["classes"]
    assert by_number == [{"index": 281, "label": by_name[0]["label"]}]
    assert client.get(f"/api/classes?model={MODEL}&search=nothing-like-it").json()["classes"] == []
    cats = [one["label"] for one in client.get(f"/api/classes?model={MODEL}&search=cat").json()["classes"]]
    assert cats[:2] == ["tabby", "tiger cat"] and cats.index("Egyptian cat") < cats.index("catamaran")


def test_colour_maps_have_256_colours(client: TestClient) -> None:
    assert len(client.get("/api/colours/inferno").content) == 768
    assert client.get("/api/colours/jet").status_code == 404


def test_the_bundle_holds_raw_maps_and_its_snippet_repeats_them(
    client: TestClient, shown_map: dict[str, Any], loaded: TargetModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = client.get(f"/api/bundle?maps={shown_map['key']}").content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(tmp_path)
    (item,) = json.loads((tmp_path / "manifest.json").read_text())["items"]
    assert (item["method"], item["target"]) == ("grad_cam", 3)
    raw = np.load(tmp_path / item["map"])["model_map"]
    monkeypatch.chdir(tmp_path)
    code = (tmp_path / "reproduce.py").read_text()
    assert code == client.get(f"/api/snippet?maps={shown_map['key']}").text
    exec(compile(code, "reproduce.py", "exec"), {})
    again = json.loads((tmp_path / "explained" / "manifest.json").read_text())["items"][0]
    np.testing.assert_allclose(np.load(tmp_path / "explained" / again["map"])["model_map"], raw, atol=1e-6)


def test_sessions_bring_pictures_and_view_back(client: TestClient, picture: str) -> None:
    view = {"methods": ["grad_cam"], "share": 0.3}
    key = client.post("/api/sessions", json={"pictures": [picture], "view": view}).json()["key"]
    found = client.get(f"/api/sessions/{key}").json()
    assert found["view"] == view
    assert [one["key"] for one in found["pictures"]] == [picture]


def test_examples_open_as_pictures(client: TestClient, gallery: Path) -> None:
    assert client.get("/api/examples/1/thumbnail").headers["content-type"] == "image/jpeg"
    record = client.post("/api/examples/1").json()
    assert (record["name"], record["width"], record["height"]) == ("example_101.png", 48, 40)
    assert record["key"] == upload(client, (gallery / "example_101.png").read_bytes())


def test_a_run_shows_its_table_and_its_outlier(client: TestClient) -> None:
    overview = client.get("/api/runs/0").json()
    assert overview["methods"] == ["grad_cam"]
    (row,) = overview["summary"]
    assert (row["metric"], row["arrow"], row["n"]) == ("ins_del", "↑", 12)
    images = client.get("/api/runs/0/images?method=grad_cam&metric=ins_del").json()["images"]
    assert [one["outlier"] for one in images] == [True] + [False] * 11
    opened = client.post("/api/runs/0/images", json={"image": images[0]["image"]})
    assert opened.status_code == 201
    assert opened.json()["name"] == "example_100.png"


def test_a_run_opens_the_pictures_it_lists_and_nothing_else(client: TestClient) -> None:
    answer = client.post("/api/runs/0/images", json={"image": "/etc/hostname"})
    assert answer.status_code == 422
    assert "not a picture" in answer.json()["error"]
    unlisted = client.post("/api/runs/0/images", json={"image": "/etc/passwd"})
    assert "lists no image" in unlisted.json()["error"]


def test_a_run_opens_from_any_folder(
    loaded: TargetModel, gallery: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names in a run are relative to where it was made, and its pictures need not be offered otherwise."""
    place = tmp_path / "made here"
    (place / "photos").mkdir(parents=True)
    (place / "photos/a.png").write_bytes(png(5))
    monkeypatch.chdir(place)
    plan = Plan(model=MODEL, data=("photos",), methods=("center_map",), metrics=("ins_del(steps=2)",))
    run(plan, place / "run", model=loaded)
    monkeypatch.chdir("/")
    bench = make_bench(loaded, tmp_path / "cache", gallery)
    with make_client(bench, read_runs(place / "run")) as visitor:
        opened = visitor.post("/api/runs/0/images", json={"image": "photos/a.png"})
        assert opened.status_code == 201, opened.text
        (place / "photos/a.png").unlink()
        gone = visitor.post("/api/runs/0/images", json={"image": "photos/a.png"})
        assert gone.status_code == 422 and "--images" in gone.json()["error"]
    bench.jobs.close()


def test_a_runs_report_is_sandboxed(client: TestClient) -> None:
    answer = client.get("/api/runs/0/report")
    assert "<h1>report</h1>" in answer.text
    policy = answer.headers["content-security-policy"]
    assert "sandbox" in policy and "script-src" not in policy and "default-src 'none'" in policy


def test_coarse_curves_become_fine_ones(client: TestClient, bench: Workbench, picture: str) -> None:
    """They share their points, which are asked for once, and end where curves end that were fine from the start."""
    question = {"picture": picture, "model": MODEL, "method": "edge_map", "target": 3}
    record = asked(client, "/api/maps", **question)
    coarse = asked(client, "/api/curves", map=record["key"], steps=5)["references"]
    before = bench.model(MODEL).model.passes["forward"]
    fine = asked(client, "/api/curves", map=record["key"], references=["blur"], steps=20)["references"]["blur"]
    spent = bench.model(MODEL).model.passes["forward"] - before
    assert spent <= 2 * 15  # of 2 * 21
    assert len(fine["fractions"]) == 21 and fine["fractions"] == sorted(fine["fractions"])
    for kind in ("deletion", "insertion"):
        assert fine[kind][::4] == pytest.approx(coarse["blur"][kind], abs=1e-6)
    sample = Sample(bench.model(MODEL).model, "", bench.sample(bench.model(MODEL), picture).inputs)
    case = Case(sample, 3, torch.from_numpy(bench.store.array(record["key"], "values")), seed=0)
    (direct,) = InsDel(steps=20, references=(Blur(),))(case)
    assert fine["ins_del"] == pytest.approx(direct.value, abs=1e-4)


def test_painted_pixels_are_gone_for_the_model(client: TestClient, bench: Workbench, picture: str) -> None:
    model = bench.model(MODEL).model
    keep = torch.ones(1, 64, 64)
    keep[:, :20, 8:40] = 0
    bits = np.packbits((keep[0] == 0).numpy().astype(np.uint8)).tobytes()
    question = {"picture": picture, "model": MODEL, "rows": 64, "columns": 64, "reference": "black", "classes": [7]}
    found = asked(client, "/api/paintings", bits=base64.b64encode(bits).decode(), **question)
    inputs = bench.sample(bench.model(MODEL), picture).inputs[None]
    wanted = model.scores(model.to_inputs(model.to_pixels(inputs) * keep), torch.tensor([7]))
    assert found["classes"][0]["index"] == 7
    assert found["classes"][0]["score"] == pytest.approx(float(wanted), abs=1e-5)
    assert found["share"] == pytest.approx(20 * 32 / 64**2)


@pytest.mark.parametrize(
    ("changed", "word"),
    [({"rows": 0}, "rows"), ({"rows": 300}, "256"), ({"bits": "%%"}, "base64"), ({"bits": "AAAA"}, "bytes")],
)
def test_a_bad_painting_gets_one_line(client: TestClient, picture: str, changed: dict[str, Any], word: str) -> None:
    question = {
        "picture": picture,
        "model": MODEL,
        "rows": 8,
        "columns": 8,
        "bits": "AAAAAAAAAAA=",
        "reference": "black",
    }
    answer = client.post("/api/paintings", json={**question, **changed})
    assert answer.status_code == 422 and word in answer.json()["error"]


def test_what_would_have_to_change(client: TestClient, bench: Workbench, picture: str) -> None:
    contrast = asked(client, "/api/contrasts", picture=picture, model=MODEL, method="grad_cam", classes=[3, 9])
    key = client.post(
        "/api/contrasts", json={"picture": picture, "model": MODEL, "method": "grad_cam", "classes": [3, 9]}
    )
    found = asked(client, "/api/changes", contrast=key.json()["key"], first=3, second=9, reference="black")
    assert found["first"]["score"] == pytest.approx(contrast["classes"][0]["score"], abs=1e-5)
    first, second = found["scores"]
    ahead = [step for step, (one, other) in enumerate(zip(first, second, strict=True)) if other > one]
    assert found["place"] == (ahead[0] if ahead else None)
    blank = bench.model(MODEL).model
    empty = blank.scores(blank.to_inputs(torch.zeros(1, 3, 64, 64)), torch.tensor([9]))
    assert second[-1] == pytest.approx(float(empty), abs=1e-5)  # all of it gone
    same = client.post("/api/changes", json={"contrast": key.json()["key"], "first": 3, "second": 3})
    assert same.status_code == 422 and "different classes" in same.json()["error"]

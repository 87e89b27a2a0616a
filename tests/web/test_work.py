"""Jobs: shared, limited, cancelled, survived; many visitors, and a second life of the server."""

from __future__ import annotations

import io
import json
import os
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import MODEL, asked, finished, make_bench, make_client, png, upload
from starlette.testclient import TestClient

from aha.api import explain
from aha.core.disk import result_key
from aha.errors import AhaError
from aha.learned.explainer import Explainer
from aha.learned.refinement import Refining
from aha.methods import load_method
from aha.models import TargetModel, load_model
from aha.web.cache import Cache, Gone
from aha.web.jobs import Busy, Job, Jobs
from aha.web.pictures import Pictures
from aha.web.questions import curves, maps, refinement
from aha.web.records import SEED
from aha.web.served import Served
from aha.web.workbench import Workbench

SLOW = "rise(n=5000)"
PATIENCE = 120.0  # seconds; a busy machine is slow, not wrong


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    made = Jobs(max_waiting=3, max_per_owner=4)
    yield made
    made.close()


class Gate:
    """Work that goes on when it is told to."""

    def __init__(self) -> None:
        self.started, self.open = threading.Event(), threading.Event()

    def __call__(self, job: Job) -> None:
        self.started.set()
        while not self.open.wait(0.01):
            job.checkpoint()


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Opened at the end in any case, so that a test that fails does not hold up the others on the same lane."""
    made = Gate()
    yield made
    made.open.set()


def nothing(_job: Job) -> None:
    pass


def test_equal_work_is_done_once(jobs: Jobs, gate: Gate) -> None:
    first = jobs.submit("a", "work", "lane", gate, owner="x")
    assert jobs.submit("a", "work", "lane", nothing, owner="y") is first
    gate.open.set()
    found = jobs.wait("a", PATIENCE)
    assert found is first and found.status == "done"
    assert found.owners == {"x", "y"}


def test_a_lane_does_one_thing_at_a_time_and_quick_ones_first(jobs: Jobs, gate: Gate) -> None:
    order: list[str] = []
    jobs.submit("gate", "work", "lane", gate, owner="x")
    assert gate.started.wait(PATIENCE)
    jobs.submit("slow", "work", "lane", lambda job: order.append("slow"), owner="x", priority=2)
    quick = jobs.submit("quick", "work", "lane", lambda job: order.append("quick"), owner="x", priority=0)
    assert jobs.ahead_of(quick) == 1
    gate.open.set()
    jobs.wait("slow", PATIENCE)
    assert order == ["quick", "slow"]


def test_work_ends_when_the_last_visitor_leaves(jobs: Jobs, gate: Gate) -> None:
    jobs.submit("a", "work", "lane", gate, owner="x")
    jobs.submit("a", "work", "lane", gate, owner="y")
    assert gate.started.wait(PATIENCE)
    jobs.cancel("a", "x")
    time.sleep(0.05)
    assert jobs.get("a").status == "running"  # type: ignore[union-attr]
    jobs.cancel("a", "y")
    assert jobs.wait("a", PATIENCE).status == "cancelled"  # type: ignore[union-attr]


def test_work_that_is_asked_for_while_it_ends_begins_again(jobs: Jobs) -> None:
    started, ending, may_end = (threading.Event() for _ in range(3))
    turns = []

    def work(job: Job) -> None:
        turns.append(job.owners.copy())
        if len(turns) > 1:
            return
        started.set()
        try:
            while True:
                job.checkpoint()
                time.sleep(0.001)
        finally:
            ending.set()
            may_end.wait(PATIENCE)

    jobs.submit("a", "work", "lane", work, owner="x")
    assert started.wait(PATIENCE)
    jobs.cancel("a", "x")
    assert ending.wait(PATIENCE)
    again = jobs.submit("a", "work", "lane", work, owner="y")
    may_end.set()
    assert jobs.wait("a", PATIENCE) is again and again.status == "done" and turns == [{"x"}, {"y"}]


def test_waiting_work_is_cancelled_at_once(jobs: Jobs, gate: Gate) -> None:
    jobs.submit("gate", "work", "lane", gate, owner="x")
    jobs.submit("a", "work", "lane", nothing, owner="x")
    assert jobs.cancel("a", "x").status == "cancelled"  # type: ignore[union-attr]
    gate.open.set()
    assert jobs.wait("gate", PATIENCE).status == "done"  # type: ignore[union-attr]


@pytest.mark.parametrize("error", [RuntimeError("boom"), MemoryError(), SystemExit(3), AhaError("one\nline")])
def test_a_crash_leaves_the_lane_alive(jobs: Jobs, error: BaseException) -> None:
    def crash(_job: Job) -> None:
        raise error

    jobs.submit("bad", "work", "lane", crash, owner="x")
    failed = jobs.wait("bad", PATIENCE)
    assert failed is not None and failed.status == "failed"
    assert "\n" not in failed.error and "boom" not in failed.error
    jobs.submit("good", "work", "lane", nothing, owner="x")
    assert jobs.wait("good", PATIENCE).status == "done"  # type: ignore[union-attr]
    jobs.submit("bad", "work", "lane", nothing, owner="x")  # a second try is a new job
    assert jobs.wait("bad", PATIENCE).status == "done"  # type: ignore[union-attr]


def test_too_much_work_is_refused(jobs: Jobs, gate: Gate) -> None:
    jobs.submit("gate", "work", "lane", gate, owner="x")
    assert gate.started.wait(PATIENCE)
    for key in "abc":
        jobs.submit(key, "work", "lane", nothing, owner=key)
    with pytest.raises(Busy, match="waiting already"):
        jobs.submit("d", "work", "lane", nothing, owner="d")
    jobs.submit("a", "work", "lane", nothing, owner="d")  # joining costs nothing
    gate.open.set()


def test_one_visitor_cannot_fill_the_queue(gate: Gate) -> None:
    jobs = Jobs(max_per_owner=2)
    jobs.submit("a", "work", "lane", gate, owner="x")
    jobs.submit("b", "work", "lane", nothing, owner="x")
    with pytest.raises(Busy, match="under way"):
        jobs.submit("c", "work", "lane", nothing, owner="x")
    jobs.submit("c", "work", "lane", nothing, owner="y")
    jobs.close()


def test_work_that_takes_too_long_is_stopped() -> None:
    jobs = Jobs(max_seconds=0.05)
    jobs.submit("a", "work", "lane", Gate(), owner="x")
    found = jobs.wait("a", PATIENCE)
    assert found is not None and found.status == "failed" and "too long" in found.error
    jobs.close()


# Over HTTP


def test_a_slow_method_reports_progress_and_is_cancelled(client: TestClient, bench: Workbench, picture: str) -> None:
    question = {"picture": picture, "model": MODEL, "method": SLOW, "target": 3}
    state = client.post("/api/maps", json=question).json()
    end = time.monotonic() + PATIENCE
    while not (state["progress"] or 0) > 0:
        assert time.monotonic() < end and state["status"] in ("waiting", "running"), state
        state = client.get(f"/api/jobs/{state['key']}").json()
    assert 0 < state["progress"] < 1 and state["images"] > 0
    assert (
        client.delete(f"/api/jobs/{state['key']}", headers={"x-aha-visitor": "another"}).json()["status"] == "running"
    )
    client.delete(f"/api/jobs/{state['key']}")
    assert finished(client, state)["status"] == "cancelled"
    assert bench.store.find("results", state["key"]) is None
    # The model is what it was, and free.
    asked(client, "/api/maps", picture=picture, model=MODEL, method="edge_map", target=5)


def test_a_crashed_method_leaves_the_server_alive(
    client: TestClient, picture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_args: Any, **_options: Any) -> Any:
        raise RuntimeError("secret of the inside")

    monkeypatch.setattr(maps, "explain", crash)
    question = {"picture": picture, "model": MODEL, "method": "gradient", "target": 9}
    state = finished(client, client.post("/api/maps", json=question).json())
    assert state["status"] == "failed"
    assert "RuntimeError" in state["error"] and "secret" not in state["error"]
    monkeypatch.undo()
    asked(client, "/api/maps", **question)  # and is tried again


def test_a_full_queue_is_answered_with_429(loaded: TargetModel, tmp_path: Path, gallery: Path, gate: Gate) -> None:
    bench = make_bench(loaded, tmp_path, gallery, max_waiting=1)
    bench.jobs.submit("gate", "work", MODEL, gate, owner="x")
    assert gate.started.wait(PATIENCE)
    with make_client(bench) as visitor:
        key = upload(visitor, png(2))
        question = {"picture": key, "model": MODEL, "method": "grad_cam"}
        assert visitor.post("/api/maps", json={**question, "target": 1}).status_code == 202
        refused = visitor.post("/api/maps", json={**question, "target": 2})
        assert refused.status_code == 429 and "retry-after" in refused.headers
    gate.open.set()
    bench.jobs.close()


def test_a_full_queue_refuses_no_method(loaded: TargetModel, tmp_path: Path, gallery: Path) -> None:
    bench = make_bench(loaded, tmp_path / "cache", gallery, max_per_owner=1)
    with make_client(bench) as client:
        question = {"picture": upload(client, png(1)), "model": MODEL, "methods": [SLOW, "rise(n=4999)"], "target": 1}
        assert client.post("/api/maps/several", json=question).status_code == 429
    bench.jobs.close()


def test_a_restart_keeps_what_was_finished(
    loaded: TargetModel, tmp_path: Path, gallery: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_bench(loaded, tmp_path, gallery)
    with make_client(first) as visitor:
        key = upload(visitor, png(3))
        question = {"picture": key, "model": MODEL, "method": "grad_cam", "target": 4}
        record = asked(visitor, "/api/maps", **question)
        measured = asked(visitor, "/api/curves", map=record["key"], references=["black"], steps=3)
        values = visitor.get(f"/api/results/{record['key']}/values").content
        session = visitor.post("/api/sessions", json={"pictures": [key], "view": {}}).json()["key"]
    first.jobs.close()

    def never(*_args: Any, **_options: Any) -> Any:
        raise AssertionError("computed again")

    monkeypatch.setattr(maps, "explain", never)
    monkeypatch.setattr(curves, "reference_curves", never)
    second = make_bench(loaded, tmp_path, gallery)
    with make_client(second) as visitor:
        again = visitor.post("/api/maps", json=question)
        assert again.status_code == 200 and again.json()["result"] == record
        assert asked(visitor, "/api/curves", map=record["key"], references=["black"], steps=3) == measured
        assert visitor.get(f"/api/results/{record['key']}/values").content == values
        assert visitor.get(f"/api/jobs/{record['key']}").json()["status"] == "done"
        assert visitor.get(f"/api/sessions/{session}").json()["pictures"][0]["key"] == key
    second.jobs.close()


def test_results_belong_to_a_model_whatever_it_is_called(loaded: TargetModel, tmp_path: Path) -> None:
    """A later session may give the name to other weights; what follows from a result is asked of its own model."""
    other = load_model(MODEL, pretrained=False, input_size=64, batch_size=8)
    with torch.no_grad():
        other.module.get_classifier().weight.mul_(2)

    def session(*models: TargetModel) -> Workbench:
        store, names = Cache(tmp_path), (MODEL, f"{MODEL} #2")
        offered = [Served(name, model, {"place": name}) for name, model in zip(names, models, strict=False)]
        return Workbench(offered, Pictures(store), store, Jobs())

    first = session(loaded, other)
    with make_client(first) as visitor:
        question = {"picture": upload(visitor, png(12)), "method": "gradient"}
        record = asked(visitor, "/api/maps", **question, model=f"{MODEL} #2", target=4)
        shares = visitor.post("/api/contrasts", json={**question, "model": f"{MODEL} #2", "classes": [3, 9]}).json()
        contrast = finished(visitor, shares)["result"]
    first.jobs.close()

    second = session(other, loaded)
    with make_client(second) as visitor:
        again = visitor.post("/api/maps", json={**question, "model": MODEL, "target": 4})
        assert again.status_code == 200 and again.json()["result"] == record
        measured = asked(visitor, "/api/curves", map=record["key"], references=["black"], steps=3)["references"]
        assert measured["black"]["deletion"][0] == pytest.approx(record["score"], rel=1e-4)  # nothing is gone yet
        change = asked(visitor, "/api/changes", contrast=shares["key"], first=3, second=9)
        assert change["first"]["score"] == pytest.approx(contrast["classes"][0]["score"], rel=1e-4)
        assert f"place='{MODEL}')" in visitor.get(f"/api/snippet?maps={record['key']}").text
        with zipfile.ZipFile(io.BytesIO(visitor.get(f"/api/bundle?maps={record['key']}").content)) as archive:
            assert json.loads(archive.read("manifest.json"))["model_digest"] == other.digest
    second.jobs.close()

    third = session(loaded)
    with make_client(third) as visitor:
        refused = visitor.post("/api/curves", json={"map": record["key"], "references": ["blur"], "steps": 3})
        assert refused.status_code == 422 and "model of this result" in refused.json()["error"]
    third.jobs.close()


def test_results_that_name_their_model_as_earlier_versions_did_are_made_anew(
    client: TestClient, bench: Workbench, picture: str
) -> None:
    question = {"picture": picture, "model": MODEL, "method": "gradient", "target": 12}
    record = asked(client, "/api/maps", **question)
    served, method = bench.model(MODEL), load_method("gradient")
    parts = ("map", picture, method.fingerprint(served.model), 12, SEED)
    earlier = result_key(result_key(*served.identity), *parts)
    bench.store.put("results", earlier, {**record, "key": earlier, "model": MODEL})
    assert client.post("/api/maps", json=question).json()["key"] == record["key"] != earlier
    refused = client.post("/api/curves", json={"map": earlier})
    assert refused.status_code == 422 and "model of this result" in refused.json()["error"]


def test_all_maps_come_before_curves_and_cheap_ones_first(
    client: TestClient, bench: Workbench, picture: str, shown_map: dict[str, Any], gate: Gate
) -> None:
    bench.jobs.submit("gate", "work", MODEL, gate, owner="x")
    assert gate.started.wait(PATIENCE)
    asking = {"picture": picture, "model": MODEL, "target": 31}
    waiting = [client.post("/api/curves", json={"map": shown_map["key"], "steps": steps}).json() for steps in (20, 5)]
    dear = ["rise(n=32)", "integrated_gradients(steps=8)", "grad_cam", "grad_can"]
    answers = client.post("/api/maps/several", json={**asking, "methods": dear}).json()["answers"]
    assert [one["method"] for one in answers] == dear and "grad_cam" in answers[3]["error"]
    places = [client.get(f"/api/jobs/{one['key']}").json()["ahead"] for one in [*answers[:3], *waiting]]
    assert places == [3, 2, 1, 5, 4]
    gate.open.set()
    for one in [*answers[:3], *waiting]:
        finished(client, one)


def test_what_a_method_costs_is_learned(client: TestClient, bench: Workbench, picture: str) -> None:
    served, method = bench.model(MODEL), load_method("integrated_gradients(steps=4)")
    assert bench.costs.of(served, method) == method.cost(served.model, (64, 64)).passes  # what it says of itself
    before = served.model.passes.total()
    asked(client, "/api/maps", picture=picture, model=MODEL, method=str(method), target=33)
    assert bench.costs.of(served, method) == served.model.passes.total() - before


def test_refinement_tells_each_step_as_it_comes(shown_bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, original = threading.Event(), Refining.course

    def held(*args: Any, **options: Any) -> Iterator[Any]:
        for step, found in enumerate(original(*args, **options)):
            if step == 2:
                gate.wait(60)
            yield found

    monkeypatch.setattr(Refining, "course", held)
    key = shown_bench.pictures.add(png(8), "a.png")["key"]
    state = refinement.ask_refinement(shown_bench, "x", key, MODEL, 3, rounds=3)
    job = shown_bench.jobs.get(state["key"])
    assert job is not None
    end = time.monotonic() + PATIENCE
    while (job.done or 0) <= 0.5:  # the gradient step moves it, before it has a map and curves
        assert time.monotonic() < end and not job.is_over
        time.sleep(0.02)
    told = shown_bench.state(job)
    assert [part["step"] for part in told["parts"]] == [0, 1] and 0.5 < (told["progress"] or 0) < 0.75
    gate.set()
    assert shown_bench.jobs.wait(state["key"], PATIENCE).status == "done"  # type: ignore[union-attr]


def test_a_refinement_tells_how_far_each_step_is(shown_bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[float, int]] = []
    original = Job.report

    def noted(job: Job, share: float) -> None:
        told.append((share, len(job.parts)))
        original(job, share)

    monkeypatch.setattr(Job, "report", noted)
    key = shown_bench.pictures.add(png(10), "a.png")["key"]
    state = refinement.ask_refinement(shown_bench, "x", key, MODEL, 3, rounds=2)
    assert shown_bench.jobs.wait(state["key"], PATIENCE).status == "done"  # type: ignore[union-attr]
    for step in range(3):
        inside = [(share, maps) for share, maps in told if step / 3 < share < (step + 1) / 3]
        # While its map is drawn, when that is done, and while its curves are measured.
        assert {maps for _, maps in inside} == {step, step + 1}
        assert sum(maps == step for _, maps in inside) >= 2
        assert max(share for share, maps in inside if maps == step) < step / 3 + 0.15


def test_steps_of_a_refinement_are_the_methods_own_maps(
    shown_bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Explainer, "calibrated", lambda _explainer, maps: 3 * maps + 7)
    served, key = shown_bench.model(MODEL), shown_bench.pictures.add(png(9), "a.png")["key"]
    state = refinement.ask_refinement(shown_bench, "x", key, MODEL, 3, rounds=1)
    job = shown_bench.jobs.wait(state["key"], PATIENCE)
    assert job is not None and job.status == "done"
    batch = shown_bench.pictures.batch(key, served.model)
    for part, method in zip(job.parts, (replace(served.explainers[0], refine=step) for step in (0, 1)), strict=True):
        own = torch.from_numpy(shown_bench.store.array(part["map"], "values"))
        assert torch.allclose(own, explain(served.model, batch, method, 3).maps[0], atol=1e-4)


def test_many_visitors_at_once(client: TestClient, picture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fifty visitors, half of them on known work; each new thing is computed once, and one at a time."""
    computed: list[str] = []
    busy = threading.Lock()
    original = maps.explain

    def watched(*args: Any, **options: Any) -> Any:
        assert busy.acquire(blocking=False), "the model was asked by two at once"
        try:
            computed.append(f"{args[2]} {args[3]}")  # method and class
            return original(*args, **options)
        finally:
            busy.release()

    monkeypatch.setattr(maps, "explain", watched)
    asked(client, "/api/maps", picture=picture, model=MODEL, method="center_map", target=1)

    def visit(number: int) -> np.ndarray[Any, Any]:
        target = 1 if number % 2 else 20 + number % 10
        record = asked(client, "/api/maps", picture=picture, model=MODEL, method="center_map", target=target)
        return np.frombuffer(client.get(f"/api/results/{record['key']}/values").content, "<f2")

    with ThreadPoolExecutor(50) as pool:
        found = list(pool.map(visit, range(50)))
    assert all(np.array_equal(values, found[0]) for values in found)  # a centred map is the same for every class
    assert len(computed) == len(set(computed)) == 6


# The store


def test_the_store_makes_room_for_what_is_new(tmp_path: Path) -> None:
    store = Cache(tmp_path, max_bytes=40_000)
    for number in range(64):
        store.put("results", f"{number:032x}", {"n": number}, {"npz": b"\0" * 1000})
        time.sleep(0.002)
    kept = sorted(int(path.stem, 16) for path in tmp_path.glob("results/*.json"))
    assert kept == list(range(64 - len(kept), 64)) and 30 < len(kept) < 40
    assert sorted(path.stem for path in tmp_path.glob("results/*.npz")) == [f"{n:032x}" for n in kept]


def test_numbers_that_json_does_not_know_are_not_kept(tmp_path: Path) -> None:
    store = Cache(tmp_path)
    with pytest.raises(AhaError, match="not a finite number"):
        store.put("results", "0" * 32, {"score": float("nan")})
    assert store.find("results", "0" * 32) is None


def test_making_room_lists_each_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, listed, listing = Cache(tmp_path, max_bytes=1), [], os.scandir
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "notes.txt").write_text("belongs to no record")
    for number in range(31):
        store.put("results" if number % 2 else "pictures", f"{number:032x}", {"n": number}, {"npz": b"", "bin": b""})

    def noted(path: Any) -> Any:
        listed.append(Path(path).name)
        return listing(path)

    monkeypatch.setattr(os, "scandir", noted)
    store.put("sessions", f"{31:032x}", {"n": 31})
    monkeypatch.undo()
    assert sorted(listed) == ["pictures", "results", "sessions"]
    assert [path.name for path in tmp_path.rglob("*.*")] == ["notes.txt"]


def test_a_damaged_result_is_dropped(tmp_path: Path, client: TestClient, bench: Workbench, picture: str) -> None:
    record = asked(client, "/api/maps", picture=picture, model=MODEL, method="gradient", target=11)
    file = bench.store.folder / "results" / f"{record['key']}.npz"
    file.write_bytes(file.read_bytes()[:100])
    assert client.get(f"/api/results/{record['key']}/values").status_code == 404
    again = asked(client, "/api/maps", picture=picture, model=MODEL, method="gradient", target=11)
    assert again["key"] == record["key"]
    assert client.get(f"/api/results/{record['key']}/values").status_code == 200


def test_only_keys_reach_files(tmp_path: Path) -> None:
    store = Cache(tmp_path / "cache")
    (tmp_path / "secret.json").write_text("{}")
    for key in ("../secret", "..", "", "a" * 33, "A" * 32, "0" * 31 + "\n"):
        with pytest.raises(Gone):
            store.find("results", key)

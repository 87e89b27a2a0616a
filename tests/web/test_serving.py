"""`aha serve`: what is on offer, refinement over HTTP, and bad input before the first visitor."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from asking import ADDRESS, asked, finished, png, upload
from starlette.testclient import TestClient

from aha.cli.serve import _by_model
from aha.errors import AhaWarning, ModelError, OutputError
from aha.learned.explainer import Explainer
from aha.learned.settings import Design
from aha.models import load_model
from aha.web import serving
from aha.web.questions import refinement
from aha.web.serving import ServerSettings, make_app
from command_line import MODEL as MODEL_OPTIONS
from command_line import assert_refused, run

MODEL = "timm:test_resnet"


@pytest.fixture(scope="module")
def explainer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = load_model(MODEL, pretrained=False)
    folder = tmp_path_factory.mktemp("explainer")
    return Explainer.for_target(model, Design(stride=16, width=16)).save_pretrained(folder)


@pytest.fixture(scope="module")
def settings(explainer: Path, gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> ServerSettings:
    cache = tmp_path_factory.mktemp("served")
    return ServerSettings(
        models=[MODEL], pretrained=False, explainers=[explainer], images=[gallery], cache=cache, device="cpu"
    )


def test_a_refined_map_is_there_before_its_curves(settings: ServerSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    may_measure, measure = threading.Event(), refinement.put_curves

    def measure_later(*args: Any) -> str:
        assert may_measure.wait(60)
        return measure(*args)

    monkeypatch.setattr(refinement, "put_curves", measure_later)
    with TestClient(make_app(settings), base_url=ADDRESS) as client:
        question = {"picture": upload(client, png(5)), "model": MODEL, "target": 3, "rounds": 1}
        state = client.post("/api/refinements", json=question).json()
        end = time.monotonic() + 60
        while not state.get("parts"):
            assert time.monotonic() < end, state
            time.sleep(0.02)
            state = client.get(f"/api/jobs/{state['key']}").json()
        (first,) = state["parts"]
        assert (first["step"], first["curves"]) == (0, None)
        assert client.get(f"/api/results/{first['map']}").json()["kind"] == "map"
        may_measure.set()
        found = finished(client, state)["result"]
        assert [step["step"] for step in found["steps"]] == [0, 1]
        assert all(step["curves"] for step in found["steps"])


def test_refinement_step_by_step(settings: ServerSettings, explainer: Path) -> None:
    with TestClient(make_app(settings), base_url=ADDRESS) as client:
        (model,) = client.get("/api/about").json()["models"]
        method = model["methods"][0]["text"]
        assert model["explainers"] == [str(explainer), ""]
        assert method.startswith("aha(") and model["suggested"][0] == method
        picture = upload(client, png(4))
        found = asked(client, "/api/refinements", picture=picture, model=MODEL, target=3, rounds=2)
        assert [step["step"] for step in found["steps"]] == [0, 1, 2]
        assert len({step["map"] for step in found["steps"]}) == 3
        curves = client.get(f"/api/results/{found['steps'][1]['curves']}").json()
        assert curves["references"]["average"]["ins_del"] == pytest.approx(
            sum(curves["references"][name]["ins_del"] for name in ("black", "mean", "blur")) / 3, abs=1e-6
        )
        # They are ordinary maps: asking for one by its method costs nothing more.
        refined = method.removesuffix(")") + ", refine=2)"
        again = client.post("/api/maps", json={"picture": picture, "model": MODEL, "method": refined, "target": 3})
        assert again.status_code == 200 and again.json()["key"] == found["steps"][2]["map"]
        for rounds in (0, 6):
            question = {"picture": picture, "model": MODEL, "target": 3, "rounds": rounds}
            assert client.post("/api/refinements", json=question).status_code == 422
        elsewhere = {"picture": picture, "model": MODEL, "target": 3, "explainer": "/etc"}
        assert client.post("/api/refinements", json=elsewhere).status_code == 422


def test_an_explainer_of_another_model_is_refused(explainer: Path, gallery: Path, tmp_path: Path) -> None:
    wrong = ServerSettings(
        models=["timm:test_vit"],
        pretrained=False,
        explainers=[explainer],
        images=[gallery],
        cache=tmp_path,
        device="cpu",
    )
    with pytest.raises(ModelError, match="was trained for timm:test_resnet"):
        make_app(wrong)


def test_a_port_in_use_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OutputError, match="--port"):
            serving.serve(None, "127.0.0.1", taken.getsockname()[1])  # type: ignore[arg-type]  # never reached


def test_the_command_serves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gallery: Path) -> None:
    served = threading.Event()

    def no_server(app: object, host: str, port: int, on_ready: object) -> None:
        on_ready(f"http://{host}:{port}/")  # type: ignore[operator]
        served.set()

    monkeypatch.setattr(serving, "serve", no_server)
    options = (*MODEL_OPTIONS, "--images", gallery, "--cache", tmp_path / "cache", "--device", "cpu")
    result = run("serve", *options)
    assert result.exit_code == 0, result.output
    assert served.is_set() and "http://127.0.0.1:8642/ " in result.stdout
    result = run("serve", *options, "--host", "0.0.0.0")
    assert "/?token=" in result.stdout


def test_weights_find_their_model() -> None:
    """In order, or by name: the second model's alone could not be given."""
    one, other = "timm:test_resnet", "timm:test_vit"
    assert _by_model([one, other], [f"{other}=b.safetensors"]) == [None, Path("b.safetensors")]
    assert _by_model([one, other], ["a", "b"]) == [Path("a"), Path("b")]
    assert _by_model([one, other], [f"{one}=a", "b"]) == [Path("a"), Path("b")]
    assert _by_model([], ["a"]) == [Path("a")] and _by_model([one], []) == []
    assert len(_by_model([one], ["a", "b"])) == 2, "one too many is refused later"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--model", "timm:test_resnt"), ("did you mean", "test_resnet")),
        ((*MODEL_OPTIONS, "--token", "short"), ("8 to 128",)),
        ((*MODEL_OPTIONS, "--token", "with space and; more"), ("8 to 128",)),
        ((*MODEL_OPTIONS, "--run", "nowhere"), ("nowhere", "does not exist")),
        ((*MODEL_OPTIONS, "--run", str(Path(__file__).parent)), ("is not the folder of a run",)),
        ((*MODEL_OPTIONS, "--images", "nowhere"), ("nowhere", "does not exist")),
        ((*MODEL_OPTIONS, "--explainer", "nowhere"), ("nowhere",)),
        ((*MODEL_OPTIONS, "--weights", __file__, "--weights", __file__), ("2 weights files for 1 models",)),
    ],
    ids=["model", "token", "token-letters", "run", "empty run", "images", "explainer", "weights"],
)
def test_bad_input_is_one_line(options: tuple[str, ...], words: tuple[str, ...], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert_refused(run("serve", *options, "--cache", cache), *words)
    assert not cache.exists()


def test_models_of_volumes_are_refused_before_the_first_visitor(
    tmp_path: Path, gallery: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads become photographs; nothing of a volume is decoded."""
    code = "import aha\nfrom torch import nn\n\n\ndef network():\n"
    code += "    layers = nn.Conv3d(1, 2, 3), nn.AdaptiveAvgPool3d(1), nn.Flatten()\n"
    code += "    return aha.load_model(nn.Sequential(*layers), input_size=(1, 4, 8, 8), mean=[0.5], std=[0.5])\n"
    (tmp_path / "served_volumes.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    wanted = ServerSettings(
        models=["python:served_volumes:network"], images=[gallery], cache=tmp_path / "c", device="cpu"
    )
    with (
        pytest.warns(AhaWarning, match="runs code"),
        pytest.raises(ModelError, match=r"reads volumes of 1 channel, the explorer photographs; use aha explain"),
    ):
        make_app(wanted)

"""Asking the explorer over HTTP: what its tests share."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from starlette.testclient import TestClient

from aha.models import TargetModel
from aha.web.app import create_app
from aha.web.cache import Cache
from aha.web.jobs import Jobs
from aha.web.pictures import Pictures, find_examples
from aha.web.runs import ServedRun
from aha.web.served import Served
from aha.web.workbench import Workbench

MODEL = "timm:test_resnet"
ADDRESS = "http://localhost"
REFERENCES = ["black", "blur"]


def png(seed: int = 0, size: tuple[int, int] = (48, 40)) -> bytes:
    """A picture with structure, so that maps are not flat."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize(size, Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    coarse.save(buffer, "PNG")
    return buffer.getvalue()


def make_bench(model: TargetModel, cache: Path, gallery: Path, **limits: Any) -> Workbench:
    store = Cache(cache)
    pictures = Pictures(store, find_examples([gallery]), [gallery])
    options = {"pretrained": False, "input_size": 64}
    return Workbench([Served(MODEL, model, options)], pictures, store, Jobs(**limits))


def make_client(bench: Workbench, runs: list[ServedRun] | None = None, **options: Any) -> TestClient:
    # Errors inside must come out as answers, not as exceptions of the test client.
    return TestClient(create_app(bench, runs or [], **options), base_url=ADDRESS, raise_server_exceptions=False)


def upload(client: TestClient, content: bytes, name: str = "a.png") -> str:
    answer = client.post(f"/api/pictures?name={name}", content=content, headers={"content-type": "image/png"})
    assert answer.status_code == 201, answer.text
    key: str = answer.json()["key"]
    return key


def asked(client: TestClient, path: str, seconds: float = 240, **question: Any) -> dict[str, Any]:
    """The result of a question, waited for."""
    answer = client.post(path, json=question)
    assert answer.status_code in (200, 202), answer.text
    state = finished(client, answer.json(), seconds)
    assert state["status"] == "done", state
    result: dict[str, Any] = state["result"]
    return result


def finished(client: TestClient, state: dict[str, Any], seconds: float = 240) -> dict[str, Any]:
    """The state of a job once it is over."""
    end = time.monotonic() + seconds
    while state["status"] in ("waiting", "running"):
        assert time.monotonic() < end, state
        time.sleep(0.02)
        state = client.get(f"/api/jobs/{state['key']}").json()
    return state

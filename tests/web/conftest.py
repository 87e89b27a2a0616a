"""The explorer over miniature models, asked directly and in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import MODEL, asked, make_bench, make_client, png, upload
from browsing import BROWSER, listening, new_page
from starlette.testclient import TestClient

from aha.bench.store import RunStore, work_of
from aha.core.disk import result_key
from aha.learned.explainer import Explainer
from aha.learned.settings import Design
from aha.methods.aha import AHA
from aha.models import TargetModel, load_model
from aha.web.app import create_app
from aha.web.cache import Cache
from aha.web.jobs import Jobs
from aha.web.pictures import Pictures, find_examples
from aha.web.runs import read_runs
from aha.web.served import Served
from aha.web.workbench import Workbench


@pytest.fixture(scope="session")
def loaded() -> TargetModel:
    return load_model(MODEL, pretrained=False, input_size=64, batch_size=8)


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gallery")
    for seed in (100, 101):
        (folder / f"example_{seed}.png").write_bytes(png(seed))
    return folder


def cell(image: str, target: int, value: float) -> dict[str, Any]:
    """A line of a run."""
    found = {"target": target, "score": 0.5, "rows": [("ins_del", "average", value)], "curves": []}
    key = f"{work_of(MODEL, 'digest', 'grad_cam', 'quick', 'top1', image)}-state"
    facts = {"key": key, "model": MODEL, "digest": "digest", "method": "grad_cam", "protocol": "quick", "asked": "top1"}
    about = {"image": image, "label": None, "found": [found], "failures": [], "version": "0"}
    return {**facts, **about, "made": 0.0, "content": result_key(image), "state": "state", "truth": {}}


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, gallery: Path) -> Path:
    """The folder of an evaluation with one image that stands out."""
    folder = tmp_path_factory.mktemp("run")
    values = {f"{gallery}/other_{i}.png": (3, 0.3 + i / 100) for i in range(10)}
    values |= {f"{gallery}/example_100.png": (7, -0.9), "/etc/hostname": (3, 0.35)}
    with RunStore(folder) as store:
        store.add(cell(image, target, value) for image, (target, value) in values.items())
    (folder / "report.html").write_text("<h1>report</h1><script>alert(1)</script>")
    return folder


@pytest.fixture(scope="session")
def bench(loaded: TargetModel, gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    made = make_bench(loaded, tmp_path_factory.mktemp("cache"), gallery)
    yield made
    made.jobs.close()


@pytest.fixture(scope="session")
def client(bench: Workbench, finished_run: Path) -> Iterator[TestClient]:
    with make_client(bench, read_runs(finished_run)) as opened:
        yield opened


@pytest.fixture(scope="session")
def picture(client: TestClient) -> str:
    return upload(client, png(1))


@pytest.fixture(scope="session")
def shown_map(client: TestClient, picture: str) -> dict[str, Any]:
    """The record of a finished map."""
    return asked(client, "/api/maps", picture=picture, model=MODEL, method="grad_cam", target=3)


# In a browser


@pytest.fixture(scope="session")
def shown_bench(loaded: TargetModel, gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """Two models, the first of them with an explainer."""
    # A model of its own: two workers on one would be two questions at once.
    model = load_model(MODEL, pretrained=False, input_size=64, batch_size=8)
    model.module.load_state_dict(loaded.module.state_dict())
    folder = tmp_path_factory.mktemp("explainer")
    Explainer.for_target(model, Design(stride=16, width=16)).save_pretrained(folder)
    other = load_model("timm:test_vit", pretrained=False, input_size=64, batch_size=8)
    served = [Served(MODEL, model, explainers=[AHA(explainer=str(folder))]), Served("timm:test_vit", other)]
    store = Cache(tmp_path_factory.mktemp("shown"))
    made = Workbench(served, Pictures(store, find_examples([gallery]), [gallery]), store, Jobs())
    yield made
    made.jobs.close()


@pytest.fixture(scope="module")
def address(shown_bench: Workbench, finished_run: Path) -> Iterator[str]:
    with listening(create_app(shown_bench, read_runs(finished_run))) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        # Without the GPU process, which would imitate a graphics card on the processor.
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """A fresh page on a laptop."""
    with new_page(browser, address) as opened:
        yield opened

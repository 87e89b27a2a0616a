"""The explorer over a miniature model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import MODEL, asked, make_bench, make_client, png, upload
from starlette.testclient import TestClient

from aha.models import TargetModel, load_model
from aha.web.runs import Run
from aha.web.workbench import Workbench


@pytest.fixture(scope="session")
def loaded() -> TargetModel:
    return load_model(MODEL, pretrained=False, img_size=64, batch_size=8)


@pytest.fixture(scope="session")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gallery")
    for seed in (100, 101):
        (folder / f"example_{seed}.png").write_bytes(png(seed))
    return folder


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, gallery: Path) -> Path:
    """The folder of an evaluation with one image that stands out."""
    folder = tmp_path_factory.mktemp("run")
    lines = ["image,method,metric,protocol,target,reference,value"]
    lines += [f"{gallery}/other_{i}.png,grad_cam,ins_del,quick,3,average,{0.3 + i / 100}" for i in range(10)]
    lines += [f"{gallery}/example_100.png,grad_cam,ins_del,quick,7,average,-0.9"]
    lines += ["/etc/hostname,grad_cam,ins_del,quick,3,average,0.35"]
    (folder / "scores.csv").write_text("\n".join(lines) + "\n")
    (folder / "evaluation.json").write_text(f'{{"model": "{MODEL}"}}')
    (folder / "report.html").write_text("<h1>report</h1><script>alert(1)</script>")
    return folder


@pytest.fixture(scope="session")
def bench(loaded: TargetModel, gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    made = make_bench(loaded, tmp_path_factory.mktemp("cache"), gallery)
    yield made
    made.jobs.close()


@pytest.fixture(scope="session")
def client(bench: Workbench, finished_run: Path) -> Iterator[TestClient]:
    with make_client(bench, [Run.read(finished_run)]) as opened:
        yield opened


@pytest.fixture(scope="session")
def picture(client: TestClient) -> str:
    return upload(client, png(1))


@pytest.fixture(scope="session")
def shown_map(client: TestClient, picture: str) -> dict[str, Any]:
    """The record of a finished map."""
    return asked(client, "/api/maps", picture=picture, model=MODEL, method="grad_cam", target=3)

"""Targets in the explorer: drawn and written, on a segmenter, a detector and a classifier."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import MODEL, asked, finished, png, upload
from browsing import SIZES, canvas, eventually, frames, listening, new_page, until
from starlette.testclient import TestClient
from torch import Tensor, nn

import aha
from aha.models import TargetModel, load_model
from aha.web.app import create_app
from aha.web.cache import Cache
from aha.web.jobs import Jobs
from aha.web.pictures import Pictures, find_examples
from aha.web.served import Served
from aha.web.workbench import Workbench

SIDE = 64
COLOURS = {"mean": (0.5,) * 3, "std": (0.5,) * 3}


class Segmenter(nn.Module):
    """Scores (B, 3, 16, 16) of classes at places."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, stride=2, padding=1)
        )

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"out": self.body(images)}


class Detector(nn.Module):
    """Two candidates that lie still, whose scores (B, 2, 2) follow their own half of the image."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 2, 3, padding=1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps = self.body(images)
        halves = torch.stack([maps[..., : SIDE // 2].mean(dim=(2, 3)), maps[..., SIDE // 2 :].mean(dim=(2, 3))], dim=1)
        boxes = images.new_tensor([[0, 0, SIDE / 2, SIDE], [SIDE / 2, 0, SIDE, SIDE]]).expand(len(images), 2, 4)
        return {"boxes": boxes, "scores": halves.sigmoid()}


@pytest.fixture(scope="module")
def models() -> dict[str, TargetModel]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        networks = {"segmenter": Segmenter().eval(), "detector": Detector().eval()}
    found = {
        name: load_model(network, input_size=SIDE, fit="squash", **COLOURS)  # type: ignore[arg-type]
        for name, network in networks.items()
    }
    return {**found, MODEL: load_model(MODEL, pretrained=False, input_size=SIDE)}


@pytest.fixture(scope="module")
def target_bench(models: dict[str, TargetModel], gallery: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    store = Cache(tmp_path_factory.mktemp("targets"))
    served = [Served(name, model) for name, model in models.items()]
    made = Workbench(served, Pictures(store, find_examples([gallery]), [gallery]), store, Jobs())
    yield made
    made.jobs.close()


@pytest.fixture(scope="module")
def asking(target_bench: Workbench) -> Iterator[TestClient]:
    with TestClient(create_app(target_bench), base_url="http://localhost", raise_server_exceptions=False) as opened:
        yield opened


def bits(mask: np.ndarray[Any, Any]) -> dict[str, Any]:
    """A mask as the page sends it."""
    rows, columns = mask.shape
    return {"rows": rows, "columns": columns, "bits": base64.b64encode(np.packbits(mask)).decode()}


def test_the_page_knows_what_each_model_holds(asking: TestClient) -> None:
    found = {one["name"]: one for one in asking.get("/api/about").json()["models"]}
    assert {name: one["kind"] for name, one in found.items()} == {
        "segmenter": "region",
        "detector": "box",
        MODEL: "class",
    }
    assert found["segmenter"]["classes"] == 0
    assert "grad_cam" in [one["text"] for one in found["segmenter"]["methods"]]


@pytest.mark.parametrize(
    ("model", "target"),
    [
        ("segmenter", "region(box=(4, 5, 30, 30))"),
        ("segmenter", "region(cls=1, box=(4, 5, 30, 30))"),
        ("detector", "box(0, 0, 24, 40, cls=1)"),
        (MODEL, "contrast(3, 5)"),
        (MODEL, "log_odds(3)"),
        (MODEL, "neuron('layer2', 1)"),
    ],
)
def test_a_map_is_what_explain_gives(
    asking: TestClient, target_bench: Workbench, models: dict[str, TargetModel], model: str, target: str
) -> None:
    picture = upload(asking, png(1))
    found = asked(asking, "/api/targets", picture=picture, model=model, method="gradient", target=target)
    own = aha.explain(models[model], target_bench.pictures.image(picture), "gradient", target)
    values = np.frombuffer(asking.get(f"/api/results/{found['key']}/values").content, "<f2").reshape(SIDE, SIDE)
    np.testing.assert_allclose(values * found["unit"], own.maps[0].numpy(), atol=2e-3 * found["unit"])
    assert found["score"] == pytest.approx(float(own.scores[0]), rel=1e-4, abs=1e-6)
    curves = asked(asking, "/api/curves", map=found["key"], references=["black"], steps=4)["references"]["black"]
    scores = aha.evaluate(
        models[model],
        target_bench.pictures.image(picture),
        {"own": own},
        "ins_del(steps=4, references=[black])",
        target=target,
        progress=False,
    )
    assert curves["deletion"][0] == pytest.approx(found["score"], rel=1e-4, abs=1e-6)
    assert curves["ins_del"] == pytest.approx(scores.values("own", "ins_del")[0], abs=2e-3)


def test_a_brushed_region_is_its_mask(
    asking: TestClient, target_bench: Workbench, models: dict[str, TargetModel]
) -> None:
    picture = upload(asking, png(2))
    cells = np.zeros((16, 16), dtype=bool)
    cells[:8, :4] = True  # the upper left part: 12 x 20 of 48 x 40 pixels
    found = asked(
        asking, "/api/targets", picture=picture, model="segmenter", method="gradient", **{"class": "2"}, **bits(cells)
    )
    image = target_bench.pictures.image(picture)
    own = aha.explain(models["segmenter"], image, "gradient", "region(cls=2, box=(0, 0, 12, 20))")
    assert found["score"] == pytest.approx(float(own.scores[0]), rel=1e-4)
    curves = asked(asking, "/api/curves", map=found["key"], references=["blur"], steps=4)
    assert curves["references"]["blur"]["deletion"][0] == pytest.approx(found["score"], rel=1e-4)
    again = asked(asking, "/api/targets", picture=picture, model="segmenter", method="gradient", **bits(~cells))
    assert again["key"] != found["key"]


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"target": "similarity(picture='/etc/hostname')"}, "does not read files"),
        ({"target": "similarity(vector='/etc/hostname')"}, "does not read files"),
        ({"model": "segmenter", "target": "region(mask='/etc/hostname')"}, "does not read files"),
        ({"target": "box(0, 0, 1e300, 1e300)"}, "too much for the explorer"),
        ({"target": "no_such(3)"}, "is no target"),
        ({"target": "contrast(1)"}, "needs second"),
        ({"target": "contrast(3, 5)", "rows": 1, "columns": 8, "bits": "/w=="}, "not both"),
        ({"model": "segmenter", "rows": 1, "columns": 8, "bits": "AA=="}, "is empty"),
        ({"model": "segmenter", "rows": 999, "columns": 8, "bits": "AA=="}, "1 to 256"),
        ({"model": "segmenter", "rows": 1, "columns": 8, "bits": "%"}, "base64"),
        ({"target": "contrast(3, 5)", "method": "gradient_shap(n=1e9)"}, ""),
    ],
)
def test_bad_questions_get_one_line(asking: TestClient, changed: dict[str, Any], word: str) -> None:
    question = {"picture": upload(asking, png(1)), "model": MODEL, "method": "gradient", "target": ""} | changed
    answer = asking.post("/api/targets", json=question)
    assert answer.status_code == 422 and word in answer.json()["error"] and "\n" not in answer.json()["error"]


def test_what_shows_only_on_the_picture_fails_in_one_line(asking: TestClient) -> None:
    question = {"picture": upload(asking, png(1)), "model": "segmenter", "method": "gradient"}
    answer = asking.post("/api/targets", json={**question, "target": "region(cls=1, at=(900, 900), of='logit')"})
    state = finished(asking, answer.json())
    assert state["status"] == "failed" and "\n" not in state["error"]


def test_classes_are_refused_where_there_are_none(asking: TestClient) -> None:
    picture = upload(asking, png(1))
    for path, more in (("/api/classes", {}), ("/api/maps", {"method": "gradient", "target": 0})):
        answer = asking.post(path, json={"picture": picture, "model": "detector", **more})
        assert answer.status_code == 422 and "no classes of whole images" in answer.json()["error"]
    assert asking.get("/api/classes?model=detector&search=a").status_code == 422


def test_downloads_are_for_maps_of_classes(asking: TestClient) -> None:
    picture = upload(asking, png(1))
    found = asked(asking, "/api/targets", picture=picture, model=MODEL, method="gradient", target="contrast(3, 5)")
    assert asking.get(f"/api/bundle?maps={found['key']}").status_code == 422


# In a browser


@pytest.fixture(scope="module")
def target_address(target_bench: Workbench) -> Iterator[str]:
    with listening(create_app(target_bench)) as found:
        yield found


def opened(page: Any, model: str) -> None:
    """The target view of a model with a picture of 48 x 40 pixels."""
    page.locator("#model").select_option(model)
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": png(1)})
    page.locator("#tab-target").click()
    eventually(page, lambda: canvas(page, "#target-view").any())


def drag(page: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draws from one place to another, in shares of the canvas."""
    page.locator("#target-view").scroll_into_view_if_needed()
    box = page.locator("#target-view").bounding_box()
    (ax, ay), (bx, by) = ((box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end))
    page.mouse.move(ax, ay)
    page.mouse.down()
    page.mouse.move((ax + bx) / 2, (ay + by) / 2)
    page.mouse.move(bx, by)
    page.mouse.up()


def explained(page: Any, word: str) -> None:
    until(page, "word => document.getElementById('target-reading').textContent.includes(word)", word)
    until(page, "document.querySelectorAll('#target .plot path').length === 2")


@pytest.mark.parametrize("size", list(SIZES))
def test_a_box_is_drawn_and_explained(browser: Any, target_address: str, size: str, tmp_path: Path) -> None:
    width, height = SIZES[size]
    with new_page(browser, target_address, width, height) as page:
        opened(page, "detector")
        assert page.locator("#tab-compare").is_disabled() and page.locator("#classes-box").is_hidden()
        page.locator("#target-method").fill("gradient")
        drag(page, (0.5, 0.75), (0.0, 0.25))  # from the lower right: the corners are put in order
        assert page.input_value("#target-text") == "box(0, 10, 24, 30)"
        explained(page, "box(0.0, 10.0, 24.0, 30.0)")
        assert 'target="box(0, 10, 24, 30)"' in page.text_content("#target-code")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        shown = canvas(page, "#target figure canvas")
        assert shown.std() > 0
        page.screenshot(path=tmp_path / f"{size}.png", full_page=True)


def test_a_box_is_written_with_keys_alone(browser: Any, target_address: str) -> None:
    with new_page(browser, target_address) as page:
        opened(page, "segmenter")
        page.locator("#target-x0").focus()
        for value in ("4", "5", "30", "31"):
            page.keyboard.type(value)
            page.keyboard.press("Tab")
        page.locator("#target-class").focus()
        page.keyboard.type("1")
        page.keyboard.press("Tab")
        assert page.input_value("#target-text") == "region(box=(4, 5, 30, 31), cls=1)"
        page.locator("#target-method").fill("grad_cam")
        page.keyboard.press("Enter")
        explained(page, "region(cls=1, box=(4.0, 5.0, 30.0, 31.0))")


def test_a_region_is_brushed(browser: Any, target_address: str) -> None:
    with new_page(browser, target_address) as page:
        opened(page, "segmenter")
        page.get_by_text("Brush a region", exact=True).click()
        before = canvas(page, "#target-view")
        page.locator("#target-method").fill("gradient")
        drag(page, (0.2, 0.3), (0.4, 0.5))
        page.mouse.move(2, 2)
        frames(page)
        assert (canvas(page, "#target-view") != before).any()
        page.locator("#target-ask").click()
        explained(page, "the brushed region")
        page.locator("#target-clear").click()
        page.locator("#target-ask").click()
        until(page, "document.getElementById('target-status').textContent.includes('first')")


def test_a_classifier_takes_a_written_target(browser: Any, target_address: str) -> None:
    with new_page(browser, target_address) as page:
        opened(page, MODEL)
        page.wait_for_selector("#classes .pick[aria-pressed=true]")
        assert page.locator("#target-x0").is_hidden()
        page.locator("#target-method").fill("gradient")
        page.locator("#target-text").fill("contrast(3, 99999)")
        page.keyboard.press("Enter")
        until(page, "document.getElementById('target-status').textContent.includes('99999')")
        page.locator("#target-text").fill("contrast(3, 5)")
        page.keyboard.press("Enter")
        explained(page, "contrast(3, 5)")

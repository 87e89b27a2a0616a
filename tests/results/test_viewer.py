"""The viewer of notebooks and single files: what it holds, and that a browser shows it without a server."""

from __future__ import annotations

import base64
import html
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import which
from typing import Any

import nbclient
import nbformat
import numpy as np
import pytest
import torch
from PIL import Image

import aha
from aha.data.batches import Subject
from aha.errors import MissingExtra, OutputError
from aha.models import TargetModel, load_model
from aha.models.loading.preprocessing import Geometry
from aha.perturb.perturbation import rank_pixels
from aha.results.explanation import Explanation
from aha.results.viewer import widget as widget_module
from aha.results.viewer.bundle import MODULES, static_text, viewer_script
from aha.results.viewer.payload import _model_view, payload

playwright = pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def model() -> TargetModel:
    return load_model("timm:test_resnet", pretrained=False, input_size=64, batch_size=8)


@pytest.fixture(scope="module")
def explained(model: TargetModel) -> list[Explanation]:
    """Two methods, two pictures, two classes each; the first method with cards."""
    rng = np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((96, 80)) for _ in range(2)]
    return [
        aha.explain(model, pictures, method, [[3, 7], [5, 9]], card=method == "center_map", progress=False)
        for method in ("center_map", "gradient")
    ]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = which("chromium") or which("chromium-browser") or which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


def test_the_smallest_pictures_are_shown() -> None:
    red = Image.new("RGB", (2, 1), (255, 0, 0))
    view = _model_view(Subject("red", red, Geometry((1, 2), (8, 8), (0.0, 0.5, 1.0, 1.5))))
    assert view.size == (8, 8) and np.asarray(view).reshape(-1, 3).min(axis=0).tolist() == [255, 0, 0]
    padded = _model_view(Subject("red", red, Geometry((1, 2), (8, 8), (-0.5, 0.0, 1.5, 2.0))))
    assert padded.size == (8, 8)


def test_the_payload_holds_maps_in_the_order_of_the_metric(explained: list[Explanation]) -> None:
    held = payload(explained)
    assert [len(held["pictures"]), len(held["maps"])] == [2, 8]
    for place, (explanation, index) in enumerate((one, i) for one in explained for i in range(4)):
        stored, values = held["maps"][place], explanation.maps[index]
        shares = np.frombuffer(base64.b64decode(stored["values"]), "<f2").reshape(64, 64).astype(np.float32)
        assert np.abs(shares * stored["unit"] - values.numpy()).max() <= 1e-3 * stored["unit"]
        ranks = np.frombuffer(base64.b64decode(stored["ranks"]), "<u2").reshape(64, 64)
        assert (ranks == rank_pixels(values, seed=0).numpy()).all()
        assert (stored["card"] is None) == (explanation.method == "gradient")
    json.dumps(held, allow_nan=False)


def test_too_many_maps_are_refused(explained: list[Explanation]) -> None:
    with pytest.raises(OutputError, match="at most 60"):
        payload(explained * 9)


def test_the_bundle_is_all_of_its_modules() -> None:
    script = viewer_script()
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    for name in MODULES:
        needed = re.findall(r'from "\./(\w+)\.js"', static_text(f"{name}.js"))
        assert set(needed) <= set(MODULES[: MODULES.index(name)])  # each after what it needs


_STATE = """() => ({
  tiles: document.querySelectorAll(".tile").length,
  reading: document.querySelector(".reading").textContent,
  curves: document.querySelectorAll(".plot path:not(.bound)").length,
  random: document.querySelectorAll(".plot path.bound").length,
  choices: document.querySelectorAll(".viewer-tools select option").length,
  wide: document.documentElement.scrollWidth - innerWidth })"""


def look(page: Any) -> dict[str, Any]:
    """What the viewer shows, once it does."""
    page.wait_for_function("document.querySelector('.tile .ends span')?.textContent")
    page.wait_for_function("document.querySelector('.reading').textContent")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    found: dict[str, Any] = page.evaluate(_STATE)
    return found


@pytest.mark.parametrize("width", [1440, 390])
def test_one_file_works_alone(explained: list[Explanation], browser: Any, tmp_path: Path, width: int) -> None:
    path = explained[0].to_html(tmp_path / "a page.html", explained[1])
    page = browser.new_page(viewport={"width": width, "height": 844}, offline=True)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    own = ("file:", "data:", "blob:")
    page.on("request", lambda one: None if one.url.startswith(own) else problems.append(one.url))
    page.goto(path.as_uri())
    found = look(page)
    assert (found["tiles"], found["curves"], found["random"]) == (2, 1, 1)  # two methods, of which one was measured
    assert found["wide"] <= 0
    assert found["reading"].startswith("Without the top 10 % of pixels")
    page.locator("input.on-plot").fill("500")
    page.wait_for_function("document.querySelector('.reading').textContent.startsWith('Without the top 50 %')")
    height = float(page.text_content(".reading b"))
    assert height == pytest.approx(explained[0].cards[0].curves.deletion[10], abs=6e-4)  # of 20 steps
    page.locator(".viewer-tools select").first.select_option("1")  # the other picture
    page.wait_for_function(
        "label => document.querySelector('.tile .side').textContent.startsWith(label)", arg=explained[0].labels[2]
    )
    page.close()
    assert problems == []


def test_slices_of_a_volume(browser: Any, tmp_path: Path) -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 4 * 12 * 10, 2))
    volume = torch.randn(1, 3, 4, 12, 10, generator=torch.Generator().manual_seed(0))
    found = aha.explain(network, volume, "gradient", 1)
    told = payload([found])
    assert [one["name"] for one in told["pictures"]] == [f"image-0, slice {number}" for number in range(4)]
    assert told["slices"] == 4
    assert {one["pixels"] for one in told["maps"]} == {480}
    ranks = np.concatenate([np.frombuffer(base64.b64decode(one["ranks"]), "<u2") for one in told["maps"]])
    assert sorted(ranks) == list(range(480))  # of all voxels together
    assert len({(one["low"], one["high"], one["unit"]) for one in told["maps"]}) == 1
    large = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 70 * 4, 2))
    deep = aha.explain(large, torch.rand(1, 3, 70, 2, 2), "gradient", 1)
    assert len(payload([deep])["maps"]) == 60
    page, problems = browser.new_page(offline=True), []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(found.to_html(tmp_path / "slices.html").as_uri())
    look(page)
    slider = page.get_by_label("Slice", exact=True)
    slider.fill("3")
    page.wait_for_function("document.querySelector('.viewer-tools select').value === '3'")
    page.close()
    assert problems == []


def test_a_name_cannot_leave_its_place(model: TargetModel, tmp_path: Path) -> None:
    found = aha.explain(model, Image.new("RGB", (70, 70), "red"), "center_map", 3, progress=False)
    nasty = replace(found, labels=["</script><script>alert(1)</script>"])
    text = nasty.to_html(tmp_path / "x.html").read_text()
    assert "<script>alert" not in text


# What a notebook does with a widget: imports its script, and hands it a model and an element.
_HARNESS = """async ([script, css, payload]) => {
  const sheet = document.createElement("style");
  sheet.textContent = css;
  document.head.append(sheet);
  const address = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const { default: widget } = await import(address);
  const element = document.createElement("div");
  document.body.append(element);
  widget.render({ model: { get: (name) => ({ payload })[name], on: () => {} }, el: element });
}"""

_CELLS = [
    """import numpy as np, aha
model = aha.load_model("timm:test_resnet", pretrained=False, input_size=64)
picture = np.random.default_rng(0).integers(0, 256, (72, 80, 3), dtype=np.uint8)
found = aha.explain(model, picture, "center_map", [[3, 7]], card=True)
found[0]""",
    "aha.evaluate(model, picture, ['center_map', 'random_map'], 'ins_del(steps=4)')",
    "found.widget(aha.explain(model, picture, 'edge_map', [[3, 7]]))",
]


def test_a_notebook_shows_explanation_table_and_widget(browser: Any, tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in _CELLS])
    where = {"metadata": {"path": str(tmp_path)}}
    client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where)
    client.execute()
    first, table, last = (cell.outputs[-1].data for cell in notebook.cells)
    assert first["text/html"].count("<img") == 2 and "Ins-Del" in first["text/html"]  # photograph and map, and a card
    assert "<table" in table["text/html"] and "random_map" in table["text/html"]
    name = last["application/vnd.jupyter.widget-view+json"]["model_id"]
    state = client.widget_state[name]
    page = browser.new_page()
    page.goto("about:blank")
    page.evaluate(_HARNESS, [state["_esm"], state["_css"], state["payload"]])
    found = look(page)
    assert (found["tiles"], found["curves"], found["choices"]) == (2, 1, 1 + 2 + 3)  # picture, classes, ways to show
    page.close()


def test_the_widget_says_what_it_needs(explained: list[Explanation], monkeypatch: pytest.MonkeyPatch) -> None:
    widget_module._widget_class.cache_clear()
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(MissingExtra, match="notebook"):
        explained[0].widget()
    widget_module._widget_class.cache_clear()


# Explanations as sequences


def test_an_explanation_is_indexed_and_iterated(explained: list[Explanation]) -> None:
    found = explained[0]
    last = found[-1]
    assert len(last) == 1 and torch.equal(last.maps[0], found.maps[3]) and last.labels == [found.labels[3]]
    assert last.cards == [found.cards[3]] and last.subjects == [found.subjects[3]]
    assert last.seconds == pytest.approx(found.seconds / 4)
    assert [int(one.targets[0]) for one in found] == [3, 7, 5, 9]
    assert torch.equal(found[1:3].targets, found.targets[1:3]) and len(found[1:3].cards) == 2
    assert explained[1][0].cards == ()
    with pytest.raises(IndexError):
        found[4]
    with pytest.raises(IndexError, match=r"there is no map 99; this explanation has \d+"):
        explained[0][99]


def test_an_explanation_shows_photograph_map_probability_and_card(explained: list[Explanation]) -> None:
    text = explained[0]._repr_html_()
    assert text.count("<img") == 8
    for index in range(4):
        assert explained[0].caption(index) in text
        assert html.escape(explained[0].cards[index].sentence) in text
    assert "Ins-Del" not in explained[1]._repr_html_()

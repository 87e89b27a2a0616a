"""The page of a report in a real browser: it works, fits a phone, asks nobody for anything, and stays small."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from worlds import tiny_model

from aha.bench import Plan, run, write_report
from aha.bench.store import RunStore, read_cells
from aha.results.figures import as_bytes, plot_trade_off

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_PATIENCE = 180  # seconds; a busy machine is slow, not wrong
_COLUMN = """([table, column]) => [...document.querySelectorAll('table')[table].tBodies[0].rows]
  .map(row => row.cells[column].dataset.value ?? row.cells[column].textContent)"""
_HEAD = "table => document.querySelectorAll('table')[table].tHead.rows[0].cells[1].textContent"
_LARGEST = 10_000_000  # bytes
# Words and pictures that go on behind the edge of the screen; numbers of wide tables can be moved into sight.
_CUT_OFF = """[...document.querySelectorAll("h1, h2, h3, p, caption, figcaption, img, td.text, td:first-child")]
  .filter(part => part.getBoundingClientRect().right > 391 || part.getBoundingClientRect().left < -1)
  .map(part => part.outerHTML.slice(0, 200))"""


@pytest.fixture
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"], timeout=1000 * _PATIENCE)
        yield opened
        opened.close()


def test_the_page_in_a_browser(browser: Any, plan: Plan, data: Path, tmp_path: Path) -> None:
    """All of it at once, since starting a browser is what takes the time."""
    (data / "03.png").write_bytes(b"nothing")  # so that the page has failures to show
    methods = (*plan.methods, "center_map", "smooth(input_x_gradient, n=2, sigma=0.1234567, seed=5)")
    made = replace(plan, methods=methods, maps="float16", targets=("top1", "label"))
    run(made, tmp_path / "run", model=tiny_model())
    address = write_report(tmp_path / "run").as_uri()
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(1000 * _PATIENCE)
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type in ("error", "warning") else None)
    page.on("request", lambda r: None if r.url.startswith((address, "data:")) else problems.append(r.url))
    page.goto(address)
    assert page.evaluate("document.images.length") >= 4 * 2 + 5
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    # The better end comes first: the largest of what should be high, the smallest of what should be low.
    for table, arrow in enumerate("↑↓"):
        assert arrow in page.evaluate(_HEAD, table)
        button = f"table >> nth={table} >> thead >> button >> nth=1"
        page.click(button)
        once = [float(value) for value in page.evaluate(_COLUMN, [table, 1])]
        assert len(set(once)) == 4 and once == sorted(once, reverse=arrow == "↑")
        page.click(button)
        assert [float(value) for value in page.evaluate(_COLUMN, [table, 1])] == once[::-1]
    page.click("table >> nth=0 >> thead >> button >> nth=0")
    names = page.evaluate(_COLUMN, [0, 0])
    assert len(names) == 4 and names == sorted(names)
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate(_CUT_OFF) == []
    assert problems == []


def test_a_page_with_many_images_and_methods_stays_small(plan: Plan, tmp_path: Path) -> None:
    """200 images x 20 methods. Noise is what compresses worst, so real pictures give smaller pages."""
    folder, methods = tmp_path / "run", [f"method_{number}" for number in range(20)]
    run(replace(plan, limit=1, methods=("gradient",), metrics=plan.metrics[:1]), folder, model=tiny_model())
    (like,) = read_cells(folder)
    random = np.random.default_rng(0)
    with RunStore(folder, rank=1) as store:
        noise = Image.fromarray(random.integers(0, 255, (384, 384, 3), dtype=np.uint8))
        picture = store.keep_picture(noise)
        where = store.keep_map(random.random((384, 384), dtype=np.float32), "float16")
        for image in range(200):
            for method in methods:
                rows = [[name, reference, random.random()] for name, reference, _ in like["found"][0]["rows"]]
                found = [{**like["found"][0], "target": image % 5, "rows": rows, "map": where}]
                cell = {**like, "key": f"{image}x{method}-s", "image": f"{image}.jpg", "method": method, "found": found}
                store.add([{**cell, "picture": picture}])
    page = write_report(folder)
    text = page.read_bytes()
    assert text.count(b"data:image/jpeg") == 6 * 9  # the most telling cases, each with its best and worst methods
    assert len(text) < _LARGEST


def renderer(figure: Figure) -> Any:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def test_names_are_clear_of_error_bars_and_of_each_other() -> None:
    """Five methods of nearly the same time, whose errors overlap."""
    points = {f"method_{i}(steps=20)": (0.02 * 1.3**i, 0.2 + 0.02 * i, 0.08) for i in range(5)}
    figure = plot_trade_off(points, quality="Ins-Del", direction="higher", title="close")
    axis, drawn = figure.axes[0], renderer(figure)
    names = [text.get_window_extent(drawn) for text in axis.texts]
    bars = [axis.transData.transform([(x, y - error), (x, y + error)]) for x, y, error in points.values()]
    assert len(names) == 5
    for name in names:
        for (x, low), (_, high) in bars:
            assert not (name.x0 < x < name.x1 and name.y0 < high and name.y1 > low)
    for one, other in combinations(names, 2):
        assert not one.overlaps(other)


def test_marks_of_the_time_axis_do_not_run_into_each_other() -> None:
    points = {"one": (0.029, 0.1, 0.01), "other": (0.7, 0.2, 0.01)}
    figure = plot_trade_off(points, quality="Ins-Del", direction="higher", title="times")
    axis, drawn = figure.axes[0], renderer(figure)
    marks = [m.get_window_extent(drawn) for m in axis.get_xticklabels(which="both") if m.get_text() and m.get_visible()]
    inside = [mark for mark in marks if axis.bbox.x0 <= mark.x0 and mark.x1 <= axis.bbox.x1]
    assert len(inside) >= 2
    assert not any(one.overlaps(other) for one, other in combinations(inside, 2))


@pytest.mark.parametrize("apart", [0.0, 1e-16, 4e-16, 1e-12])
def test_methods_that_take_the_same_time_can_be_drawn(apart: float) -> None:
    points = {"one": (0.002, 0.1, 0.01), "other": (0.002 * (1 + apart), 0.2, 0.01)}
    figure = plot_trade_off(points, quality="Ins-Del", direction="higher", title="both in 2 ms")
    left, right = figure.axes[0].get_xlim()
    assert left < 0.002 < right and as_bytes(figure, "svg")

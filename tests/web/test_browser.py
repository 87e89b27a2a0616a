"""Every view in a real browser; skipped where Playwright or a Chromium is missing."""

from __future__ import annotations

import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from asking import MODEL, png

from aha.web.app import create_app
from aha.web.runs import Run
from aha.web.workbench import Workbench

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZES = {"laptop": (1440, 900), "phone": (390, 844)}
_PATIENCE = 180  # seconds; a busy machine is slow, not wrong


@pytest.fixture(scope="module")
def address(bench: Workbench, finished_run: Path) -> Iterator[str]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(bench, [Run.read(finished_run)]), log_config=None, ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """A fresh page on which no script may fail and nothing may be asked of another host."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(1000 * _PATIENCE)
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda line: problems.append(line.text) if "Content Security" in line.text else None)
    opened.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else problems.append(r.url))
    opened.goto(address)
    yield opened
    context.close()
    assert problems == []


def upload(page: Any, seed: int = 1) -> None:
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": png(seed)})
    page.wait_for_selector("#classes .pick[aria-pressed=true]")


def until(page: Any, expression: str, arg: Any = None) -> None:
    """Asks again and again; Playwright's own waiting evaluates texts inside the page, which its CSP forbids."""
    end = time.monotonic() + _PATIENCE
    while not page.evaluate(expression, arg):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(50)


def wait_for_curves(page: Any, count: int = 1) -> None:
    until(page, f"document.querySelectorAll('#plot path').length >= {count}")


def pixels(page: Any, selector: str) -> str:
    """What a canvas shows."""
    content: str = page.eval_on_selector(selector, "canvas => canvas.toDataURL()")
    return content


def marker(page: Any) -> tuple[float, float]:
    """Where the main marker is, in the plot's own units."""
    found = page.locator("#plot circle").first
    return float(found.get_attribute("cx")), float(found.get_attribute("cy"))


def test_upload_shows_classes_maps_and_scores(page: Any) -> None:
    upload(page)
    wait_for_curves(page, 3)
    assert page.locator("#classes .pick").count() == 10
    assert page.locator(".tile").count() == 3
    until(page, "[...document.querySelectorAll('.tile .score')].every(e => /Ins-Del -?[0-9]/.test(e.textContent))")
    assert page.get_attribute("#download", "href").startswith("/api/bundle?maps=")


def test_another_class_gives_another_map(page: Any) -> None:
    upload(page)
    wait_for_curves(page, 3)
    before = pixels(page, ".tile canvas")
    page.keyboard.press("3")
    until(page, "document.querySelectorAll('#classes .pick')[2].getAttribute('aria-pressed') === 'true'")
    until(page, "before => document.querySelector('.tile canvas').toDataURL() !== before", arg=before)


def test_hovering_shows_values_in_all_views_and_zoom_is_shared(page: Any) -> None:
    upload(page)
    wait_for_curves(page, 3)
    page.locator(".tile canvas").first.hover()
    numbers = page.locator(".tile .value").all_text_contents()
    assert len(numbers) == 3
    assert all(re.fullmatch(r"-?[\d.]+(e[+-]\d+)?", text) for text in numbers), numbers
    second = pixels(page, ".tile:nth-child(2) canvas")
    page.mouse.wheel(0, -600)
    until(page, "before => document.querySelector('.tile:nth-child(2) canvas').toDataURL() !== before", arg=second)


def test_the_scrubber_moves_picture_and_marker_together(page: Any) -> None:
    upload(page)
    wait_for_curves(page, 3)
    page.locator("#scrub").fill("0")
    page.wait_for_timeout(100)
    picture, place = pixels(page, "#scrub-view"), marker(page)
    page.locator("#scrub").fill("400")
    page.wait_for_timeout(100)
    assert pixels(page, "#scrub-view") != picture
    assert marker(page)[0] > place[0] + 100
    reading = page.text_content("#reading")
    assert reading.startswith("Without the top 40 % of pixels")
    # All deleted shows the reference alone, which is black.
    page.locator("#scrub").fill("1000")
    page.wait_for_timeout(100)
    is_lit = page.eval_on_selector(
        "#scrub-view",
        "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v, i) => i % 4 < 3 && v > 0)",
    )
    assert not is_lit
    page.keyboard.press("Tab")
    page.locator("body").click(position={"x": 2, "y": 2})
    page.keyboard.press("d")
    until(page, "document.getElementById('reading').textContent.startsWith('With only')")


def test_contrast_names_the_classes_and_their_shares(page: Any) -> None:
    upload(page)
    page.locator("#tab-contrast").click()
    until(page, "document.querySelectorAll('#contrast-legend span').length === 2")
    page.locator("#winners").hover()
    until(page, "document.querySelector('#contrast .facts').textContent.includes(', ')")
    assert "rather than" in page.text_content("#contrast")


def test_refinement_says_what_is_missing(page: Any) -> None:
    upload(page)
    page.locator("#tab-refine").click()
    assert "aha train" in page.text_content("#refine-note")


def test_a_slow_method_is_cancelled(page: Any) -> None:
    upload(page)
    wait_for_curves(page, 3)
    page.locator("#method").fill("rise(n=5000)")
    page.locator("#add").click()
    tile = page.locator(".tile[data-method='rise(n=5000)']")
    tile.get_by_role("button", name="Cancel").click()
    until(page, "document.body.textContent.includes('Cancelled.')")
    page.locator("#method").fill("random_map")  # the model is free again
    page.locator("#add").click()
    wait_for_curves(page, 4)


def test_a_link_restores_the_view(page: Any, address: str) -> None:
    upload(page)
    wait_for_curves(page, 3)
    page.locator("#scrub").fill("330")
    page.locator("#reference").select_option("blur")
    page.locator("#mode").select_option("mask")
    page.locator("#share").click()
    until(page, "location.hash.startsWith('#s=')")
    link = page.url
    other = page.context.new_page()
    other.goto(link)
    wait_for_curves(other, 3)
    assert other.input_value("#scrub") == "330"
    assert other.input_value("#reference") == "blur"
    assert other.input_value("#mode") == "mask"


def test_a_bad_file_gets_one_line(page: Any) -> None:
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": b"no picture at all"})
    page.wait_for_selector("#message:not([hidden])")
    assert "not a picture" in page.text_content("#message")


def test_an_unknown_method_gets_one_line(page: Any) -> None:
    upload(page)
    page.locator("#method").fill("grad_can")
    page.locator("#add").click()
    until(page, "document.querySelector('.tile .failed')?.textContent.includes('grad_cam')")


def test_an_outlier_of_a_run_opens_in_the_explorer(page: Any) -> None:
    page.locator("#tab-runs").click()
    page.locator(".outlier button").click()
    page.wait_for_selector("#classes .pick[aria-pressed=true]")
    assert page.get_attribute("#classes .pick[aria-pressed=true]", "title") == "class 7"
    assert page.get_attribute("#tab-compare", "aria-selected") == "true"


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_the_screen(browser: Any, address: str, size: str, scheme: str) -> None:
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(1000 * _PATIENCE)
    page.goto(address)
    upload(page)
    wait_for_curves(page, 3)
    for tab in ("compare", "refine", "contrast", "runs"):
        page.locator(f"#tab-{tab}").click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
    context.close()


def test_the_page_names_its_model(page: Any) -> None:
    assert page.input_value("#model") == MODEL

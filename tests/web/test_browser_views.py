"""Refinement, contrast, runs, links, downloads, keys and looks in a real browser."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import (
    PATIENCE,
    SIZES,
    canvas,
    eventually,
    frames,
    map_keys,
    open_picture,
    set_slider,
    until,
    wait_for_curves,
)

# Texts whose contrast with what is behind them is below what WCAG 2 (AA) asks for.
_FAINT_TEXTS = """() => {
  const numbers = (colour) => { const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number); return [r, g, b, a]; };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const [r, g, b, a] = numbers(getComputedStyle(one).backgroundColor);
      if (a > 0.9) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    if (!own || !element.checkVisibility() || element.closest("[aria-disabled=true], option, datalist")) continue;
    const style = getComputedStyle(element);
    const colour = element instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(numbers(colour).slice(0, 3)), light(behind(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push(`${element.tagName} ${element.textContent.trim().slice(0, 40)}`);
  }
  return found;
}"""

_SMALL_TARGETS = """() => [...document.querySelectorAll("button, select, input, a.button, summary, label:has(input)")]
  .filter((one) => one.checkVisibility() && !one.matches(".away") && !(one.matches("input") && one.closest("label")))
  .map((one) => [one, one.getBoundingClientRect()])
  .filter(([, box]) => Math.min(box.width, box.height) < 24)
  .map(([one, box]) => `${one.tagName} ${one.id} ${one.className} ${box.width} x ${box.height}`)"""


def test_refinement_goes_step_by_step(page: Any) -> None:
    open_picture(page)
    page.locator("#tab-refine").click()
    page.locator("#refine-start").click()
    until(page, "document.querySelectorAll('#refine tbody tr').length === 6")
    page.mouse.move(2, 2)
    pictures, readings = [], []
    for step in range(6):
        set_slider(page, "#step", step)
        until(page, f"document.getElementById('refine-reading').textContent.startsWith('T = {step}:')")
        frames(page)
        pictures.append(canvas(page, "#refine-view"))
        readings.append(page.text_content("#refine-reading"))
        assert page.locator("#refine tr[aria-current=true] td").first.text_content() == str(step)
    assert (pictures[5] != pictures[0]).any()
    assert "over T = 0" in readings[5] and "over" not in readings[0]


def test_refinement_says_what_is_missing(page: Any) -> None:
    page.locator("#model").select_option("timm:test_vit")
    open_picture(page)
    page.locator("#tab-refine").click()
    eventually(page, lambda: "aha train" in page.text_content("#refine-note"))
    assert not page.is_visible("#refine-start")


def test_contrast_of_two_and_of_several_classes(page: Any) -> None:
    open_picture(page)
    page.locator("#tab-contrast").click()
    until(page, "document.querySelectorAll('#contrast-legend span').length === 2")
    page.locator("#winners").hover()
    until(page, "document.querySelector('figure:has(#winners) .facts').textContent.includes(', ')")
    shares = page.text_content("figure:has(#winners) .facts")
    assert sum(float(part.rsplit(" ", 1)[1]) for part in shares.split(", ")) == pytest.approx(1, abs=0.02)
    assert "rather than" in page.text_content("#contrast")
    page.mouse.move(2, 2)
    for place in (0, 3, 5):
        page.locator("#classes .rival input").nth(place).check()
    until(page, "document.querySelectorAll('#contrast-legend span').length === 3")
    frames(page)
    before = canvas(page, "#rather")
    page.locator("#second").select_option("2")
    page.locator("#first").select_option("1")
    eventually(page, lambda: (canvas(page, "#rather") != before).any())


def test_an_outlier_of_a_run_opens_in_the_explorer(page: Any) -> None:
    page.locator("#model").select_option("timm:test_vit")
    page.locator("#tab-runs").click()
    eventually(page, lambda: page.locator("#run-content table").first.text_content().startswith("methodins_del"))
    page.locator(".outlier button").click()
    until(page, "document.querySelector('#classes .pick[aria-pressed=true]')?.title === 'class 7'")
    until(page, "document.getElementById('tab-compare').getAttribute('aria-selected') === 'true'")
    assert page.input_value("#model") == "timm:test_resnet"  # the one that was measured


def test_a_link_restores_the_view(page: Any) -> None:
    open_picture(page, methods=4)
    page.locator("#classes .pick").nth(1).click()
    until(page, "document.querySelectorAll('#classes .pick')[1].getAttribute('aria-pressed') === 'true'")
    chosen = page.locator("#classes .pick").nth(1).get_attribute("title")
    set_slider(page, "#scrub", 330)
    until(page, "document.querySelectorAll('#by option').length === 4")
    page.locator("#by").select_option("2")
    page.locator("#reference").select_option("mean")
    page.locator("#mode").select_option("mask")
    page.locator(".tile > canvas").first.press("+")
    page.locator("#share").click()
    until(page, "location.hash.startsWith('#s=')")
    until(page, "async () => (await navigator.clipboard.readText()) === location.href")
    other = page.context.new_page()
    other.goto(page.url)
    wait_for_curves(other, 4)
    assert other.get_attribute("#classes .pick[aria-pressed=true]", "title") == chosen
    assert [other.input_value(f"#{name}") for name in ("scrub", "reference", "mode", "by")] == [
        "330",
        "mean",
        "mask",
        "2",
    ]
    wait_for_curves(page, 4)
    page.mouse.move(2, 2)
    eventually(page, lambda: (canvas(other, "#scrub-view") == canvas(page, "#scrub-view")).all())


def test_a_link_is_shown_where_there_is_no_clipboard(page: Any) -> None:
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    open_picture(page)
    page.locator("#share").click()
    until(page, "document.getElementById('message').textContent.includes('/#s=')")
    wait_for_curves(page, 1)
    page.locator("#code").click()
    page.locator("#dialog-copy").click()
    assert page.evaluate("getSelection().toString()").startswith("import")


def test_a_link_that_was_cut_short_is_said(page: Any, address: str) -> None:
    page.goto("about:blank")  # the page that is open keeps its address true, and would take the link out of it
    page.goto(f"{address}#s=0123")
    page.wait_for_selector("#message:not([hidden])")
    assert "link" in page.text_content("#message")


def test_maps_and_code_can_be_taken_away(page: Any, tmp_path: Path) -> None:
    open_picture(page, methods=4)
    with page.expect_download() as started:
        page.locator("#download").click()
    file = tmp_path / started.value.suggested_filename
    started.value.save_as(file)
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        manifest = json.loads(archive.read("manifest.json"))
        code = archive.read("reproduce.py").decode()
    assert len(manifest["items"]) == len(map_keys(page)) == 4
    assert {"picture.png", "reproduce.py"} <= set(names) and sum(name.endswith(".npz") for name in names) == 4
    page.locator("#code").click()
    page.wait_for_selector("#dialog[open]")
    assert page.text_content("#dialog-text") == code
    page.locator("#dialog-copy").click()
    until(page, "async code => (await navigator.clipboard.readText()) === code", code)
    page.keyboard.press("Escape")
    assert not page.is_visible("#dialog")


def test_everything_is_within_reach_of_the_keyboard(page: Any) -> None:
    open_picture(page, methods=4)
    page.locator("body").click(position={"x": 2, "y": 2})
    reached = set()
    for _ in range(90):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.className"))
        if "scrub" in reached:
            break
    wanted = {"model", "tab-compare", "share", "code", "download", "help", "file", "folder", "pick", "class-search"}
    assert wanted | {"method", "add", "mode", "opacity", "cmap", "signed", "by", "reference", "scrub"} <= reached
    page.locator("#tab-compare").focus()
    page.keyboard.press("ArrowRight")
    until(page, "document.getElementById('tab-refine').getAttribute('aria-selected') === 'true'")
    page.keyboard.press("ArrowLeft")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("2")
    until(page, "document.querySelectorAll('#classes .pick')[1].getAttribute('aria-pressed') === 'true'")
    before = int(page.input_value("#scrub"))
    page.keyboard.press("]")
    eventually(page, lambda: int(page.input_value("#scrub")) == before + 10)
    page.keyboard.press("d")
    eventually(page, lambda: page.is_checked("input[name=kind][value=insert]"))
    page.keyboard.press("?")
    page.wait_for_selector("#dialog[open]")
    page.keyboard.press("Escape")
    view = page.locator(".tile > canvas").first
    whole = canvas(page, ".tile > canvas")
    view.press("+")
    view.press("ArrowRight")
    eventually(page, lambda: (canvas(page, ".tile > canvas") != whole).any())


@pytest.mark.parametrize(
    ("scheme", "size"),
    [
        ("light", "laptop"),
        ("dark", "phone"),
        pytest.param("light", "phone", marks=pytest.mark.slow),
        pytest.param("dark", "laptop", marks=pytest.mark.slow),
    ],
)
def test_every_view_fits_and_can_be_read(browser: Any, address: str, scheme: str, size: str) -> None:
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(address)
    open_picture(page, methods=4)
    for tab in ("compare", "refine", "contrast", "paint", "runs"):
        page.locator(f"#tab-{tab}").click()
        if tab == "runs":
            page.wait_for_selector("#run-images td")
        if tab == "contrast":
            until(page, "document.querySelectorAll('#contrast-legend span').length === 2")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
        assert page.evaluate(_FAINT_TEXTS) == [], tab
        assert page.evaluate(_SMALL_TARGETS) == [], tab
    paper = np.array(page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"))
    assert (paper.mean() < 64) == (scheme == "dark")
    context.close()

"""Pictures, classes, maps and the scrubber in a real browser; skipped where Playwright or a Chromium is missing."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
from asking import MODEL, png
from browsing import (
    NUMBER,
    PATIENCE,
    add_method,
    canvas,
    canvases,
    eventually,
    frames,
    map_keys,
    open_picture,
    set_slider,
    until,
    wait_for_curves,
)

from aha.methods.cost import Cost
from aha.web import policy
from aha.web.workbench import Workbench

# Files for the page, made inside it: a real clipboard or desktop cannot be had here.
_HAND_OVER = """([event, text]) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), given = new DataTransfer();
  given.items.add(new File([bytes], "given.png", { type: "image/png" }));
  document.dispatchEvent(event === "paste" ? new ClipboardEvent("paste", { clipboardData: given })
    : new DragEvent("drop", { dataTransfer: given, cancelable: true }));
}"""


def test_upload_shows_classes_maps_and_scores(page: Any) -> None:
    assert page.input_value("#model") == MODEL
    open_picture(page, methods=4)
    assert page.locator("#classes .pick").count() == 10
    assert page.locator(".tile").count() == 4
    until(page, "[...document.querySelectorAll('.tile .score')].every(e => /Ins-Del -?[0-9]/.test(e.textContent))")


@pytest.mark.parametrize("event", ["paste", "drop"])
def test_pictures_come_in_by_clipboard_and_mouse(page: Any, event: str) -> None:
    page.evaluate(_HAND_OVER, [event, base64.b64encode(png(2)).decode()])
    page.wait_for_selector("#classes .pick[aria-pressed=true]")
    page.wait_for_selector("#thumbnail")  # visible once it is there


def test_examples_and_several_files(page: Any) -> None:
    page.locator("#gallery button").nth(1).click()
    page.wait_for_selector("#classes .pick[aria-pressed=true]")
    files = [{"name": f"{n}.png", "mimeType": "image/png", "buffer": png(n)} for n in (11, 12)]
    page.set_input_files("#file", files)
    until(page, "document.querySelectorAll('#strip button').length === 3")
    until(page, "document.querySelector('#strip button[aria-current=true]')?.title === '11.png'")


def test_a_frame_shows_what_the_model_sees(page: Any, shown_bench: Workbench) -> None:
    wide = {"name": "wide.png", "mimeType": "image/png", "buffer": png(3, (120, 40))}
    page.set_input_files("#file", wide)
    page.wait_for_selector("#frame:not([hidden])")
    # The address follows once the view has settled: before, it may speak of no picture yet.
    until(page, "JSON.parse(decodeURIComponent(location.hash.slice(3)) || '{}').picture")
    frame, whole = (page.locator(selector).bounding_box() for selector in ("#frame", "#thumbnail"))
    window = page.evaluate(
        "async () => (await fetch(`/api/pictures/${JSON.parse(decodeURIComponent(location.hash.slice(3))).picture}"
        "/window?model=timm:test_resnet`)).json()"
    )
    assert 0.2 < window["right"] - window["left"] < 0.4  # a square out of a picture three times as wide as high
    assert frame["width"] / whole["width"] == pytest.approx(window["right"] - window["left"], abs=0.03)
    assert (frame["x"] - whole["x"]) / whole["width"] == pytest.approx(window["left"], abs=0.03)


def test_a_bad_file_gets_one_line(page: Any) -> None:
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": b"no picture at all"})
    page.wait_for_selector("#message:not([hidden])")
    assert "not a picture" in page.text_content("#message")


def test_each_bad_file_among_several_is_named(page: Any) -> None:
    bad = [
        {"name": name, "mimeType": "image/png", "buffer": b"no picture at all"} for name in ("first.png", "last.png")
    ]
    text = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"words"}
    page.set_input_files(
        "#file", [bad[0], {"name": "good.png", "mimeType": "image/png", "buffer": png(5)}, text, bad[1]]
    )
    eventually(page, lambda: "last.png" in page.inner_text("#message"))
    told = page.inner_text("#message")
    assert "first.png:" in told and "notes.txt: not a picture" in told and "good.png" not in told


def test_the_scrubber_starts_with_blur(page: Any) -> None:
    """With black, random pixels take the probability away as fast as any map does."""
    open_picture(page)
    assert page.input_value("#reference") == "blur"


def test_another_class_gives_another_map(page: Any) -> None:
    open_picture(page, methods=4)
    before = map_keys(page)
    page.locator("#classes .pick").nth(2).click()
    until(page, "document.querySelectorAll('#classes .pick')[2].getAttribute('aria-pressed') === 'true'")
    until(
        page,
        "before => (document.getElementById('download').href.split('=')[1] ?? before).split(',')[0] !== before",
        before[0],
    )
    page.locator("#class-search").press_sequentially("281", delay=150)  # any other, by number or by name
    page.locator("#class-search").press("Enter")
    until(page, "document.querySelector('#classes .pick[aria-pressed=true]').title === 'class 281'")
    assert "tabby" in page.text_content("#classes .pick[aria-pressed=true]")


def test_another_model_answers_anew(page: Any) -> None:
    open_picture(page)
    before = page.text_content("#classes")
    page.locator("#model").select_option("timm:test_vit")
    until(
        page,
        "before => ![before, ''].includes(document.getElementById('classes').textContent)",  # empty while it is asked
        before,
    )


def test_hovering_shows_the_values_of_all_maps(page: Any, shown_bench: Workbench) -> None:
    open_picture(page, methods=4)
    box = page.locator(".tile > canvas").nth(1).bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.6)
    frames(page)
    eventually(page, lambda: all(NUMBER.fullmatch(text) for text in page.locator(".tile .value").all_text_contents()))
    shown = page.locator(".tile .value").all_text_contents()
    for text, key in zip(shown, map_keys(page), strict=True):
        values = shown_bench.store.array(key, "values")
        height, width = values.shape
        # In single pixels the browser may round the other way; the map holds half-precision shares of its peak.
        near = values[int(height * 0.6) - 1 : int(height * 0.6) + 2, int(width * 0.3) - 1 : int(width * 0.3) + 2]
        assert np.abs(near - float(text)).min() <= 0.01 * np.abs(values).max()


def test_zoom_and_movement_are_shared(page: Any) -> None:
    open_picture(page, methods=4)
    views = ".tile > canvas, #scrub-view"

    def seen() -> list[np.ndarray[Any, Any]]:
        page.mouse.move(2, 2)  # no cross in the pictures
        frames(page)
        return canvases(page, views)

    def all_differ(one: list[np.ndarray[Any, Any]], other: list[np.ndarray[Any, Any]]) -> bool:
        return len(one) == len(other) == 5 and all((a != b).any() for a, b in zip(one, other, strict=True))

    eventually(page, lambda: canvas(page, "#scrub-view").any())  # empty until what it is perturbed by is fetched
    whole = seen()
    page.locator(views).first.click()  # the wheel is for the page until then
    page.mouse.wheel(0, -600)
    eventually(page, lambda: all_differ(whole, seen()))
    near = seen()
    box = page.locator(views).nth(2).bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] + 70, steps=3)
    page.mouse.up()
    eventually(page, lambda: all_differ(near, seen()))
    page.locator(views).first.dblclick()
    eventually(page, lambda: all((a == b).all() for a, b in zip(seen(), whole, strict=True)))


def alike(pictures: list[np.ndarray[Any, Any]]) -> bool:
    return all((one == pictures[0]).all() for one in pictures)


def test_opacity_colours_sign_and_mask(page: Any) -> None:
    open_picture(page, methods=4)
    tile = ".tile:nth-child(2) > canvas"
    page.mouse.move(2, 2)
    set_slider(page, "#opacity", 0)
    # Nothing but the picture. Here and below, what is drawn may wait for colours that are being fetched.
    eventually(page, lambda: alike(canvases(page, ".tile > canvas")))
    clear = canvases(page, ".tile > canvas")
    set_slider(page, "#opacity", 1)
    eventually(page, lambda: (canvas(page, tile) != clear[0]).any())
    overlay = canvas(page, tile)
    bar = ".tile:nth-child(2) canvas.scale"
    automatic = canvas(page, bar)
    page.locator("#mode").select_option("map")
    page.locator("#cmap").select_option("viridis")
    eventually(page, lambda: (canvas(page, bar) != automatic).any())  # once the colours are fetched
    frames(page)
    eventually(page, lambda: (canvas(page, tile) != overlay).any())
    plain = canvas(page, tile)
    page.locator("#signed").select_option("yes")
    eventually(page, lambda: (canvas(page, tile) != plain).any())
    page.locator("#signed").select_option("no")
    eventually(page, lambda: (canvas(page, tile) == plain).all())
    page.locator("#mode").select_option("mask")
    set_slider(page, "#top", 100)
    eventually(page, lambda: np.abs(canvas(page, tile) - clear[0]).max() <= 1)
    set_slider(page, "#top", 25)
    dark = 0.5 * clear[0].sum(axis=2)
    eventually(page, lambda: (canvas(page, tile).sum(axis=2) < dark).mean() == pytest.approx(0.75, abs=0.08))


def test_the_scrubber_moves_picture_and_marker_together(page: Any) -> None:
    open_picture(page, methods=4)
    page.locator("#reference").select_option("black")
    page.mouse.move(2, 2)
    marker = page.locator("#plot circle").first
    places, heights = [], []
    for share in (0, 0.25, 0.5, 0.75, 1):
        set_slider(page, "#scrub", 1000 * share)
        wanted = pytest.approx(share, abs=0.1)
        eventually(page, lambda wanted=wanted: (canvas(page, "#scrub-view").max(axis=2) <= 2).mean() == wanted)
        places.append(float(marker.get_attribute("cx")))
        heights.append(page.text_content("#reading"))
    steps = np.diff(places)
    assert steps.min() > 50 and np.allclose(steps, steps[0], atol=0.5)
    assert heights[1].startswith("Without the top 25 % of pixels") and len(set(heights)) == 5
    page.locator("label:has(> input[value=insert])").click()
    until(page, "document.getElementById('reading').textContent.startsWith('With only')")
    # All inserted is all of the picture.
    eventually(page, lambda: (canvas(page, "#scrub-view").max(axis=2) > 2).mean() > 0.95)
    page.locator("#reference").select_option("white")
    set_slider(page, "#scrub", 0)
    until(page, "document.querySelectorAll('#plot path:not(.bound)').length >= 4")
    eventually(page, lambda: canvas(page, "#scrub-view").min() >= 253)
    box = page.locator("#plot svg").bounding_box()  # the plot itself is a slider, too
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    eventually(page, lambda: 400 < float(page.input_value("#scrub")) < 600)


def test_methods_come_and_go(page: Any) -> None:
    open_picture(page, methods=4)
    add_method(page, "center_map")
    wait_for_curves(page, 5)
    assert page.locator("#legend span:not(.bound)").count() == 5
    page.get_by_role("button", name="Remove center_map").click()
    eventually(page, lambda: page.locator(".tile").count() == page.locator("#legend span:not(.bound)").count() == 4)


def test_a_slow_method_is_cancelled(page: Any) -> None:
    open_picture(page, methods=4)
    add_method(page, "rise(n=5000)")
    tile = page.locator(".tile[data-method='rise(n=5000)']")
    tile.get_by_role("button", name="Cancel").hover()
    page.mouse.down()
    page.wait_for_timeout(900)  # a slow finger: progress is told meanwhile
    page.mouse.up()
    until(page, "document.body.textContent.includes('Cancelled.')")
    add_method(page, "random_map")  # the model is free again
    wait_for_curves(page, 5)


def test_a_visitor_who_leaves_waits_for_nothing(
    page: Any, shown_bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "BUDGET", Cost(passes=10**7, bytes=2**40))  # so that there is something to wait for
    open_picture(page, methods=4)
    with page.expect_response(lambda answer: "smooth(rise" in (answer.request.post_data or "")) as asked:
        add_method(page, "smooth(rise(n=5000), n=100)")
    key = asked.value.json()["answers"][0]["key"]
    until(page, "document.querySelector('.tile:last-child .progress') !== null")
    page.goto("about:blank")
    job = shown_bench.jobs.wait(key, PATIENCE)
    assert job is not None and job.status == "cancelled"


def test_what_is_asked_for_again_comes(page: Any) -> None:
    open_picture(page, methods=4)
    add_method(page, "rise(n=300)")
    until(page, "document.querySelector('.tile:last-child .progress') !== null")
    page.locator("#classes .pick[aria-pressed=true]").click()  # the same again, while it is under way
    wait_for_curves(page, 5)
    assert page.evaluate("document.activeElement.matches('#classes .pick[aria-pressed=true]')")


def test_without_methods_there_is_nothing_to_complain_of(page: Any) -> None:
    open_picture(page, methods=4)
    while page.locator(".tile .close").count():
        page.locator(".tile .close").first.click()
    page.locator("#classes .pick").nth(1).click()
    until(page, "document.querySelectorAll('#classes .pick')[1].getAttribute('aria-pressed') === 'true'")
    frames(page, 30)
    assert page.locator("#message").is_hidden() and page.locator(".tile").count() == 0

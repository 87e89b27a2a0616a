"""What people stumbled over, once each on a laptop and on a phone."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import (
    NUMBER,
    SIZES,
    add_method,
    canvas,
    canvases,
    eventually,
    frames,
    new_page,
    open_picture,
    set_slider,
    until,
    wait_for_curves,
)

_MAPS = ".tile > canvas"
_OTHER = "timm:test_vit"


@pytest.fixture(params=list(SIZES))
def sized(request: pytest.FixtureRequest, browser: Any, address: str) -> Iterator[Any]:
    """A page of a laptop, and of a phone."""
    width, height = SIZES[request.param]
    with new_page(browser, address, width=width, height=height) as page:
        yield page


def test_picture_and_first_map_are_on_the_first_screen(sized: Any) -> None:
    open_picture(sized)
    for selector in (_MAPS, "#thumbnail"):
        sized.wait_for_selector(selector)
    height = sized.viewport_size["height"]
    bar = sized.locator(".actions").bounding_box()
    floor = bar["y"] if bar["y"] > height / 2 else height  # on a phone the actions lie along the bottom
    for selector in ("#thumbnail", _MAPS):
        box = sized.locator(selector).first.bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= floor, (selector, box)


def test_the_wheel_scrolls_unless_the_map_was_clicked(sized: Any) -> None:
    open_picture(sized, methods=4)
    sized.mouse.move(2, 2)
    frames(sized)
    whole = canvas(sized, _MAPS)
    box = sized.locator(_MAPS).first.bounding_box()
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    sized.mouse.move(*middle)
    sized.mouse.wheel(0, 120)
    until(sized, "window.scrollY > 0")
    sized.evaluate("window.scrollTo(0, 0)")
    sized.mouse.move(2, 2)
    eventually(sized, lambda: (canvas(sized, _MAPS) == whole).all())
    sized.mouse.click(*middle)
    sized.mouse.wheel(0, -600)
    sized.mouse.move(2, 2)
    eventually(sized, lambda: (canvas(sized, _MAPS) != whole).any())
    assert sized.evaluate("window.scrollY") == 0
    sized.locator("#help").click()
    text = sized.text_content("#dialog-text")
    assert all(word in text for word in ("wheel", "Ctrl", "[ and ]", "arrows", "two\nfingers"))


# In one go, before the server can have answered anything.
_STALE = """(model) => {
  const choice = document.getElementById("model");
  choice.value = model;
  choice.dispatchEvent(new Event("change"));
  const shown = (selector) => document.querySelectorAll(selector).length;
  return { classes: shown("#classes .pick"), curves: shown("#plot path"),
    download: document.getElementById("download").href,
    scores: [...document.querySelectorAll(".tile .score")].map((one) => one.textContent),
    ends: [...document.querySelectorAll(".tile .ends")].filter((one) => !one.hidden).length };
}"""


def test_nothing_of_another_model_stays_in_sight(sized: Any) -> None:
    open_picture(sized, methods=4)
    until(sized, "document.querySelectorAll('.tile .ends:not([hidden])').length === 4")
    left = sized.evaluate(_STALE, _OTHER)
    assert (left["classes"], left["curves"], left["download"], left["ends"]) == (0, 0, "", 0)
    assert set(left["scores"]) == {"Ins-Del …"}
    until(sized, "document.querySelectorAll('#classes .pick').length === 10")
    wait_for_curves(sized, 3)


class _Held:
    """Requests that wait until they are let through."""

    def __init__(self, page: Any, pattern: str) -> None:
        self.waiting: list[Any] = []
        self.is_open = False
        page.route(pattern, lambda route: route.continue_() if self.is_open else self.waiting.append(route))

    def release(self) -> None:
        self.is_open = True
        for route in self.waiting:
            route.continue_()


def test_what_comes_late_belongs_to_nothing_any_more(page: Any) -> None:
    references = _Held(page, "**/reference?*")
    open_picture(page, methods=4)
    until(page, "document.querySelectorAll('.tile .ends:not([hidden])').length === 4")
    eventually(page, lambda: references.waiting)
    classes = _Held(page, "**/api/classes")
    page.evaluate(_STALE, _OTHER)
    with page.expect_response("**/reference?*"):
        references.release()  # the picture that they were for is gone
    frames(page)
    classes.release()
    wait_for_curves(page, 3)


def test_the_last_chosen_colours_stay(page: Any) -> None:
    open_picture(page, methods=4)
    page.mouse.move(2, 2)
    until(page, "document.querySelectorAll('.tile .ends:not([hidden])').length === 4")
    before = canvases(page, _MAPS)
    page.locator("#cmap").select_option("magma")
    eventually(page, lambda: (canvases(page, _MAPS)[-1] != before[-1]).any())
    late = _Held(page, "**/api/colours/viridis")
    frames(page)
    wanted = canvases(page, _MAPS)
    page.locator("#cmap").select_option("viridis")
    eventually(page, lambda: late.waiting)
    page.locator("#cmap").select_option("magma")
    frames(page)
    with page.expect_response("**/api/colours/viridis"):
        late.release()
    frames(page)
    assert all((one == other).all() for one, other in zip(canvases(page, _MAPS), wanted, strict=True))


def test_a_refused_method_leaves_no_tile(sized: Any) -> None:
    open_picture(sized, methods=4)
    for wrong, word in (("grad_can", "grad_cam"), ("legrad", "attention")):
        add_method(sized, wrong)
        sized.wait_for_selector("#message:not([hidden])")
        until(sized, "word => document.getElementById('message').textContent.includes(word)", word)
        eventually(sized, lambda wrong=wrong: sized.input_value("#method") == wrong)  # to be put right
        eventually(sized, lambda: sized.locator(".tile").count() == 4)
    add_method(sized, "center_map")
    wait_for_curves(sized, 5)
    eventually(sized, lambda: sized.input_value("#method") == "")


def test_an_unknown_class_is_said(sized: Any) -> None:
    open_picture(sized)
    before = sized.get_attribute("#classes .pick[aria-pressed=true]", "title")
    search = sized.locator("#class-search")
    search.fill("tabbby")
    search.press("Enter")
    until(sized, "document.getElementById('message').textContent.includes('has no class “tabbby”')")
    assert "tabby" in sized.text_content("#message").partition("”")[2]
    search.fill("spaniel")
    search.press("Enter")
    until(sized, "document.getElementById('message').textContent.includes('can mean')")
    sized.locator("#tab-paint").click()
    assert sized.locator("#message").is_hidden()  # it was about the view that was left
    sized.locator("#tab-compare").click()
    assert sized.get_attribute("#classes .pick[aria-pressed=true]", "title") == before
    search.fill("tabby")
    search.press("Enter")
    until(sized, "document.querySelector('#classes .pick[aria-pressed=true]').title === 'class 281'")


def test_a_download_waits_for_its_maps(sized: Any, tmp_path: Path) -> None:
    sized.locator("#download").click()
    until(sized, "document.getElementById('message').textContent.includes('open a picture')")
    open_picture(sized, methods=4)
    maps = _Held(sized, "**/ranks")  # the next one is under way until it is let through
    add_method(sized, "center_map")
    until(sized, "document.querySelectorAll('.tile').length === 5")
    with sized.expect_download() as started:
        sized.locator("#download").click()
        until(sized, "document.getElementById('message').textContent.includes('starts when center_map is there')")
        maps.release()
    started.value.save_as(tmp_path / "maps.zip")
    with zipfile.ZipFile(tmp_path / "maps.zip") as archive:
        assert sum(name.endswith(".npz") for name in archive.namelist()) == 5


def test_numbers_bounds_and_the_meaning_of_the_score(sized: Any) -> None:
    open_picture(sized, methods=4)
    until(sized, "document.querySelectorAll('.tile .ends:not([hidden])').length === 4")
    ends = sized.locator(".tile .ends span").all_text_contents()
    assert len(ends) == 8 and all(NUMBER.fullmatch(text) for text in ends), ends
    until(sized, "document.querySelectorAll('#plot path.bound.random').length === 1")
    assert "random pixels" in sized.text_content("#legend")
    score = sized.locator(".tile .score").first
    score.hover()
    meaning = score.evaluate("one => getComputedStyle(one, '::after').content")
    assert "insertion" in meaning and "deletion" in meaning


def test_how_good_it_could_be_is_looked_for_when_asked(sized: Any) -> None:
    open_picture(sized, methods=4)
    sized.locator("#reference").select_option("black")  # of random weights, blur's curves are flat
    until(sized, "document.querySelectorAll('#plot path.bound.random').length === 1")
    assert sized.locator("#plot .band").count() == 0
    sized.locator("#best").click()
    until(sized, "document.querySelectorAll('#plot .band').length === 1")
    assert "found by search" in sized.text_content("#legend")
    assert "to the best known (100 %): " in sized.text_content("#legend .room")
    deleting = sized.get_attribute("#plot .band", "points")
    sized.locator("input[name=kind][value=insert]").check(force=True)
    frames(sized)
    assert sized.get_attribute("#plot .band", "points") != deleting


# Orders with the same score for every reference, as the scrubber asks for them.
_ROOM = """async ({ bounds, orders }) => {
  const { roomOf } = await import("/static/scrubber.js");
  const room = roomOf(bounds, orders, (one) => one.score);
  return room && { best: room.best.name, texts: orders.map(room.textOf) };
}"""


def test_no_method_takes_more_than_all_of_the_room(page: Any) -> None:
    floor, searched = (
        {"kind": "random", "name": "random", "score": 0.1},
        {"kind": "searched", "name": "search", "score": 0.3},
    )
    orders = [{"name": name, "score": score} for name, score in (("a", 0.2), ("b", 0.5), ("c", 0.0))]
    found = page.evaluate(_ROOM, {"bounds": [floor, searched], "orders": orders})
    assert found["best"] == "b"  # a search over few parts may stay behind a map of pixels
    assert found["texts"] == [", 25 % of the best known", ", 100 % of the best known", ", below random pixels"]
    weak = page.evaluate(_ROOM, {"bounds": [floor, searched], "orders": orders[:1]})
    assert (weak["best"], weak["texts"]) == ("search", [", 50 % of the best known"])
    assert page.evaluate(_ROOM, {"bounds": [floor], "orders": orders}) is None  # nobody asked yet
    flat = page.evaluate(
        _ROOM, {"bounds": [floor, {**searched, "score": 0.11}], "orders": [{"name": "a", "score": 0.1}]}
    )
    assert flat["texts"] == [""]


def test_why_not_the_class_that_was_expected(sized: Any) -> None:
    open_picture(sized)
    named = sized.locator("#classes .pick span:first-of-type").all_text_contents()
    sized.locator("#classes .why").nth(1).click()  # the third class; the first is what the model says
    assert sized.get_attribute("#tab-contrast", "aria-selected") == "true"
    until(sized, "document.getElementById('change-sentence')?.textContent.length > 20")
    assert sized.text_content("#contrast-classes") == f"{named[0]} against {named[2]}"
    sentence = sized.text_content("#change-sentence")
    assert named[0] in sentence and named[2] in sentence
    sized.mouse.move(2, 2)
    set_slider(sized, "#change-share", 0)
    whole, reading = canvas(sized, "#change-view"), sized.text_content("#change-reading")
    set_slider(sized, "#change-share", 500)
    assert (canvas(sized, "#change-view") != whole).any()
    assert sized.text_content("#change-reading") != reading


def test_painting_moves_the_score(sized: Any) -> None:
    open_picture(sized)
    sized.locator("#tab-paint").click()
    until(sized, "document.getElementById('paint-reading')?.textContent.includes('With all of the picture')")
    sized.locator("#paint-view").scroll_into_view_if_needed()
    sized.mouse.move(2, 2)
    frames(sized)
    before, whole = sized.get_attribute("#paint-reading b", "title"), canvas(sized, "#paint-view")  # all digits
    box = sized.locator("#paint-view").bounding_box()
    sized.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.3)
    sized.mouse.down()
    sized.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + box["height"] * 0.6, steps=6)
    until(sized, "before => document.querySelector('#paint-reading b').title !== before", before)  # still down
    sized.mouse.up()
    sized.mouse.move(2, 2)
    until(sized, "/Without [1-9]/.test(document.getElementById('paint-reading').textContent)")
    frames(sized)
    gone = (canvas(sized, "#paint-view") != whole).any(axis=2).mean()
    assert gone > 0.02

    def told() -> float:
        found = NUMBER.search(sized.text_content("#paint-reading"))
        return float(found[0]) / 100 if found else 0

    eventually(sized, lambda: told() == pytest.approx(gone, abs=0.1))  # of the whole stroke, not of its beginning
    sized.locator("#paint-undo").click()
    until(sized, "before => document.querySelector('#paint-reading b').title === before", before)
    eventually(sized, lambda: (canvas(sized, "#paint-view") == whole).all())


def test_two_models_side_by_side(sized: Any) -> None:
    open_picture(sized, methods=4)
    sized.locator("#other").select_option(_OTHER)
    until(sized, "document.querySelectorAll('#tiles section').length === 2")
    first, second = (
        sized.locator(f"#tiles section[data-model='{name}'] .tile") for name in ("timm:test_resnet", _OTHER)
    )
    assert first.count() == 4
    until(sized, "document.querySelectorAll('#plot path.dashed').length >= 2")
    assert 2 <= second.count() <= 4  # what does not fit it leaves no tile
    assert sized.is_visible("#beside") and _OTHER in sized.text_content("#beside")
    sized.mouse.move(2, 2)
    drawn = "#tiles section .tile[data-method=grad_cam]:has(.ends:not([hidden])) > canvas"
    eventually(sized, lambda: sized.locator(drawn).count() == 2)
    frames(sized)
    pictures = canvases(sized, drawn)
    assert (pictures[0] != pictures[1]).any()
    sized.locator("#other").select_option("")
    until(sized, "document.querySelectorAll('#tiles section').length === 1")
    eventually(sized, lambda: not sized.is_visible("#beside"))


def test_a_second_model_that_answers_late_is_not_shown(page: Any) -> None:
    open_picture(page, methods=4)
    classes = _Held(page, "**/api/classes?*")
    page.locator("#other").select_option(_OTHER)
    eventually(page, lambda: classes.waiting)
    page.locator("#other").select_option("")
    with page.expect_response("**/api/classes?*"):
        classes.release()
    wait_for_curves(page, 4)
    assert page.locator("#tiles section").count() == 1 and not page.is_visible("#beside")


def test_refinement_shows_each_step_as_it_comes(sized: Any) -> None:
    open_picture(sized)
    sized.locator("#tab-refine").click()
    sized.evaluate("""() => {
      window.seen = new Set();
      window.told = new Set();
      new MutationObserver(() => {
        window.seen.add(document.querySelectorAll("#refine tbody tr").length);
        window.told.add(document.getElementById("refine-running")?.textContent ?? "");
      }).observe(document.getElementById("refine"), { childList: true, subtree: true });
    }""")
    sized.locator("#refine-start").click()
    until(sized, "document.querySelectorAll('#refine tbody tr').length === 6")
    assert {1, 2, 3, 4, 5, 6} <= set(sized.evaluate("[...window.seen]"))
    # May be none: a second window gets steps that are known, and on a busy machine they come faster than they are told.
    told = [text for text in sized.evaluate("[...window.told]") if text]
    shape = r"T = [0-5], \d{1,3} %: its (curves are measured|map is drawn)"
    assert all(re.fullmatch(shape, text) for text in told)

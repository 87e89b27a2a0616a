"""The gallery page: complete, self-contained, and safe whatever the names in it."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from aha.data.batches import Subject
from aha.models import load_model
from aha.models.loading.preprocessing import Geometry
from aha.results import gallery
from aha.results.explanation import Explanation
from aha.results.gallery import ExplainedClass, Frame, Gallery, MapCell, MethodColumn, Photograph, Prediction

VOID = {"meta", "img", "wbr", "br"}


class Outline(HTMLParser):
    """Tags that were opened, and whether each was closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def explanation(method: str, values: np.ndarray, original: tuple[int, int] = (600, 900)) -> Explanation:
    """Two classes of one photograph whose model input is the square in its middle."""
    height, width = original
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))
    geometry = Geometry(original, values.shape, (0.0, (width - height) / 2, float(height), (width + height) / 2))
    maps = torch.as_tensor(values, dtype=torch.float32).expand(2, -1, -1)
    subject = Subject("photo.png", picture, geometry)
    return Explanation(
        maps=maps,
        targets=torch.tensor([3, 1]),
        scores=torch.tensor([0.75, 0.125]),
        subjects=[subject, subject],
        labels=["tabby", "lynx"],
        method=method,
        model="fake:model",
        seconds=1.0,
        digest="0" * 32,
    )


@pytest.fixture
def page() -> Gallery:
    rising = np.linspace(0, 1, 64).reshape(8, 8)
    explanations = [explanation("grad_cam", rising), explanation("smooth(gradient, n=4)", rising - 0.5)]
    predictions = [Prediction("tabby", 0.75), Prediction("lynx", 0.125), Prediction("sock", 0.01)]
    return Gallery(
        title="Which pixels?",
        model={"model": "fake:model"},
        columns=[MethodColumn("grad_cam", "Where.", 0.5), MethodColumn("smooth(gradient, n=4)", "How.", 2.25)],
        photographs=[gallery.photograph("A cat", explanations, predictions)],
        command="aha demo --out 'a b'",
        python='print("<maps> & more")\n',
        seconds=12.0,
    )


def test_page_shows_everything(page: Gallery) -> None:
    text = gallery.page(page)
    outline = Outline(text)
    words = " ".join(" ".join(outline.texts).split())
    for word in (
        "Which pixels?",
        "fake:model",
        "A cat",
        "tabby",
        "75.0 %",
        "12.5 %",
        "sock",
        "2.25 s",
        "12 s",
        "Where.",
    ):
        assert word in words
    assert "aha demo --out 'a b'" in words
    assert 'print("<maps> & more")' in words
    assert outline.count("figure") == 4  # two classes, two methods
    assert outline.count("img") == 5
    assert sum(attributes.get("class") == "explained" for _, attributes in outline.tags) == 2
    assert "torch" in words


def test_page_needs_nothing_from_anywhere(page: Gallery) -> None:
    text = gallery.page(page)
    outline = Outline(text)
    assert outline.count("script") == outline.count("link") == outline.count("iframe") == 0
    assert all((attributes["src"] or "").startswith("data:image/") for tag, attributes in outline.tags if tag == "img")
    assert re.findall(r"https?:|@import|//[a-z]", re.sub(r"data:image/jpeg;base64,[\w+/=]+", "", text)) == []
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text


def test_names_cannot_break_the_page(page: Gallery) -> None:
    evil = "<script>alert('1')</script>\"'>"
    photograph = replace(page.photographs[0], title=evil, predictions=[Prediction(evil, 0.5)])
    column = MethodColumn(evil, evil, 1.0)
    outline = Outline(gallery.page(replace(page, title=evil, photographs=[photograph], columns=[column, column])))
    assert outline.count("script") == 0
    assert evil in "".join(outline.texts)


def test_notes_are_shown_below_their_cell(page: Gallery) -> None:
    cell = MapCell("data:image/jpeg;base64,", 0.0, 1.0, is_signed=False, notes=("deletion 0.12", "insertion 0.80"))
    classes = [ExplainedClass("tabby", 0.75, [cell])]
    photograph = Photograph("A cat", "data:,", "data:,", Frame(0, 0, 100, 100), [], classes)
    words = " ".join(Outline(gallery.page(replace(page, photographs=[photograph]))).texts)
    assert "deletion 0.12" in words
    assert "insertion 0.80" in words


def test_cells_show_what_the_model_saw(page: Gallery) -> None:
    (photograph,) = page.photographs
    assert photograph.frame == Frame(left=pytest.approx(100 / 6), top=0, width=pytest.approx(100 / 1.5), height=100)
    assert decoded(photograph.picture).size == (480, 320)  # of 900 x 600
    assert decoded(photograph.seen).size == (480, 480)
    unsigned, signed = photograph.classes[0].cells
    assert decoded(unsigned.picture).size == (480, 480)
    assert (unsigned.is_signed, signed.is_signed) == (False, True)
    assert signed.low == -signed.high


def test_window_stays_inside_a_padded_picture() -> None:
    picture = Image.new("RGB", (40, 20))
    subject = Subject("wide.png", picture, Geometry((20, 40), (8, 8), (-10.0, 0.0, 30.0, 40.0)))
    assert gallery.window(subject) == (0, 0, 40, 20)


def test_small_pictures_are_not_enlarged() -> None:
    assert decoded(gallery.embedded(Image.new("RGB", (30, 20)))).size == (30, 20)


def test_predictions_are_the_best_classes_in_order() -> None:
    model = load_model("timm:test_resnet", pretrained=False)
    inputs = torch.randn(1, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    found = gallery.predictions(model, inputs, 5)
    scores, classes = model.outputs(inputs).softmax(dim=1)[0].topk(5)
    assert [prediction.label for prediction in found] == [model.class_name(int(index)) for index in classes]
    np.testing.assert_allclose([prediction.score for prediction in found], scores, rtol=1e-5)


def test_write_is_whole_or_not_at_all(page: Gallery, tmp_path: Path) -> None:
    gallery.write(page, tmp_path / "index.html")
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]
    assert (tmp_path / "index.html").read_text(encoding="utf-8") == gallery.page(page)


def decoded(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.removeprefix("data:image/jpeg;base64,"))))

"""Draws `images/notebook.jpg`: the widget of notebooks, as a browser shows it.

    python docs/draw_notebook.py

Needs Playwright and a Chromium. The photograph comes with scikit-image, the network is the demo's.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import aha
from aha.demo import MODEL, photographs

OUT = Path(__file__).parent / "images" / "notebook.jpg"
METHODS = ("aha", "grad_cam", "integrated_gradients(steps=20)")
WIDTH, HEIGHT = 1040, 900


def main() -> None:
    """Explains, writes the one-file page, and photographs it."""
    model = aha.load_model(MODEL, batch_size=8)
    first, *others = (aha.explain(model, photographs(["coffee.png"]), method, card=True) for method in METHODS)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        page_file = Path(folder) / "explained.html"
        first.to_html(page_file, *others)
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=1.25)
        page.goto(page_file.as_uri())
        page.wait_for_selector(".tile canvas")
        page.wait_for_timeout(1500)
        picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
        browser.close()
    picture.save(OUT, quality=85, optimize=True)


if __name__ == "__main__":
    main()

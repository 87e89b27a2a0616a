"""Draws `images/audit-*.png`: the parts of an audit of the demo's model and photographs, as a browser shows them.

    python docs/draw_audit.py [AUDIT]

Needs Playwright and a Chromium. It audits `aha` against the universal explainer, or takes the folder of a finished
audit.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

import aha
from aha.demo import MODEL, photographs

OUT = Path(__file__).parent / "images"
WIDTH = 1000
PARTS = ("fidelity", "repeatability", "reproducibility", "stability", "sensitivity", "shortcuts", "failures")


def main() -> None:
    """Audits, looks, and photographs."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(sys.argv[1]) / "audit.html" if sys.argv[1:] else _audited(Path(folder))
        with sync_playwright() as driver:
            browser = driver.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
            )
            view = browser.new_page(viewport={"width": WIDTH, "height": 900}, device_scale_factor=1.5)
            view.goto(page.resolve().as_uri())
            for name, place in {"head": "header", **{name: f"#{name}" for name in PARTS}}.items():
                _save(view.locator(place).screenshot(), OUT / f"audit-{name}.png")
            browser.close()


def _audited(folder: Path) -> Path:
    """The page of an audit of the demo."""
    photos = folder / "photographs"
    photos.mkdir()
    for path in photographs():
        shutil.copy(path, photos)
    return aha.audit(MODEL, photos, "aha", against="aha('universal')", out=folder / "audit").page


def _save(content: bytes, path: Path) -> None:
    """With few colours, which is all that text and lines need."""
    Image.open(io.BytesIO(content)).convert("RGB").quantize(64).save(path, optimize=True)


if __name__ == "__main__":
    main()

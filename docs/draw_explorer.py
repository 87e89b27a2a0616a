"""Draws `images/explorer.jpg`: the explorer with the demo's model, as a browser shows it.

    python docs/draw_explorer.py

Needs Playwright and a Chromium. It starts `aha serve` with a cache of its own, opens the first example, and waits until
all curves are fine.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

OUT = Path(__file__).parent / "images" / "explorer.jpg"
WIDTH, HEIGHT = 1440, 900
PATIENCE = 1800  # seconds; four methods with fine curves on a busy machine
UNFINISHED = """[...document.querySelectorAll(".tile .score")].filter((one) => !/ -?\\d/.test(one.textContent)
  || one.textContent.includes("≈")).length"""


def main() -> None:
    """Serves, looks, and photographs."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-u", "-m", "aha", "serve", "--port", "0", "--cache", cache]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            picture = _photograph(_address(server))
        finally:
            server.terminate()
            server.wait()
    picture.save(OUT, quality=85, optimize=True)


def _address(server: subprocess.Popen[str]) -> str:
    """Where it listens, as it says itself."""
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"http://\S+", line):
            return found[0]
    raise SystemExit("aha serve ended before it listened")


def _photograph(address: str) -> Image.Image:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(1000 * PATIENCE)
        page.goto(address)
        page.locator("#gallery button").first.click()
        page.wait_for_selector(".tile")
        _wait_for_scores(page)
        picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
        browser.close()
    return picture


def _wait_for_scores(page: Page) -> None:
    """Asked from here: the page's policy forbids what Playwright's own waiting would do."""
    end = time.monotonic() + PATIENCE
    while page.evaluate(UNFINISHED):
        if time.monotonic() > end:
            raise SystemExit("the curves took too long")
        page.wait_for_timeout(500)


if __name__ == "__main__":
    main()

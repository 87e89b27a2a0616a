"""How long a visitor of the explorer waits: from dropping a picture to its first map, and for a frame of the scrubber.

Needs the extras `web`, `demo` and `browser`, and a Chromium on the path. Server, model and browser share this machine.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import shutil
import socket
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

import aha
from aha.demo import MODEL, photographs
from aha.web.app import create_app
from aha.web.cache import Cache
from aha.web.jobs import Jobs
from aha.web.pictures import Pictures
from aha.web.served import Served
from aha.web.workbench import Workbench

# Milliseconds from the drop to the frame in which the first map is on its canvas.
DROP = """async (text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)), given = new DataTransfer();
  given.items.add(new File([bytes], "given.png", { type: "image/png" }));
  const before = document.getElementById("download").href, start = performance.now();
  document.dispatchEvent(new DragEvent("drop", { dataTransfer: given, cancelable: true }));
  for (;;) {
    await new Promise(requestAnimationFrame);
    if (document.getElementById("download").href !== before) return performance.now() - start;
  }
}"""

# For each frame: milliseconds of work in it, and until the next one.
SCRUB = """async (count) => {
  const slider = document.getElementById("scrub"), work = [], whole = [];
  let last = await new Promise(requestAnimationFrame);
  for (let i = 0; i < count; i++) {
    slider.value = (i * 1000) / count;
    slider.dispatchEvent(new Event("input"));
    const start = await new Promise(requestAnimationFrame); // after the page's own, in the same frame
    work.push(performance.now() - start);
    whole.push(start - last);
    last = start;
  }
  return [work, whole];
}"""


def variant(picture: Image.Image, number: int) -> bytes:
    """The picture with one pixel changed, so that nothing about it is known yet."""
    pixels = np.array(picture)
    pixels[0, 0] = (number % 256, number // 256, 1)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def bare_seconds(model: aha.models.TargetModel, content: bytes) -> float:
    """One forward and one backward pass of the network for the picture; reading and resizing it is not counted."""
    inputs, _ = model.stated_preprocessing()(Image.open(io.BytesIO(content)).convert("RGB"))
    batch = inputs[None].clone().requires_grad_()
    before = time.perf_counter()
    with torch.enable_grad():
        model.module(batch).max().backward()
    return time.perf_counter() - before


def start(bench: Workbench) -> str:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(bench), log_config=None, ws="none"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    return f"http://127.0.0.1:{listener.getsockname()[1]}/"


def wait_for_curves(page: Any) -> None:
    while page.locator("#plot path").count() < 1 or "…" in page.text_content(".tile .score"):
        page.wait_for_timeout(200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--frames", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = aha.load_model(MODEL)
    picture = Image.open(photographs()[0]).convert("RGB")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        store = Cache(Path(folder))
        bench = Workbench([Served(MODEL, model)], Pictures(store), store, Jobs())
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.set_default_timeout(600_000)
        page.goto(start(bench) + "#v=" + quote(json.dumps({"methods": ["grad_cam"]})))
        page.wait_for_selector("#model option", state="attached")
        pairs = []
        for number in range(options.rounds + 1):
            content = variant(picture, number)
            bare = bare_seconds(model, content)
            drop = page.evaluate(DROP, base64.b64encode(content).decode()) / 1000
            wait_for_curves(page)  # the model is free again before the next round
            if number:  # the first round warms up
                pairs.append((drop, bare))
        work, whole = page.evaluate(SCRUB, options.frames)
        browser.close()
        bench.jobs.close()
    ratio = statistics.median(drop / bare for drop, bare in pairs)
    drop, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(f"{MODEL}, {picture.width} x {picture.height} pixels, n = {len(pairs)}")
    print(f"drop to first map (grad_cam): {1000 * drop:.0f} ms, bare forward and backward pass: {1000 * bare:.0f} ms")
    print(f"median of the paired ratios: {ratio:.1f}")
    for name, values in (("work in a frame", work), ("from frame to frame", whole[1:])):
        print(f"scrubber, {name}: median {statistics.median(values):.1f} ms, 95 % {np.percentile(values, 95):.1f} ms")


if __name__ == "__main__":
    main()

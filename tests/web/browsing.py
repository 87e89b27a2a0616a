"""Driving the page: what the tests in a browser share."""

from __future__ import annotations

import base64
import io
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import uvicorn
from asking import png
from PIL import Image

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SIZES = {"laptop": (1440, 900), "phone": (390, 844)}
PATIENCE = 180  # seconds; a busy machine is slow, not wrong
NUMBER = re.compile(r"-?[\d.]+(e[+-]\d+)?")


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """The address of an application while it is served."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)


@contextmanager
def new_page(browser: Any, address: str, width: int = 1440, height: int = 900) -> Iterator[Any]:
    """A fresh page on which no script may fail and nothing may be asked of another host."""
    context = browser.new_context(viewport={"width": width, "height": height})
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address.rstrip("/"))
    opened = context.new_page()
    opened.set_default_timeout(1000 * PATIENCE)
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda line: problems.append(line.text) if "Content Security" in line.text else None)
    opened.on("request", lambda r: None if r.url.startswith((address, "data:", "blob:")) else problems.append(r.url))
    opened.goto(address)
    opened.wait_for_selector("#model option", state="attached")  # it knows what there is
    yield opened
    found = list(problems)  # before it is closed: answers that are cut off then are nobody's fault
    context.close()
    assert not found, found


def open_picture(page: Any, seed: int = 1, methods: int = 0) -> None:
    """Uploads a picture, waits for its classes, and for curves and drawn maps of so many methods."""
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": png(seed)})
    page.wait_for_selector("#classes .pick[aria-pressed=true]")
    wait_for_curves(page, methods)
    # Curves may be there first: a map is drawn once its values and its colours have been fetched as well.
    until(page, f"document.querySelectorAll('.tile .ends:not([hidden])').length >= {methods}")
    frames(page)


def until(page: Any, expression: str, arg: Any = None) -> None:
    """Asks again and again; Playwright's own waiting evaluates texts inside the page, which its CSP forbids."""
    end = time.monotonic() + PATIENCE
    while not page.evaluate(expression, arg):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(30)


def eventually(page: Any, is_so: Callable[[], Any]) -> None:
    """The same for what has to be asked from outside, such as pixels that wait for something to be fetched."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, "it never came"
        page.wait_for_timeout(30)


def wait_for_curves(page: Any, count: int) -> None:
    until(page, f"document.querySelectorAll('#plot path:not(.bound)').length >= {count}")


def frames(page: Any, count: int = 3) -> None:
    """Waits until what was asked for is painted: in the next frame, or the one after."""
    page.evaluate("n => new Promise(done => { const f = () => n-- ? requestAnimationFrame(f) : done(); f(); })", count)


def add_method(page: Any, text: str) -> None:
    page.locator("#method").fill(text)
    page.locator("#add").click()


def set_slider(page: Any, selector: str, value: float) -> None:
    page.locator(selector).fill(f"{value:g}")
    frames(page)


def canvas(page: Any, selector: str) -> np.ndarray[Any, Any]:
    """What a canvas shows, (H, W, 3)."""
    return decoded(page.eval_on_selector(selector, "canvas => canvas.toDataURL()"))


def canvases(page: Any, selector: str) -> list[np.ndarray[Any, Any]]:
    """What several canvases show."""
    return [decoded(text) for text in page.eval_on_selector_all(selector, "all => all.map(one => one.toDataURL())")]


def decoded(address: str) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB")).astype(int)


def map_keys(page: Any) -> list[str]:
    """Keys of the maps that are shown, in their order."""
    return str(page.get_attribute("#download", "href")).partition("=")[2].split(",")

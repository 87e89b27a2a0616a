"""The command itself, as a process of its own: many visitors, memory, nonsense on the wire, a kill and a new start."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from asking import MODEL, png
from PIL import Image, ImageDraw
from safetensors.torch import save_file

from aha.models import load_model

PATIENCE = 300.0
VISITORS = 50

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


class Server:
    """`aha serve` in a process; `kill` ends it as a power cut would."""

    def __init__(self, cache: Path, weights: Path, images: Path) -> None:
        options = {"--model": MODEL, "--weights": weights, "--images": images, "--cache": cache, "--port": 0}
        command = [
            sys.executable,
            "-m",
            "aha",
            "serve",
            "--device",
            "cpu",
            *(str(x) for o in options.items() for x in o),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("explorer: http://127.0.0.1:"), line
        self.address = line.split()[1].rstrip("/")

    def kill(self) -> str:
        """Ends it at once; returns what it complained of."""
        self.process.send_signal(signal.SIGKILL)
        return self.process.communicate(timeout=60)[1]

    def memory(self, name: str = "VmRSS") -> float:
        """Megabytes of the process, now, or at most so far with VmHWM."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024

    def get(self, path: str) -> bytes:
        with urllib.request.urlopen(self.address + path, timeout=PATIENCE) as answer:
            content: bytes = answer.read()
            return content

    def post(self, path: str, content: bytes, kind: str = "application/json", visitor: str = "one") -> dict[str, Any]:
        headers = {"content-type": kind, "x-aha-visitor": visitor}
        request = urllib.request.Request(self.address + path, content, headers, method="POST")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    def asked(self, path: str, visitor: str = "one", **question: Any) -> dict[str, Any]:
        """The result of a question, waited for."""
        state = self.post(path, json.dumps(question).encode(), visitor=visitor)
        end = time.monotonic() + PATIENCE
        while state["status"] in ("waiting", "running"):
            assert time.monotonic() < end, state
            time.sleep(0.4)  # as the page does
            state = json.loads(self.get(f"/api/jobs/{state['key']}"))
        assert state["status"] == "done", state
        result: dict[str, Any] = state["result"]
        return result


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    tensors = load_model(MODEL, pretrained=False).module.state_dict()
    save_file({name: value.contiguous() for name, value in tensors.items()}, path)
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="module")
def server(cache: Path, weights: Path, gallery: Path) -> Iterator[Server]:
    started = Server(cache, weights, gallery)
    yield started
    if started.process.poll() is None:
        started.kill()


def large_picture(number: int) -> bytes:
    """Four million pixels in a few kilobytes: 16 MB each once decoded, 800 MB for all visitors."""
    image = Image.new("L", (2500, 1600), number * 5)  # grey: quicker to make, and RGB like all others once it is read
    ImageDraw.Draw(image).ellipse((300 + 20 * number, 200, 1500, 1500), fill=250)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


UNFINISHED = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
STALLED = (
    b"POST /api/pictures HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 900000\r\n\r\nhalf"
)
HOSTILE = (
    "kernel_shap(parts=patches(grid=200))",
    "rise(n=5000, cells=5000)",
    "lime(n=5000, parts=patches(grid=100), reference=blur(kernel=4999))",
    "smooth(smooth(smooth(gradient, n=5000), n=5000), n=5000)",
    "occlusion(window=1, stride=1, reference=image('/etc/hostname'))",
    "integrated_gradients(steps=999999999999999999999)",
    "simple_insertion(grid=4000)",
    "aha('/etc')",
)


@contextmanager
def crowd(server: Server) -> Iterator[None]:
    """300 clients that never finish their headers, and 20 that never finish their uploads."""
    place = urlsplit(server.address)
    with ExitStack() as stack:
        for beginning in [UNFINISHED] * 300 + [STALLED] * 20:
            wire = stack.enter_context(socket.create_connection((str(place.hostname), int(place.port or 0)), PATIENCE))
            wire.sendall(beginning)
        yield


def refused(server: Server, picture: str, method: str) -> int:
    """The status of the answer to a method that asks for too much."""
    question = {"picture": picture, "model": MODEL, "method": method, "target": 3}
    with pytest.raises(urllib.error.HTTPError) as caught:
        server.post("/api/maps", json.dumps(question).encode(), visitor="hostile")
    caught.value.close()
    return caught.value.code


def test_fifty_visitors_in_a_hostile_crowd(server: Server) -> None:
    contents = [large_picture(number) for number in range(VISITORS)]
    known = server.post("/api/pictures", png(1), "image/png")["key"]
    server.asked("/api/maps", picture=known, model=MODEL, method="grad_cam", target=3)
    server.get(f"/api/pictures/{known}/input?model={MODEL}")
    before = server.memory()

    def visit(number: int) -> list[int]:
        visitor = f"visitor-{number}"
        own = server.post("/api/pictures", contents[number], "image/png", visitor)["key"]
        thumbnail = len(server.get(f"/api/pictures/{own}/thumbnail"))
        record = server.asked("/api/maps", visitor, picture=own, model=MODEL, method="grad_cam", target=5)
        values = len(server.get(f"/api/results/{record['key']}/values"))
        old = server.asked("/api/maps", visitor, picture=known, model=MODEL, method="grad_cam", target=3)
        return [thumbnail, values, len(server.get(f"/api/results/{old['key']}/ranks"))]

    with crowd(server), ThreadPoolExecutor(VISITORS) as pool:
        visits = pool.map(visit, range(VISITORS))
        assert {refused(server, known, method) for method in HOSTILE} == {422}
        found = list(visits)
    assert all(min(sizes) > 100 for sizes in found)
    # Kept pictures take at most 240 MB, the three at hand 30 each and the allocator some more; unbounded, it were 800.
    growth = server.memory("VmHWM") - before
    assert growth < 600, f"{growth:.0f} MB more for {VISITORS} visitors"


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET /../../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /static/..%2f..%2f..%2fetc%2fpasswd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
        b"POST /api/maps HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/maps HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /api/pictures HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 900\r\n\r\nhalf",
        b"GET /api/about HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
    ],
    ids=range(13),
)
def test_nonsense_on_the_wire(server: Server, nonsense: bytes) -> None:
    place = urlsplit(server.address)
    with socket.create_connection((str(place.hostname), int(place.port or 0)), timeout=60) as wire:
        reply = b""
        try:
            wire.sendall(nonsense)
            wire.shutdown(socket.SHUT_WR)
            while part := wire.recv(65536):
                reply += part
        except OSError as error:  # it may hang up while we are still talking
            assert isinstance(error, ConnectionError) or error.errno == errno.ENOTCONN
    assert not reply or reply.startswith(b"HTTP/1.1 ")
    assert b"Traceback" not in reply and b"root:" not in reply
    assert json.loads(server.get("/api/about"))["version"]


def test_a_kill_loses_nothing_that_was_finished(server: Server, cache: Path, weights: Path, gallery: Path) -> None:
    picture = server.post("/api/pictures", png(7), "image/png")["key"]
    question = {"picture": picture, "model": MODEL, "method": "gradient", "target": 4}
    record = server.asked("/api/maps", **question)
    values = server.get(f"/api/results/{record['key']}/values")
    session = server.post("/api/sessions", json.dumps({"pictures": [picture], "view": {"share": 0.5}}).encode())["key"]
    slow = {**question, "method": "rise(n=5000)"}
    under_way = server.post("/api/maps", json.dumps(slow).encode())
    while json.loads(server.get(f"/api/jobs/{under_way['key']}"))["status"] == "waiting":
        time.sleep(0.05)
    complaints = server.kill()
    assert "Traceback" not in complaints
    assert not list(cache.rglob(f"{under_way['key']}*"))  # what was not finished left nothing

    again = Server(cache, weights, gallery)
    try:
        state = again.post("/api/maps", json.dumps(question).encode())
        assert state["status"] == "done" and state["result"] == record  # at once: nothing was computed
        assert again.get(f"/api/results/{record['key']}/values") == values
        assert json.loads(again.get(f"/api/sessions/{session}"))["view"] == {"share": 0.5}
        assert again.post("/api/maps", json.dumps(slow).encode())["status"] in ("waiting", "running")
        os.kill(again.process.pid, signal.SIGINT)  # and Ctrl-C ends it in good order, even now
        _, complaints = again.process.communicate(timeout=PATIENCE)
        assert again.process.returncode == 0 and "Traceback" not in complaints
    finally:
        if again.process.poll() is None:
            again.kill()

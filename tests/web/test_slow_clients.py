"""Clients that take their time: they lose their place, and nobody waits for them."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from asking import png

from aha.errors import ImageError
from aha.web import connections, requests
from aha.web.app import create_app
from aha.web.cache import Cache
from aha.web.pictures import Pictures, find_examples
from aha.web.serving import server_config
from aha.web.workbench import Workbench

PATIENCE = 60.0
UNFINISHED = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
STALLED = (
    b"POST /api/pictures HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 900000\r\n\r\nhalf"
)


@contextlib.contextmanager
def serving(config: uvicorn.Config, listener: socket.socket) -> Iterator[None]:
    listener.bind(("127.0.0.1", 0))
    listener.listen(256)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def place(bench: Workbench) -> Iterator[tuple[str, int]]:
    listener = socket.socket()
    with serving(server_config(create_app(bench)), listener):
        yield listener.getsockname()


def opened(place: tuple[str, int], beginning: bytes) -> socket.socket:
    wire = socket.create_connection(place, timeout=PATIENCE)
    wire.sendall(beginning)
    return wire


def rest_of(wire: socket.socket) -> bytes:
    """What the server still says before it hangs up."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := wire.recv(65536):
            found += part
    return found


def about(place: tuple[str, int]) -> dict[str, object]:
    with urllib.request.urlopen(f"http://127.0.0.1:{place[1]}/api/about", timeout=PATIENCE) as answer:
        found: dict[str, object] = json.loads(answer.read())
        return found


def test_unfinished_headers_make_way_for_others(place: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_WAIT", 10 * PATIENCE)  # it is not the clock that saves us here
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(opened(place, UNFINISHED)) for _ in range(300)]
        assert about(place)["version"]
        with contextlib.suppress(ConnectionError):  # it may be gone altogether by now
            slow[0].sendall(b"y\r\n")  # the oldest went first
        assert rest_of(slow[0]) == b""


def test_unfinished_headers_have_a_deadline(place: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_WAIT", 0.3)
    with opened(place, UNFINISHED) as wire:
        assert rest_of(wire) == b""
    with opened(place, b"GET /api/about HTTP/1.1\r\nHost: localhost\r\n\r\n") as wire:
        wire.sendall(UNFINISHED)  # a second request behind the first, which is answered
        assert rest_of(wire).startswith(b"HTTP/1.1 200")


def test_stalled_uploads_hold_nobody_up_and_end(place: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "SECONDS_BETWEEN_PARTS", 5.0)
    with contextlib.ExitStack() as stack:
        stalled = [stack.enter_context(opened(place, STALLED)) for _ in range(20)]
        sent = urllib.request.Request(
            f"http://127.0.0.1:{place[1]}/api/pictures", png(77), {"content-type": "image/png"}, method="POST"
        )
        with urllib.request.urlopen(sent, timeout=PATIENCE) as answer:
            assert answer.status == 201
        for wire in stalled:
            assert rest_of(wire).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("is_reading", [True, False])
def test_a_slow_line_is_no_client_that_does_not_read(is_reading: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_TAKE", 1.5)
    size = 8 * 2**20

    async def answer(scope: Any, _receive: Any, send: Any) -> None:
        headers = [(b"content-length", str(size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x" * size})

    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
    config = uvicorn.Config(answer, http=connections.Connection, log_config=None, lifespan="off")
    with serving(config, listener), socket.socket() as wire:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        wire.settimeout(PATIENCE)
        wire.connect(listener.getsockname())
        wire.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        if not is_reading:
            time.sleep(4)
        read = 0
        with contextlib.suppress(ConnectionError):
            while part := wire.recv(16384):
                read += len(part)
                time.sleep(0.008)  # for longer than the whole answer may stay untouched
    assert (read > size) == is_reading


def test_requests_at_once_are_limited(place: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aha.web.guard.MOST_AT_ONCE", 0)
    with pytest.raises(urllib.error.HTTPError) as caught:
        about(place)
    assert caught.value.code == 503 and caught.value.headers["retry-after"]
    caught.value.close()


def test_bodies_share_a_limited_room() -> None:
    room = requests.Room(10)
    room.take(6)
    with pytest.raises(requests.Refused, match="too many uploads"):
        room.take(5)
    room.give_back(6)
    room.take(10)


# What may be read


def test_links_that_lead_out_of_the_folder_are_not_offered(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "own.png").write_bytes(png(1))
    (inside / "link.png").symlink_to(outside / "own.png")
    (inside / "near.png").symlink_to(inside / "own.png")
    assert [example.path.name for example in find_examples([inside])] == ["near.png", "own.png"]
    both = [example.path.name for example in find_examples([inside, outside])]
    assert both == ["link.png", "near.png", "own.png", "own.png"], "a link into another named folder is fine"
    (inside / "own.png").unlink()
    (inside / "near.png").unlink()
    with pytest.raises(ImageError, match="links that lead out"):
        find_examples([inside])


def test_a_picture_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "own.png").write_bytes(png(1))
    (tmp_path / "secret.png").write_bytes(png(2))
    pictures = Pictures(Cache(tmp_path / "cache"), find_examples([inside]), [inside])
    (inside / "own.png").unlink()
    (inside / "own.png").symlink_to(tmp_path / "secret.png")
    for read in (pictures.open_example, pictures.example_thumbnail):
        with pytest.raises(ImageError, match="leads out"):
            read(0).result()

"""Uploads that cost much and are given up: they hold nobody up, and are never begun once nobody waits."""

from __future__ import annotations

import io
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
from asking import make_bench, make_client, png, upload
from PIL import Image
from test_slow_clients import PATIENCE, opened, rest_of, serving

from aha.models import TargetModel
from aha.web import pictures as web_pictures
from aha.web.app import create_app
from aha.web.jobs import Busy
from aha.web.reading import Asker, Readers
from aha.web.serving import server_config
from aha.web.workbench import Workbench


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def own_bench(loaded: TargetModel, gallery: Path, tmp_path: Path) -> Iterator[Workbench]:
    made = make_bench(loaded, tmp_path / "cache", gallery)
    yield made
    made.jobs.close()


class Slow:
    """Decoding that does not end before it is let go, for pictures of one width."""

    def __init__(self, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[int] = []
        self.go_on = threading.Event()
        read = web_pictures.read_image

        def slowly(source: Any, *limits: Any) -> Image.Image:
            image = read(source, *limits)
            if image.width == width:
                self.started.append(width)
                assert self.go_on.wait(PATIENCE)
            return image

        monkeypatch.setattr(web_pictures, "read_image", slowly)


def post(content: bytes) -> bytes:
    head = (
        "POST /api/pictures HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content


def test_uploads_that_hang_up_are_never_decoded(own_bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, listener = Slow(77, monkeypatch), socket.socket()
    with serving(server_config(create_app(own_bench)), listener):
        place = listener.getsockname()
        known = own_bench.pictures.add(png(1), "known.png")["key"]
        for seed in range(45):
            with opened(place, post(png(seed, (77, 60)))):
                if seed < 2:
                    until(lambda seed=seed: len(slow.started) > seed)  # type: ignore[misc]
        # What is here already is shown while both readers of arrivals are busy.
        address = f"http://127.0.0.1:{place[1]}"
        with urllib.request.urlopen(f"{address}/api/pictures/{known}/thumbnail", timeout=PATIENCE) as answer:
            assert answer.status == 200
        waiting = own_bench.pictures._arrivals._waiting

        def all_left() -> bool:
            return all(future.cancelled() for of in waiting.values() for queue in of.values() for future, _ in queue)

        until(all_left)
        with opened(place, post(png(99))) as honest:
            until(lambda: not all_left())
            slow.go_on.set()
            assert rest_of(honest).startswith(b"HTTP/1.1 201")
        assert len(slow.started) == 2


def test_addresses_and_visitors_take_turns() -> None:
    readers, go_on, order = Readers(1, "test"), threading.Event(), list[str]()
    first = readers.ask(lambda: go_on.wait(PATIENCE))
    asked = [("a", "x", 3), ("a", "y", 1), ("b", "z", 1)]
    futures = [
        readers.ask(lambda name=f"{address}{visitor}": order.append(name), Asker(address, visitor))
        for address, visitor, count in asked
        for _ in range(count)
    ]
    go_on.set()
    for future in [first, *futures]:
        future.result(PATIENCE)
    assert order == ["ax", "bz", "ay", "ax", "ax"]


def test_only_so_much_waits_and_errors_come_back() -> None:
    readers, go_on = Readers(1, "test"), threading.Event()
    blocking = readers.ask(lambda: go_on.wait(PATIENCE))
    until(blocking.running)
    waiting = [readers.ask(lambda: None, Asker("a", str(number))) for number in range(64)]
    with pytest.raises(Busy):
        readers.ask(lambda: None, Asker("a", "another"))
    other = readers.ask(lambda: 1 // 0, Asker("b"))
    assert waiting[0].cancel()
    readers.ask(lambda: None, Asker("a", "another"))  # in the place of the one that left
    go_on.set()
    with pytest.raises(ZeroDivisionError):
        other.result(PATIENCE)
    with pytest.raises(CancelledError):
        waiting[0].result()


def test_slow_codecs_have_a_limit_of_their_own(own_bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known from the header: hundreds of bytes of JPEG 2000 can take as long as megabytes of others."""
    monkeypatch.setattr(web_pictures, "MAX_SLOW_PIXELS", 48 * 40 - 1)
    buffer = io.BytesIO()
    Image.new("RGB", (48, 40)).save(buffer, "JPEG2000")
    with make_client(own_bench) as client:
        monkeypatch.setattr("PIL.Jpeg2KImagePlugin.Jpeg2KImageFile.load", lambda self: pytest.fail("was decoded"))
        answer = client.post("/api/pictures", content=buffer.getvalue(), headers={"content-type": "image/jp2"})
        assert answer.status_code == 422 and "more than 1,919 pixels" in answer.json()["error"]
        assert upload(client, png(3))


@pytest.mark.parametrize("host", ["[::1].evil.com", "[::1]evil", "localhost:80:evil.com", "[::1", "localhost@evil.com"])
def test_hosts_that_only_begin_like_this_machine(host: str, own_bench: Workbench) -> None:
    with make_client(own_bench) as client:
        assert client.get("/api/about", headers={"host": host}).status_code == 421
        for good in ("[::1]", "[::1]:8642", "localhost:8642", "127.0.0.1"):
            assert client.get("/api/about", headers={"host": good}).status_code == 200


def test_a_body_with_two_lengths_is_refused_once(own_bench: Workbench) -> None:
    smuggled = (
        b"POST /api/pictures HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /api/about HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    listener = socket.socket()
    with serving(server_config(create_app(own_bench)), listener), opened(listener.getsockname(), smuggled) as wire:
        found = rest_of(wire)
    assert found.startswith(b"HTTP/1.1 400") and found.count(b"HTTP/1.1") == 1

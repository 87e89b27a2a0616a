"""Malformed and hostile requests: one line each, never a stack trace, a hang or a file."""

from __future__ import annotations

import io
import json
import random
import time
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
import torch
from asking import ADDRESS, MODEL, asked, make_bench, make_client, png, upload
from PIL import Image, ImageCms
from starlette.testclient import TestClient
from torch import nn

from aha.models import load_model
from aha.web import pictures
from aha.web.guard import is_loopback
from aha.web.serving import chosen_token
from aha.web.workbench import Workbench
from command_line import bomb

TOKEN = "a-long-enough-token"


def assert_refused(answer: Any, status: int | None = None, *words: str) -> None:
    """A client error with one line of JSON that tells nothing about the inside."""
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text[:200])
    assert status is None or answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    line = answer.json()["error"]
    assert line and "\n" not in line and "Traceback" not in line
    for word in words:
        assert word in line


# Addresses


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/static//etc/passwd",
        "/static/style.css%00.html",
        "/../../etc/passwd",
        "/api/results/../../pictures/x",
        "/api/results/..%2f..%2fetc%2fpasswd",
        "/api/results/" + "a" * 31 + "/values",
        "/api/results/" + "A" * 32 + "/values",
        "/api/results/" + "0" * 32 + "/values",
        "/api/results/" + "0" * 32 + "/%2e%2e%2fvalues",
        "/api/sessions/..%2f..%2f..%2fetc%2fpasswd",
        "/api/pictures/%2fetc%2fpasswd/thumbnail",
        "/api/examples/-1/thumbnail",
        "/api/examples/99/thumbnail",
        "/api/runs/7",
        "/api/runs/1e9",
        "/api/jobs/nothing",
        "/api/bundle?maps=../../etc/passwd",
        "/api/snippet",
        "/api/colours/..%2f",
        "/favicon.ico",
        "/.git/config",
    ],
)
def test_no_address_leads_out(client: TestClient, path: str) -> None:
    answer = client.get(path, follow_redirects=False)
    assert_refused(answer)
    assert "root:" not in answer.text


def test_too_long_an_address_is_refused(client: TestClient) -> None:
    assert_refused(client.get("/api/classes?search=" + "a" * 9000), 414)


def test_other_verbs_are_refused(client: TestClient) -> None:
    for verb in ("PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        assert_refused(client.request(verb, "/api/about"), 405)


def test_every_answer_is_locked_down(client: TestClient, picture: str) -> None:
    for path in ("/", "/static/main.js", "/api/about", f"/api/pictures/{picture}/thumbnail", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_the_page_asks_nobody_else(client: TestClient) -> None:
    page = client.get("/").text
    files = [client.get(f"/static/{name}").text for name in ("style.css", "main.js", "api.js", "dom.js", "compare.js")]
    assert not any("//" + host in text for text in [page, *files] for host in ("cdn", "fonts", "unpkg", "ajax"))
    assert "http://" not in page and "https://" not in page
    assert "innerHTML" not in "".join(files)


# Who may come in


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "192.168.0.4", "", "localhost.evil.example:80"]
)
def test_other_hosts_are_turned_away(client: TestClient, host: str) -> None:
    assert_refused(client.get("/api/about", headers={"host": host}), 421)


@pytest.mark.parametrize("host", ["localhost", "localhost:8642", "127.0.0.1:1", "[::1]:8642"])
def test_own_hosts_are_let_in(client: TestClient, host: str) -> None:
    assert client.get("/api/about", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}],
    ids=["origin", "null", "fetch"],
)
def test_other_sites_are_turned_away(client: TestClient, headers: dict[str, str]) -> None:
    assert_refused(client.post("/api/examples/0", headers=headers), 403)
    assert client.post("/api/examples/0", headers={"origin": ADDRESS}).status_code == 201


def test_a_token_opens_the_door(bench: Workbench) -> None:
    with make_client(bench, token=TOKEN) as visitor:
        assert_refused(visitor.get("/api/about"), 401, "token")
        assert_refused(visitor.get("/"), 401)
        assert_refused(visitor.get("/?token=wrong"), 401)
        assert_refused(visitor.get("/api/about", headers={"cookie": "aha_token=wrong"}), 401)
        assert_refused(visitor.get("/api/about", headers={"authorization": b"Bearer \xe4"}), 401)
        assert_refused(visitor.get(f"/api/about?token={TOKEN}"), 401)  # only the page takes it from the address
        bearer = {"authorization": f"Bearer {TOKEN}", "host": "far.example:8642"}
        assert visitor.get("/api/about", headers=bearer).status_code == 200
        welcome = visitor.get(f"/?token={TOKEN}", follow_redirects=False)
        assert welcome.status_code == 303 and welcome.headers["location"] == "/"
        assert "HttpOnly" in welcome.headers["set-cookie"]
        assert visitor.get("/api/about").status_code == 200  # the cookie is kept


def test_a_link_on_another_site_leads_to_the_page_alone(bench: Workbench) -> None:
    """The cookie comes along then; browsers send the one header or the other, by verb and by whether there is TLS."""
    with make_client(bench, token=TOKEN) as visitor:
        welcome = visitor.get(f"/?token={TOKEN}", headers={"sec-fetch-site": "cross-site"}, follow_redirects=False)
        assert "SameSite=Lax" in welcome.headers["set-cookie"]
        assert visitor.get("/?session=1", headers={"sec-fetch-site": "cross-site"}).status_code == 200
        for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}):
            assert_refused(visitor.get("/api/about", headers=headers), 403)
            assert_refused(visitor.post("/api/examples/0", headers=headers), 403)
            assert_refused(visitor.delete("/api/jobs/" + "0" * 32, headers=headers), 403)


@pytest.mark.parametrize(
    "cookies",
    [
        f"aha_token={TOKEN}",
        f'settings={{"a": 1}}; aha_token={TOKEN}',
        f"not allowed=1; aha_token={TOKEN}; theme=dark",
        f"alone;aha_token={TOKEN}",
    ],
)
def test_cookies_of_other_applications_lock_nobody_out(bench: Workbench, cookies: str) -> None:
    with make_client(bench, token=TOKEN) as visitor:
        assert visitor.get("/api/about", headers={"cookie": cookies}).status_code == 200
        for wrong in (cookies.replace("aha_token", "my_aha_token"), cookies.replace(TOKEN, TOKEN[1:])):
            assert_refused(visitor.get("/api/about", headers={"cookie": wrong}), 401)


def test_a_token_is_demanded_beyond_loopback() -> None:
    assert chosen_token("127.0.0.1", "") == "" == chosen_token("localhost", "") == chosen_token("::1", "")
    assert len(chosen_token("0.0.0.0", "")) >= 32
    assert chosen_token("0.0.0.0", "") != chosen_token("0.0.0.0", "")
    assert chosen_token("192.168.0.4", TOKEN) == TOKEN
    assert not is_loopback("0.0.0.0") and not is_loopback("example.org")


# Uploads


def test_what_does_not_decode_is_no_picture(client: TestClient, tmp_path: Path) -> None:
    script = b"<!doctype html><script>alert(1)</script>"
    vector = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    for content in (b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", script, vector, b"%!PS-Adobe-3.0", png()[:60], b"\0" * 4096):
        answer = client.post("/api/pictures?name=a.png", content=content, headers={"content-type": "image/png"})
        assert_refused(answer, 422)
    answer = client.post(
        "/api/pictures", content=bomb(tmp_path / "b.png").read_bytes(), headers={"content-type": "image/png"}
    )
    assert_refused(answer, 422, "pixels")


def test_too_many_pixels_are_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_PIXELS", 1000)
    answer = client.post("/api/pictures", content=png(77), headers={"content-type": "image/png"})
    assert_refused(answer, 422, "1,000 pixels")


def test_an_endless_strip_is_refused_by_those_who_cannot_show_it(client: TestClient) -> None:
    strip = io.BytesIO()
    Image.new("1", (1, 2_000_000)).save(strip, "PNG")
    key = upload(client, strip.getvalue())  # it decodes, and is small
    assert client.get(f"/api/pictures/{key}/thumbnail").status_code == 200
    for path in (f"input?model={MODEL}", f"window?model={MODEL}"):
        assert_refused(client.get(f"/api/pictures/{key}/{path}"), 422, "elongated")


def test_too_many_bytes_are_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MAX_UPLOAD", 2048)
    kind = {"content-type": "image/png"}
    assert_refused(client.post("/api/pictures", content=b"\0" * 4096, headers=kind), 413)
    stream = (b"\0" * 512 for _ in range(8))  # no content length: counted as it comes
    assert_refused(client.post("/api/pictures", content=stream, headers=kind), 413)
    assert_refused(
        client.post("/api/pictures", content=b"", headers={**kind, "content-length": "99999999999999999"}), 413
    )


def test_a_polyglot_leaves_only_its_pixels(client: TestClient) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        target.writestr("evil.html", "<script>alert(1)</script>")
    both = png(5) + archive.getvalue() + b"<script>alert(2)</script>"
    key = upload(client, both, "../../<script>.png")
    record = client.get(f"/api/pictures/{key}").json()
    assert "/" not in record["name"]
    for path in ("thumbnail", f"input?model={MODEL}", f"reference?model={MODEL}&reference=blur"):
        answer = client.get(f"/api/pictures/{key}/{path}")
        assert answer.headers["content-type"] in ("image/jpeg", "image/png")
        assert b"<script>" not in answer.content and b"PK\x03\x04" not in answer.content
        Image.open(io.BytesIO(answer.content)).load()


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "text/html", ""])
def test_wrong_content_types_are_refused(client: TestClient, kind: str) -> None:
    assert_refused(client.post("/api/pictures", content=png(), headers={"content-type": kind}), 415)
    assert_refused(client.post("/api/maps", content=b"{}", headers={"content-type": kind}), 415)


# Questions


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"[" * 20_000,
        b'{"picture": NaN}',
        b'{"picture": ' + b"9" * 5000 + b"}",
        b'{"picture": "\\ud800", "model": "\\ud800", "method": "\\ud800", "target": 1}',
        b'\xff\xfe{"a": 1}',
        b'{"unknown": 1}',
        b"{" + b'"a": 1,' * 20_000 + b'"b": 1}',
    ],
    ids=range(11),
)
def test_bodies_that_make_no_sense(client: TestClient, body: bytes) -> None:
    for path in ("/api/classes", "/api/maps", "/api/curves", "/api/refinements", "/api/contrasts", "/api/sessions"):
        assert_refused(client.post(path, content=body, headers={"content-type": "application/json"}))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"target": 1000}, "does not exist"),
        ({"target": -1}, "does not exist"),
        ({"target": 2**40}, "target must be a whole number from"),
        ({"target": True}, "whole number"),
        ({"target": "3"}, "whole number"),
        ({"method": "grad_can"}, "grad_cam"),
        ({"method": "__import__('os').system('true')"}, "method"),
        ({"method": "aha('/etc')"}, "--explainer"),
        ({"method": "smooth(smooth(aha('somebody/else')))"}, "--explainer"),
        ({"method": "occlusion(reference=image('/etc/passwd'))"}, "does not read files"),
        ({"method": "occlusion(reference=neighbours(files=('/etc',)))"}, "does not read files"),
        ({"method": "occlusion(reference=inpainted)"}, "too long for the explorer"),
        ({"method": "rise(n=100000000)"}, "too much"),
        ({"method": "smooth(" * 5 + "gradient" + ")" * 5}, "deep"),
        ({"method": "(" * 3000}, "method"),
        ({"method": "rollout"}, "attention"),
        ({"model": "timm:resnet50"}, "no model"),
        ({"model": "hf:../../etc"}, "no model"),
        ({"picture": "0" * 32}, "picture"),
        ({"picture": "../../etc/passwd"}, "key"),
        ({"extra": 1}, "extra"),
    ],
)
def test_questions_that_cannot_be_answered(
    client: TestClient, picture: str, changes: dict[str, Any], word: str
) -> None:
    question = {"picture": picture, "model": MODEL, "method": "grad_cam", "target": 3} | changes
    assert_refused(client.post("/api/maps", json=question), None, word)


def test_curves_and_contrasts_within_reason(client: TestClient, picture: str, shown_map: dict[str, Any]) -> None:
    key = shown_map["key"]
    for changes in (
        {"steps": 100_000},
        {"steps": 0},
        {"references": []},
        {"references": ["black", "black"]},
        {"references": ["image('/etc/passwd')"]},
        {"references": ["adaptive_blur"]},
        {"references": ["blur(kernel=100001)"]},
        {"map": "f" * 32},
        {"references": "black"},
        {"references": [3]},
    ):
        assert_refused(client.post("/api/curves", json={"map": key} | changes))
    for classes in ([], [3], [3, 3], list(range(20)), [3, 10_000], ["a", "b"]):
        question = {"picture": picture, "model": MODEL, "method": "grad_cam", "classes": classes}
        assert_refused(client.post("/api/contrasts", json=question))
    no_map = client.post("/api/classes", json={"picture": picture, "model": MODEL}).json()["key"]
    assert_refused(client.post("/api/curves", json={"map": no_map}))


def _fuzzed_upload(chance: random.Random) -> bytes:
    """A picture of some format with some of its bytes changed, or cut short, or with something behind it."""
    content = bytearray(chance.choice(_FORMATS))
    for _ in range(chance.randrange(1, 12)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    ending = chance.choice([b"", b"<script>alert(1)</script>", chance.randbytes(64)])
    return bytes(content[: chance.choice([len(content), chance.randrange(len(content))])]) + ending


def _encoded(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(png(9))).save(buffer, kind)
    return buffer.getvalue()


_FORMATS = [_encoded(kind) for kind in ("PNG", "JPEG", "GIF", "BMP", "TIFF", "PPM", "WEBP")]


@pytest.mark.parametrize("seed", range(4))
def test_fuzzed_requests_never_break_the_server(
    client: TestClient, picture: str, shown_map: dict[str, Any], seed: int
) -> None:
    """A thousand of them in the four parts together."""
    chance = random.Random(seed)
    known = [picture, shown_map["key"], MODEL, "grad_cam", "black", "0" * 32]
    junk = ["", "..", "../" * 9, "\0", "%", "💥", "A" * 3000, "-1", "1e309", "\ud83d", "'; --", "{{7*7}}", "null"]
    values: list[Any] = [*known, *junk, None, True, -1, 0, 3, 2**70, 0.5, 1e308, [], {}, [[]], [1, 2], {"a": []}]
    names = [
        "picture",
        "model",
        "method",
        "target",
        "map",
        "references",
        "steps",
        "classes",
        "rounds",
        "explainer",
        "pictures",
        "view",
        "image",
        "methods",
        "rows",
        "columns",
        "bits",
        "reference",
        "contrast",
        "first",
        "second",
    ]
    paths = [
        "classes",
        "maps",
        "maps/several",
        "paintings",
        "changes",
        "curves",
        "refinements",
        "contrasts",
        "sessions",
        "pictures",
        "jobs",
        "results",
        "bundle",
        "snippet",
    ]
    paths += ["runs/0/images", "examples/0", "colours/inferno", f"pictures/{picture}/input", "about"]
    statuses = set()
    for _ in range(250):
        path = f"/api/{chance.choice(paths)}"
        if chance.random() < 0.3:
            path += "/" + "".join(chance.choice("abc0/.%?&=;é") for _ in range(chance.randrange(20)))
        elif chance.random() < 0.3:
            path += "?" + urlencode(
                {chance.choice(["maps", "model", "search", "name"]): chance.choice([*known, "é", "\0"])}
            )
        verb = chance.choice(["GET", "POST", "POST", "DELETE", "HEAD"])
        # Most of a real question, so that the fuzz reaches past the first check.
        body: Any = {name: chance.choice(values) for name in chance.sample(names, chance.randrange(5))}
        content = json.dumps(body).encode() if chance.random() < 0.8 else chance.randbytes(chance.randrange(200))
        kind: str | bytes = chance.choice(["application/json"] * 4 + ["image/png", "text/plain", b"\xc3\xa9"])
        if chance.random() < 0.2:
            verb, path, kind, content = "POST", "/api/pictures", "image/png", _fuzzed_upload(chance)
        before = time.monotonic()
        answer = client.request(verb, path, content=content, headers={"content-type": kind})
        statuses.add(answer.status_code)
        assert answer.status_code < 500, (verb, path, content)
        assert time.monotonic() - before < 60, (verb, path, content)
        for inside in ("Traceback", 'File "', "root:", "site-packages"):
            assert inside not in answer.text
    assert statuses >= {400, 404, 405, 415, 422}
    assert client.get("/api/about").status_code == 200


def test_an_error_inside_stays_inside(bench: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []

    def broken(*_args: Any) -> Any:
        raise RuntimeError("secret of the inside")

    monkeypatch.setattr(bench.pictures, "record", broken)
    with make_client(bench, report=lines.append) as visitor:
        answer = visitor.get("/api/pictures/" + "0" * 32)
        assert answer.status_code == 500
        assert "secret" not in answer.text and set(answer.json()) == {"error"}
        assert len(lines) == 1 and "RuntimeError" in lines[0]
        assert visitor.get("/api/about").status_code == 200


def test_nothing_but_pixels_of_an_upload_is_sent_back(client: TestClient) -> None:
    buffer = io.BytesIO()
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    Image.open(io.BytesIO(png(5))).convert("RGB").save(buffer, "JPEG", comment=b"SECRET", icc_profile=profile)
    key = upload(client, buffer.getvalue(), "a.jpg")
    thumbnail = client.get(f"/api/pictures/{key}/thumbnail").content
    assert b"SECRET" not in thumbnail and b"ICC_PROFILE" not in thumbnail
    found = asked(client, "/api/maps", picture=key, model=MODEL, method="center_map", target=1)
    with zipfile.ZipFile(io.BytesIO(client.get(f"/api/bundle?maps={found['key']}").content)) as archive:
        assert not [name for name in archive.namelist() if Path(name).name.startswith(".")], "no locks"
        assert b"iCCP" not in archive.read("picture.png")


def test_an_archive_where_no_geometry_leads_back(tmp_path: Path, gallery: Path) -> None:
    def turned(image: Image.Image) -> torch.Tensor:
        pixels = np.asarray(image.rotate(90, expand=True).resize((32, 32)).convert("RGB"), dtype=np.float32) / 255
        return torch.from_numpy(pixels).permute(2, 0, 1)

    layers = [nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)]
    bench = make_bench(load_model(nn.Sequential(*layers).eval(), transform=turned), tmp_path / "cache", gallery)
    with make_client(bench) as client:
        key = upload(client, png(2))
        found = asked(client, "/api/maps", picture=key, model=MODEL, method="gradient", target=1)
        assert client.get(f"/api/bundle?maps={found['key']}").status_code == 200
    bench.jobs.close()

"""Access: who may come in, what every answer carries, and that no error leaves as anything but one line.

Without a token only this machine is served, under its own names: a page elsewhere that points its name at 127.0.0.1
is turned away by the Host header, and one that posts forms here by the Origin header. With a token everybody who knows
it may come in, whatever the name.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import re
from collections.abc import Callable
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "aha_token"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
}
_LONGEST_TARGET = 8192
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^\[\]:/@]*))(?::[0-9]*)?")
MOST_AT_ONCE = 256  # requests that are being answered


def is_loopback(host: str) -> bool:
    """Whether an address or name means this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, *, token: str = "", report: Callable[[str], None] = lambda line: None) -> None:
        self._app, self._token, self._report = app, token, report
        self._at_once = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no web sockets here
        has_started = False

        async def guarded_send(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        self._at_once += 1
        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await _answer(guarded_send, *refusal)
            else:
                await self._app(scope, receive, guarded_send)
        except Exception as error:  # the last resort: nothing about the inside leaves
            self._report(f"{scope['method']} {scope['path'][:80]!r}: {type(error).__name__}: {str(error)[:200]}")
            if not has_started:
                await _answer(guarded_send, 500, "something went wrong inside; the server goes on")
        finally:
            self._at_once -= 1

    def _refusal(self, scope: Scope) -> tuple[int, str, dict[str, str]] | None:
        """Status, line and headers of a refusal; None lets the request in."""
        headers = Headers(scope=scope)
        if self._at_once > MOST_AT_ONCE:
            return 503, "too many requests at once; try again in a few seconds", {"retry-after": "5"}
        if len(scope.get("raw_path", b"")) + len(scope["query_string"]) > _LONGEST_TARGET:
            return 414, "the address is too long", {}
        if b"%00" in scope.get("raw_path", b"") + scope["query_string"] or "\0" in scope["path"]:
            return 400, "the address holds a NUL, which no name has", {}
        if "content-length" in headers and "transfer-encoding" in headers:
            # Where the body ends is then a matter of opinion, and what is behind it could be taken for a request.
            return 400, "a request has a content length or a transfer encoding, not both", {"connection": "close"}
        host = headers.get("host", "")
        if not self._token and not is_loopback(_without_port(host)):
            return 421, "this server answers to localhost only", {}
        if "origin" in headers and headers["origin"].partition("://")[2] != host:
            return 403, "requests from other sites are not answered", {}
        if headers.get("sec-fetch-site", "none") in ("cross-site", "same-site") and scope["path"] != "/":
            return 403, "requests from other sites are not answered", {}
        return self._token_refusal(scope, headers) if self._token else None

    def _token_refusal(self, scope: Scope, headers: Headers) -> tuple[int, str, dict[str, str]] | None:
        if self._is_token(headers.get("authorization", "").removeprefix("Bearer ")):
            return None
        if self._is_token(_cookie(headers.get("cookie", ""))):
            return None
        query = parse_qs(scope["query_string"].decode("latin-1"))
        if scope["path"] == "/" and scope["method"] == "GET" and self._is_token(query.pop("token", [""])[0]):
            # Into a cookie and out of the address, which people copy, store and show.
            # Lax, so that a link in a letter or on another site leads in; what changes anything is refused from there.
            cookie = f"{COOKIE}={self._token}; HttpOnly; SameSite=Lax; Path=/"
            rest = urlencode(query, doseq=True)
            return 303, "welcome", {"location": f"/?{rest}" if rest else "/", "set-cookie": cookie}
        return 401, "a token is needed; open the address that the server printed", {"www-authenticate": "Bearer"}

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode())


async def _answer(send: Send, status: int, line: str, headers: dict[str, str] | None = None) -> None:
    body = json.dumps({"error": line}).encode()
    raw = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in raw.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def _without_port(host: str) -> str:
    """The name or address in a `Host` header; empty where there is more in it than that and a port."""
    found = _HOST.fullmatch(host)
    return "" if found is None else found[1] or found[2]


def _cookie(header: str) -> str:
    # By hand: `SimpleCookie` gives up at a cookie that it dislikes, and other applications on this host have theirs.
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return {name: value for name, _, value in pairs}.get(COOKIE, "")

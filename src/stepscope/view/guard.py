"""Who may ask the local server: only the page that it gave, in the browser of whoever has the link."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types stepscope"
)
#: Behind the proxy of a notebook server, whose own pages may show this one.
PROXIED_POLICY = POLICY.replace("frame-ancestors 'none'", "frame-ancestors 'self'")
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_TOKEN = b"x-stepscope-token"


class Guard:
    """Refuses requests that are not from the page, and puts the security headers on every answer.

    A name that some site points to this machine is refused by ``Host`` (421), a page of another origin by ``Origin``
    and ``Sec-Fetch-Site`` (403), and whoever does not have the link by its token (401); the page itself holds no data.

    Behind a proxy, ``Host`` is the proxy's, which cannot be known: there the token alone keeps other names out.

    Args:
        app: What answers.
        token: What the link holds.
        hosts: Names of this server in ``Host``, with its port; None behind a proxy.
    """

    def __init__(self, app: App, token: str, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = hosts
        policy = POLICY if hosts is not None else PROXIED_POLICY
        self._headers = ((b"content-security-policy", policy.encode()), *_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        refused = self._refused(scope)
        if refused is None:
            await self._app(scope, receive, with_headers)
            return
        status, text = refused
        headers = [(b"content-type", b"text/plain; charset=utf-8")]
        await with_headers({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": text.encode()})

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self._hosts is not None and host not in self._hosts:
            return 421, "This server answers to its own address only.\n"
        schemes = ("http",) if self._hosts is not None else ("http", "https")
        if headers.get(b"origin", f"http://{host}".encode()) not in [f"{one}://{host}".encode() for one in schemes]:
            return 403, "This page may not ask this server.\n"
        if headers.get(b"sec-fetch-site", b"same-origin") not in (b"same-origin", b"none"):
            return 403, "This page may not ask this server.\n"
        given = headers.get(_TOKEN, b"")
        if "/api/" in scope["path"] and not hmac.compare_digest(given, self._token):
            return 401, "Open the link that `stepscope view` printed: it holds the key.\n"
        return None

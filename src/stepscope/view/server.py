"""The local server: the page's files, and the answers to what it asks.

It listens on this machine only. The link that it prints holds a token in its fragment, which no log and no other site
sees; the page sends it with every request.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from stepscope.errors import StepscopeError, UsageError
from stepscope.report.page.one_file import bundle
from stepscope.report.safe_text import json_bytes
from stepscope.run import Run
from stepscope.view.guard import App, Guard
from stepscope.view.served_run import LATEST, Searched, ServedRun

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    Answer: TypeAlias = Callable[[Request], Awaitable[Response]]

ADDRESS = "127.0.0.1"
_PORT, _PORTS = 8377, 50
_SHELL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>stepscope</title><link rel="stylesheet" href="page.css"></head>
<body><div id="page"></div><noscript>This page needs JavaScript. In a terminal: stepscope report RUN</noscript>
<script src="page.js"></script></body></html>
"""
_MOST_BODY, _MOST_PARTS = 1 << 20, 64


class _OfRank(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked of one rank: lanes, names and kinds by its numbers, times since the start of its timeline, ns."""

    rank: int | None = None
    lanes: list[int] = []
    names: list[int] = []
    kinds: list[int] = []
    least: int = 0
    most: int = LATEST
    module: str = ""
    a: int = 0
    b: int = 0

    @property
    def wanted(self) -> Searched:
        """What is searched."""
        numbers = (frozenset(self.names), frozenset(self.lanes), frozenset(self.kinds))
        return Searched(*numbers, self.least, self.most, self.module)


class _Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request; each answer takes the fields that it needs."""

    rank: int | None = None
    name: str = ""
    parts: list[_OfRank] = []
    px: int = 0
    place: int = -1
    which: str = ""
    back: bool = False


class Server:
    """A server for one run, or for several: then its first page lists them, and each has its pages below ``/<place>/``.

    Args:
        runs: What it shows; of several, in the order of the list.
        port: Port to listen on; a free one from 8377 on by default.
        proxied: Whether a notebook server passes requests on, by jupyter-server-proxy.

    Raises:
        UsageError: The extra ``stepscope[view]`` is not installed, the browser side is not built, or the port is taken.
    """

    def __init__(self, runs: Run | Sequence[Run], *, port: int | None = None, proxied: bool = False) -> None:
        try:
            import starlette
            import uvicorn  # noqa: F401 - said now, not when it starts
        except ImportError as error:
            message = f"The local server needs {error.name}."
            raise UsageError(message, "pip install 'stepscope[view]'.") from None
        del starlette
        bundle("page.js")
        self.token = secrets.token_urlsafe(24)
        self.socket = _listening(port)
        self.port = int(self.socket.getsockname()[1])
        self._proxied = proxied
        self._served = [ServedRun(run) for run in ([runs] if isinstance(runs, Run) else runs)]

    @property
    def link(self) -> str:
        """The address to open; below JupyterHub its path, which follows the address of the hub."""
        if not self._proxied:
            return f"http://{ADDRESS}:{self.port}/#token={self.token}"
        notebooks = os.environ.get("JUPYTERHUB_SERVICE_PREFIX") or os.environ.get("JUPYTER_SERVER_URL") or "/"
        return f"{notebooks.rstrip('/')}/proxy/{self.port}/#token={self.token}"

    @property
    def app(self) -> App:
        """The application, guarded."""
        hosts = frozenset(f"{name}:{self.port}" for name in (ADDRESS, "localhost"))
        return Guard(_application(self._served), self.token, None if self._proxied else hosts)

    def serve(self) -> None:
        """Answer until Ctrl-C."""
        import uvicorn

        if len(self._served) == 1:  # while the browser starts
            Thread(target=self._served[0].prepare, daemon=True).start()
        settings = uvicorn.Config(self.app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        try:
            uvicorn.Server(settings).run([self.socket])
        finally:
            self.close()

    def close(self) -> None:
        """Close the socket, and remove what was kept for the time of the server."""
        self.socket.close()
        for one in self._served:
            one.close()


def _listening(port: int | None) -> socket.socket:
    tried = range(_PORT, _PORT + _PORTS) if port is None else (port,)
    for number in tried:
        found = socket.socket()
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((ADDRESS, number))
            found.listen()
        except OSError:
            found.close()
            continue
        return found
    message = f"Port {port} is taken." if port is not None else f"All ports from {_PORT} on are taken."
    raise UsageError(message, "Name another with --port; 0 takes any that is free.")


def _application(served: Sequence[ServedRun]) -> Starlette:
    from starlette.applications import Starlette
    from starlette.routing import Mount, Route

    if len(served) == 1:
        return Starlette(routes=[*_files(), *_answers(served[0], listed=False)])

    def runs(_: _Asked) -> dict[str, Any]:
        return {"runs": [one.said for one in served]}

    mounts = [Mount(f"/{place}", routes=[*_files(), *_answers(one, listed=True)]) for place, one in enumerate(served)]
    return Starlette(routes=[*mounts, *_files(), Route("/api/content", _answering(runs), methods=["GET"])])


def _files() -> Iterator[Route]:
    """Yield the routes of the browser side."""
    from starlette.responses import Response
    from starlette.routing import Route

    def file(text: str, kind: str) -> Answer:
        async def answer(_: Request) -> Response:
            return Response(text, media_type=kind)

        return answer

    files = {"": (_SHELL, "text/html"), "page.css": (bundle("page.css"), "text/css")}
    files |= {name: (bundle(name), "text/javascript") for name in ("page.js", "worker.js")}
    for name, of_name in files.items():
        yield Route(f"/{name}", file(*of_name), methods=["GET"])


def _answers(run: ServedRun, *, listed: bool) -> Iterator[Route]:
    """Yield the routes of what the pages of a run ask; ``listed`` says that other runs are beside it."""
    from starlette.routing import Route

    of = run.of
    answers: dict[str, Callable[[_Asked], Any]] = {
        "part": lambda one: of(one.rank).part(one.name),
        "result": lambda one: of(one.rank).result(one.name),
        "lanes": lambda one: of(one.rank).lanes(),
        "overlays": lambda one: of(one.rank).overlay_lanes(),
        "frame": lambda one: b"".join(of(part.rank).frame(part.lanes, part.a, part.b, one.px) for part in one.parts),
        "range": lambda one: [of(part.rank).range(part.lanes, part.a, part.b) for part in one.parts],
        "count": lambda one: sum(of(part.rank).count(part.wanted) for part in one.parts),
        "bins": lambda one: [of(part.rank).bins(part.wanted, part.a, part.b, one.px) for part in one.parts],
        "bits": lambda one: b"".join(of(part.rank).bits(part.wanted) for part in one.parts[:1]),
        "find": lambda one: [of(part.rank).find(part.wanted, part.a, back=one.back) for part in one.parts],
        "again": lambda _: {**run.again(), "listed": listed},
        "grown": lambda _: run.grown(),
        "perfetto": lambda one: run.perfetto([(part.rank, part.a, part.b) for part in one.parts]),
        "span": lambda one: of(one.rank).facts(one.place),
        "chain": lambda one: of(one.rank).chain(one.place),
        "neighbour": lambda one: of(one.rank).neighbour(one.place, one.which),
    }
    content = _answering(lambda one: {**of(one.rank).content, "listed": listed})
    yield Route("/api/content", content, methods=["GET"])
    for name, compute in answers.items():
        yield Route(f"/api/{name}", _answering(compute), methods=["POST"])


def _answering(compute: Callable[[_Asked], Any]) -> Answer:
    """Return what answers a request with what is computed of it, in another thread."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import Response

    async def answer(request: Request) -> Response:
        try:
            found = await run_in_threadpool(compute, await _asked(request))
        except StepscopeError as error:
            return Response(f"{error.message} {error.remedy or ''}".strip(), 400, media_type="text/plain")
        except ValueError:
            return Response("This is not a request of the page.", 400, media_type="text/plain")
        if isinstance(found, bytes):
            return Response(found, media_type="application/octet-stream")
        return Response(json_bytes(found), media_type="application/json")

    return answer


async def _asked(request: Request) -> _Asked:
    body = await request.body() if request.method == "POST" else b"{}"
    if len(body) > _MOST_BODY:
        message = "The request is too long."
        raise UsageError(message, "")
    if request.method == "GET" and "rank" in request.query_params:
        body = msgspec.json.encode({"rank": int(request.query_params["rank"])})
    asked = msgspec.json.decode(body, type=_Asked)
    if len(asked.parts) > _MOST_PARTS:
        message = f"A request is of at most {_MOST_PARTS} ranks."
        raise UsageError(message, "")
    return asked

"""Who may ask the local server."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import stepscope
from stepscope.errors import UsageError
from stepscope.view.guard import POLICY
from stepscope.view.server import Server
from tests.page.conftest import CAPTURES, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(stepscope.open(CAPTURES["cpu"])) as found:
        yield found


def ask(server: Server, path: str, body: object = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)) as connection:
        return answered(connection, server, path, body, headers)


def answered(
    connection: http.client.HTTPConnection, server: Server, path: str, body: object, headers: dict[str, str]
) -> tuple[int, dict[str, str], bytes]:
    connection.putrequest("GET" if body is None else "POST", path, skip_host=True)
    given = {"Host": f"127.0.0.1:{server.port}", **{name.replace("_", "-"): value for name, value in headers.items()}}
    text = b"" if body is None else json.dumps(body).encode()
    for name, value in {**given, "Content-Length": str(len(text))}.items():
        connection.putheader(name, value)
    connection.endheaders(text)
    answer = connection.getresponse()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def test_only_the_page_may_ask(server: Server) -> None:
    token, here = server.token, f"127.0.0.1:{server.port}"
    asked = {
        "the page": (200, {"X_Stepscope_Token": token, "Origin": f"http://{here}", "Sec_Fetch_Site": "same-origin"}),
        "by localhost": (200, {"X_Stepscope_Token": token, "Host": f"localhost:{server.port}"}),
        "another name for this machine": (421, {"X_Stepscope_Token": token, "Host": f"evil.example:{server.port}"}),
        "another port": (421, {"X_Stepscope_Token": token, "Host": "127.0.0.1:1"}),
        "another origin": (403, {"X_Stepscope_Token": token, "Origin": "http://evil.example"}),
        "no origin of its own": (403, {"X_Stepscope_Token": token, "Origin": "null"}),
        "another site": (403, {"X_Stepscope_Token": token, "Sec_Fetch_Site": "cross-site"}),
        "no token": (401, {}),
        "a wrong token": (401, {"X_Stepscope_Token": token[:-1]}),
        "a token that is not ASCII": (401, {"X_Stepscope_Token": "\xff\xfe"}),
    }
    for who, (status, headers) in asked.items():
        assert ask(server, "/api/content", **headers)[0] == status, who


def test_only_this_machine_may_ask(server: Server) -> None:
    # Given every address of 127.0.0.0/8 leads to this machine, one that listens on all interfaces would answer
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=10)
    socket.create_connection(("127.0.0.1", server.port), timeout=10).close()


@pytest.mark.parametrize(
    "path",
    ["/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/page.js/../../server.py", "//etc/passwd", "/\x00"],
)
def test_no_path_leads_out_of_the_page(server: Server, path: str) -> None:
    token = server.token
    for body in (None, {}):
        status, _, text = ask(server, path.replace("\x00", "%00"), body, X_Stepscope_Token=token)
        assert status in (400, 404, 405), path
        assert b"root:" not in text and b"Traceback" not in text


def test_every_answer_has_the_policy(server: Server) -> None:
    for path, headers in (("/", {}), ("/page.js", {}), ("/api/content", {}), ("/none", {}), ("/", {"Host": "evil"})):
        _, found, _ = ask(server, path, **headers)
        assert found["content-security-policy"] == POLICY
        assert (found["x-content-type-options"], found["referrer-policy"]) == ("nosniff", "no-referrer")
        assert (found["cross-origin-resource-policy"], found["cross-origin-opener-policy"]) == ("same-origin",) * 2
        assert found["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in found
    assert ask(server, "/")[2].count(server.token.encode()) == 0


def test_behind_a_proxy_every_name_may_ask_that_has_the_token() -> None:
    with serving(stepscope.open(CAPTURES["cpu"]), proxied=True) as server:
        hub = {"Host": "hub.example", "X_Stepscope_Token": server.token}
        asked = {
            "the page": (200, {**hub, "Origin": "https://hub.example", "Sec_Fetch_Site": "same-origin"}),
            "another origin": (403, {**hub, "Origin": "https://evil.example"}),
            "another site": (403, {**hub, "Sec_Fetch_Site": "cross-site"}),
            "no token": (401, {"Host": "hub.example"}),
        }
        for who, (status, headers) in asked.items():
            assert ask(server, "/api/content", **headers)[0] == status, who
        policy = ask(server, "/", **hub)[1]["content-security-policy"]
        assert policy == POLICY.replace("frame-ancestors 'none'", "frame-ancestors 'self'") != POLICY


@pytest.mark.parametrize(
    ("variables", "begin"),
    [
        ({"JUPYTER_SERVER_URL": "http://localhost:8888/base/"}, "http://localhost:8888/base/proxy/"),
        ({"JUPYTERHUB_SERVICE_PREFIX": "/user/me/", "JUPYTER_SERVER_URL": "http://10.0.0.1:8888/"}, "/user/me/proxy/"),
        ({}, "/proxy/"),
    ],
)
def test_the_link_behind_a_proxy(variables: dict[str, str], begin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JUPYTERHUB_SERVICE_PREFIX", "JUPYTER_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    server = Server(stepscope.open(CAPTURES["cpu"]), port=0, proxied=True)
    assert server.link == f"{begin}{server.port}/#token={server.token}"
    server.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("frame", {"parts": [{"lanes": [0], "a": 0, "b": 10}], "px": 100_000}),
        ("frame", {"parts": [{"lanes": [10**6], "a": 0, "b": 10}], "px": 10}),
        ("frame", {"parts": [{"lanes": [-1], "a": 0, "b": 10}], "px": 10}),
        ("frame", {"parts": [{"lanes": [0] * 600, "a": 0, "b": 10}], "px": 10}),
        ("frame", {"parts": [{"lanes": [0], "a": 10, "b": 10}], "px": 10}),
        ("frame", {"parts": [{"lanes": "0", "a": 0, "b": 10}], "px": 10}),
        ("frame", {"parts": [{"lanes": [0], "a": -(2**63), "b": 2**63 - 1}], "px": 10}),
        ("frame", {"parts": [{"lanes": [0], "a": 0, "b": 10}] * 65, "px": 10}),
        ("frame", {"parts": [{"rank": 7, "lanes": [0], "a": 0, "b": 10}], "px": 10}),
        ("range", {"parts": [{"lanes": [0], "a": 2**70, "b": 2**71}]}),
        ("perfetto", {"parts": [{"rank": 7, "a": 0, "b": 10}]}),
        ("lanes", {"rank": 7}),
        ("overlays", {"rank": -1}),
        ("span", {"place": 10**9}),
        ("span", {"place": -1}),
        ("neighbour", {"place": 10**9, "which": "next"}),
        ("find", {"parts": [{"names": [10**7]}]}),
        ("result", {"name": "../../../etc/passwd"}),
        ("result", {"rank": 7, "name": "op_statistic"}),
        ("result", {"path": "/etc/passwd"}),
        ("result", {"name": "x" * 2_000_000}),
    ],
)
def test_what_the_page_does_not_ask_is_refused(server: Server, path: str, body: object) -> None:
    status, _, text = ask(server, f"/api/{path}", body, X_Stepscope_Token=server.token)
    assert status == 400
    assert b"Traceback" not in text


def test_a_taken_port_is_said_and_the_next_is_tried() -> None:
    run = stepscope.open(CAPTURES["cpu"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="is taken"):
            Server(run, port=taken.getsockname()[1])
    first = Server(run)
    second = Server(run)
    assert first.port != second.port
    first.close()
    second.close()


def test_ctrl_c_ends_it() -> None:
    command = [sys.executable, "-m", "stepscope", "view", str(CAPTURES["cpu"]), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline()
        assert address.startswith("http://127.0.0.1:")
        # Given a server that has answered
        with closing(http.client.HTTPConnection("127.0.0.1", urlsplit(address).port, timeout=60)) as connection:
            connection.request("GET", "/")
            assert connection.getresponse().status
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, 130)
    assert "Traceback" not in errors


def test_a_directory_of_runs_is_a_list_and_each_run_has_its_pages(tmp_path: Path) -> None:
    for name in ("train_20260101-000000", "train_20260102-000000"):
        command = [sys.executable, "-m", "stepscope", "import", str(CAPTURES["cpu"]), "-q", "-o", str(tmp_path / name)]
        subprocess.run(command, check=True, capture_output=True)
        [made] = (tmp_path / name).iterdir()
        made.rename(tmp_path / f"{name}-made")
        (tmp_path / name).rmdir()
    runs = stepscope.runs(tmp_path)
    with serving(runs) as found:
        key = {"X_Stepscope_Token": found.token}
        assert ask(found, "/api/content")[0] == ask(found, "/0/api/content")[0] == 401
        listed = json.loads(ask(found, "/api/content", **key)[2])["runs"]
        assert [one["name"] for one in listed] == [run.path.name for run in runs]
        content = json.loads(ask(found, "/1/api/content", **key)[2])
        assert (content["path"], content["listed"]) == (str(runs[1].ranks[0].directory.path), True)
        assert [ask(found, path, **key)[0] for path in ("/1/page.js", "/2/page.js", "/page.js")] == [200, 404, 200]

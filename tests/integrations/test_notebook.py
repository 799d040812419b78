"""``%%stepscope`` in a notebook that a kernel of Jupyter runs, and a run behind the proxy of a notebook server."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient", reason="nbclient is not installed (group trainers)")
pytest.importorskip("ipykernel", reason="ipykernel is not installed (group trainers)")

import nbformat
from nbclient import NotebookClient

import stepscope
from tests.page.conftest import CAPTURES

pytestmark = pytest.mark.filterwarnings("ignore")

TRAINING = """
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(16, 8)).square().mean().backward()
        optimizer.step()
    return steps
"""
#: Cells by what they show.
CELLS = {
    "load": "%load_ext stepscope",
    "training": TRAINING,
    "steps of the optimizer": "%%stepscope\ntrain(6)",
    "run": "run = Out[3]\nassert run.summary.steps.count == 6\nrun",
    "declared": "%%stepscope prof --no-shapes\nfor _ in range(4):\n    sum(range(100_000))\n    prof.step()",
    "prof": "prof",
    "one step": "%%stepscope\ntotal = sum(range(100_000));",
    "some": "%%stepscope --steps 2-4\ntrain(9)",
    "compare": "%stepscope compare",
    "compare two": "%stepscope compare run prof",
    "summary": "run.summary",
    "findings": "run.findings",
    "timeline": "run.timeline()",
    "a profile": "import stepscope\nwith stepscope.profile(analyse='later') as mine:\n    train(5)\nmine",
    "an error": "%%stepscope\ntrain(3)\nunknown",
    "a wrong option": "%%stepscope --colour\nran = True",
    "a wrong value": "%%stepscope --active 0\nran = True",
    "nothing ran": "'ran' in globals()",
    "no such run": "%stepscope compare a",
    "help": "%%stepscope --help\nran = True",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


def executed(cells: Iterable[str], folder: Path) -> list[list[Any]]:
    """Run a notebook of these cells, and return the outputs of each."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, kernel_name="python3", timeout=600, allow_errors=True, resources=where)
    client.execute(env={**os.environ, "JPY_SESSION_NAME": "work/my digits.ipynb", "CUDA_VISIBLE_DEVICES": ""})
    nbformat.validate(notebook)
    return [cell.outputs for cell in notebook.cells]


@pytest.fixture(scope="module")
def outputs(folder: Path) -> dict[str, list[Any]]:
    """The outputs of the cells, of one run of the notebook."""
    return dict(zip(CELLS, executed(CELLS.values(), folder), strict=True))


def data(outputs: list[Any]) -> dict[str, str]:
    """Return what the last output shows by MIME type."""
    shown: dict[str, str] = outputs[-1]["data"]
    return shown


def said(outputs: list[Any]) -> str:
    return "".join(one["text"] for one in outputs if one["output_type"] == "stream")


@pytest.mark.slow
def test_a_cell_that_trains_shows_its_steps_below_its_value(outputs: dict[str, list[Any]], folder: Path) -> None:
    value, run = outputs["steps of the optimizer"]
    assert value["data"]["text/plain"] == "6"
    text, page = run["data"]["text/plain"], run["data"]["text/html"]
    assert "6 steps" in text
    assert "found by the optimizer" in text
    assert "\x1b" not in text
    assert "6 steps" in page
    assert page.startswith("<div class=stepscope>")
    assert data(outputs["run"]) == run["data"]
    runs = stepscope.runs(folder / "stepscope-runs")
    assert runs[0].path.name.startswith("my_digits_")
    assert runs[0].summary.steps.count == 6


@pytest.mark.slow
def test_a_cell_without_an_optimizer_says_what_its_steps_are(outputs: dict[str, list[Any]]) -> None:
    assert "declared by step()" in data(outputs["declared"])["text/plain"]
    assert "4 steps" in data(outputs["declared"])["text/plain"]
    assert data(outputs["prof"]) == data(outputs["declared"])
    assert "the whole cell is one step" in data(outputs["one step"])["text/plain"]
    assert len(outputs["one step"]) == 1


@pytest.mark.slow
def test_options_select_steps(outputs: dict[str, list[Any]]) -> None:
    text = data(outputs["some"])["text/plain"]
    assert "3 steps" in text
    assert "9 steps" in text


@pytest.mark.slow
def test_the_last_two_runs_are_compared_or_two_that_are_named(outputs: dict[str, list[Any]], folder: Path) -> None:
    names = [run.path.name for run in stepscope.runs(folder / "stepscope-runs")]
    for cell, pair in (("compare", names[2:4]), ("compare two", names[:2])):
        assert " -> ".join(pair) in data(outputs[cell])["text/plain"]
        assert "One run a side" in data(outputs[cell])["text/html"]


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["summary", "findings", "timeline", "a profile"])
def test_what_people_look_at_shows_itself(outputs: dict[str, list[Any]], cell: str) -> None:
    shown = data(outputs[cell])
    assert set(shown) == {"text/plain", "text/html"}
    assert ("<iframe" in shown["text/html"]) == (cell == "timeline")
    assert len(shown["text/html"]) < 3_000_000


@pytest.mark.slow
def test_the_findings_of_a_notebook_are_told_as_text_too(outputs: dict[str, list[Any]]) -> None:
    assert "Finding(" not in data(outputs["findings"])["text/plain"]


@pytest.mark.slow
def test_an_error_of_the_cell_is_its_own_and_the_recording_is_kept(outputs: dict[str, list[Any]]) -> None:
    error = outputs["an error"][-1]
    assert (error["output_type"], error["ename"]) == ("error", "NameError")
    assert "notebook.py" not in "".join(error["traceback"])
    assert "stepscope: recorded in" in said(outputs["an error"])


@pytest.mark.slow
def test_a_mistake_is_one_line_and_the_cell_does_not_run(outputs: dict[str, list[Any]]) -> None:
    assert "unrecognized arguments: --colour" in said(outputs["a wrong option"])
    assert "'active' should be a whole number of steps from 1 on, but is 0" in said(outputs["a wrong value"])
    assert "Name two: %stepscope compare RUN NEW." in said(outputs["no such run"])
    assert "--steps" in said(outputs["help"])
    assert data(outputs["nothing ran"])["text/plain"] == "False"


def test_the_cells_of_the_documents_work_when_pasted(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "integrations.md").read_text(encoding="utf-8")
    (pasted,) = re.findall(r"^```ipython\n(.*?)^```$", page, re.M | re.S)
    assert len(re.findall(r"^.", pasted, re.M)) == 5
    assert "20 steps" in data(executed(pasted.split("\n\n"), tmp_path)[-1])["text/plain"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def running(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", *words]
    with subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def answered(address: str, **headers: str) -> tuple[int, bytes]:
    asked = urllib.request.Request(address, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("jupyter_server_proxy"), reason="jupyter-server-proxy is not installed")
def test_a_run_is_seen_behind_the_proxy_of_a_notebook_server(tmp_path: Path) -> None:
    port = free_port()
    root = f"http://127.0.0.1:{port}/deep/base/"
    options = [f"--ServerApp.port={port}", "--ServerApp.base_url=/deep/base/", "--ServerApp.root_dir=" + str(tmp_path)]
    notebooks = ["jupyter_server", "--no-browser", "--allow-root", "--IdentityProvider.token=secret", *options]
    view = ["stepscope", "view", str(CAPTURES["cpu"]), "--jupyter", "--port", "0"]
    with running(*notebooks), running(*view, JUPYTER_SERVER_URL=root, JUPYTERHUB_SERVICE_PREFIX="") as viewing:
        assert viewing.stdout is not None
        link, key = viewing.stdout.readline().strip().split("#token=")
        assert link.startswith(f"{root}proxy/")
        inside = {"Authorization": "token secret"}
        for _ in range(600):
            try:
                if answered(link, **inside)[0] == 200:
                    break
            except urllib.error.URLError:
                time.sleep(0.2)
        assert b'src="page.js"' in answered(link, **inside)[1]
        asked = {**inside, "X_Stepscope_Token": key, "Origin": f"http://127.0.0.1:{port}"}
        status, content = answered(f"{link}api/content", **asked)
        assert status == 200
        assert json.loads(content)["rank"] == 0
        assert answered(f"{link}api/content", **inside)[0] == 401
        assert answered(f"{link}api/content", **{**asked, "Origin": "http://evil.example"})[0] == 403

"""The page by its commands, over SSH, without the extra; what a file allows; groups of rows and the matrix of ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

import stepscope
from stepscope.cli.main import main
from stepscope.report.page.content import Shown
from stepscope.report.page.one_file import html
from stepscope.run import Run
from stepscope.view.server import Server
from tests.page.conftest import CAPTURES, Files, Watched, run_named, serving

Open = Callable[..., Watched]


@pytest.mark.slow
def test_a_recording_and_a_comparison_end_with_a_page(
    tmp_path: Path, opened: Open, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "train.py"
    program.write_text(
        "import torch\nmodel = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for step in range(12):\n    optimizer.zero_grad()\n    model(torch.randn(4, 8)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    for name in ("a", "b"):
        command = [sys.executable, "-m", "stepscope", "run", "--html", "--quiet", "--output", name, str(program)]
        subprocess.run(command, check=True, capture_output=True, timeout=500)
    for name in ("a", "b"):
        [page] = (tmp_path / name).rglob("report.html")
        watched = opened(page.as_uri())
        assert watched.page.inner_text("h1")
        assert "aten::addmm" in watched.page.inner_text("main")
        assert watched.wrong == []
    runs = [str(next((tmp_path / name).iterdir())) for name in ("a", "b")]
    capsys.readouterr()
    assert main(["compare", *runs, "--html", "changed.html"]) == 0
    assert "changed.html" in capsys.readouterr().out
    watched = opened((tmp_path / "changed.html").as_uri())
    assert watched.page.inner_text("h1").startswith("One run a side")
    assert watched.wrong == []


def test_over_ssh_the_line_to_type_is_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.7 50022 10.0.0.9 22")
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setattr(Server, "serve", Server.close)
    assert main(["view", str(CAPTURES["cpu"])]) == 0
    link, line = capsys.readouterr().out.splitlines()[-2:]
    port = link.removeprefix("http://127.0.0.1:").partition("/")[0]
    assert line == f"on your own machine: ssh -N -L {port}:127.0.0.1:{port} ada@10.0.0.9"


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["view", str(CAPTURES["cpu"])]) != 0
    said = capsys.readouterr().err
    assert "pip install 'stepscope[view]'" in said
    assert "Traceback" not in said


def test_a_file_runs_no_other_script_and_asks_for_nothing(files: Files, opened: Open) -> None:
    """Its policy is a meta element: what the page itself never does is refused by the browser."""
    watched = opened(files["cpu"].as_uri())
    page = watched.page
    markup = """() => {
        try { document.createElement('p').innerHTML = '<b>x</b>'; return ''; } catch (error) { return error.name; }
    }"""
    assert page.evaluate(markup) == "TypeError"
    script = """() => {
        const one = document.createElement('script');
        try { one.text = 'self.ran = 1'; } catch (error) { return error.name; }
        document.body.append(one);
        return self.ran;
    }"""
    assert page.evaluate(script) == "TypeError"
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => '', error => error.name)") == "TypeError"
    assert any("Content Security Policy" in text and "connect" in text for text in watched.wrong)
    [policy] = page.locator("meta[http-equiv='Content-Security-Policy']").all()
    rules = dict(rule.strip().partition(" ")[::2] for rule in str(policy.get_attribute("content")).split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert not [rule for rule in rules.values() if "unsafe" in rule or "*" in rule]


@pytest.mark.parametrize("name", ["cpu"])
def test_rows_are_grouped_with_their_number_and_sums(
    name: str, files: Files, runs: dict[str, Run], opened: Open
) -> None:
    result = run_named(runs, name).ranks[0].results["kernel_details"]
    assert isinstance(result, pl.DataFrame)
    watched = opened(files["cpu"].as_uri())
    watched.show("kernels")
    table = watched.page.locator('section[aria-label="kernel_details"]')
    table.locator("select").select_option(label="Type")
    table.locator("th:has-text('Rows')").wait_for()
    head = [text.strip() for text in table.locator("th").all_inner_texts()]
    place = next(i for i, text in enumerate(head) if text.startswith("Duration"))
    rows = [row.locator("td") for row in table.locator("tbody tr:not([aria-hidden])").all()]
    seen = {
        cells.nth(0).inner_text(): (int(cells.nth(1).inner_text()), float(str(cells.nth(place).get_attribute("title"))))
        for cells in rows
    }
    sums = result.group_by("Type").agg(pl.len(), pl.col("Duration(us)").cast(pl.Float64).sum())
    assert seen == {kind: (count, pytest.approx(total)) for kind, count, total in sums.iter_rows()}
    assert len(seen) > 1


def test_what_flows_between_ranks_is_drawn_where_the_table_says(tmp_path: Path, opened: Open) -> None:
    """Three ranks send to the next one, each twice as much as the one before; nothing is known of the other pairs."""
    sent = {(0, 1): 2**20, (1, 2): 2**21, (2, 3): 2**22}
    for rank in range(4):
        events: list[dict[str, object]] = [
            {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 1000, "dur": 900}
        ]
        for (source, target), size in sent.items():
            if rank in (source, target):
                name, peer = ("send", target) if rank == source else ("recv", source)
                args = {
                    "Collective name": name, "Process Group Name": f"{source}{target}", "Group size": 2,
                    "dtype": "Byte",
                    "In msg nelems": size, "Out msg nelems": size, "Src Rank": source, "Dst Rank": target, "Peer": peer,
                    "Process Group Ranks": f"[{source}, {target}]", "device": 0, "stream": 20, "Seq": 1,
                }  # fmt: skip
                kernel = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv(ncclDevKernelArgs)", "pid": 0}
                events.append({**kernel, "tid": 20, "ts": 1100 + 100 * source, "dur": 50, "args": args})
        about = {"rank": rank, "world_size": 4, "backend": "nccl"}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"distributedInfo": about, "traceEvents": events}))
    run = stepscope.open(tmp_path)
    links = run.job.results["cluster_communication_matrix"]
    assert len(links) == 3
    path = tmp_path / "job.html"
    path.write_bytes(html(Shown.of(run)))
    with serving(run) as server:
        for address in (path.as_uri(), server.link):
            watched = opened(address)
            watched.show("communication")
            canvas = watched.page.locator('section[aria-label="Between ranks"] canvas')
            box = canvas.bounding_box()
            assert box is not None
            for source in range(4):
                for target in range(4):
                    at = (box["x"] + (target + 0.5) * box["width"] / 4, box["y"] + (source + 0.5) * box["height"] / 4)
                    watched.page.mouse.move(*at)
                    size = sent.get((source, target))
                    said = f"{size / 2**20:.2f} MiB" if size else "–"
                    watched.page.wait_for_selector(f"text=from rank {source}, to rank {target}: {said}")
            shades = canvas.evaluate("c => [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]")
            colours = [tuple(shades[4 * i : 4 * i + 3]) for i in range(16)]
            assert len({colours[4 * source + target] for source, target in sent}) == 3
            assert len(set(colours)) == 4
            assert watched.wrong == []

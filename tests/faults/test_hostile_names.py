"""Names from a trace stay text in every output: nothing obeys, computes or runs them, and every file stays valid."""

from __future__ import annotations

import csv
import io
import json
import random
import sqlite3
import string
from dataclasses import replace
from pathlib import Path

import msgspec
import orjson
import pytest
from rich.cells import cell_len
from rich.console import Console

import stepscope
from stepscope.advise.finding import Evidence, Finding
from stepscope.analyse.step.summarise import summarise
from stepscope.analyse.step.summary import Entry, MemoryPeak
from stepscope.report.registry import FORMATS, select
from stepscope.report.terminal.finding_pages import render_findings
from stepscope.report.terminal.printed_summary import render
from stepscope.trace.losses import Loss

from ..conftest import files_in
from ..frameworks.torch.programs import TRAINING, forked, forked_run, runs
from ..golden import hostile

#: Names of a megabyte that differ in their last character only.
LONG = "".join(random.Random(1).choices(string.ascii_letters, k=999_999))

#: A training whose ranges have such names: half of them PyTorch's, half of them stepscope's own.
LONG_NAMES = (
    TRAINING
    + """
import random, string
import stepscope
long = "".join(random.Random(1).choices(string.ascii_letters, k=999_999))
for number in range(6):
    for _ in range(16):
        with torch.profiler.record_function(long + "1"), stepscope.span(long + "2"):
            pass
    step()
"""
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("results") / "made"
    source = hostile.source()
    paths = [path for output in select("all", pretty=True) for path in output.write(source, directory)]
    return {path.name: path for path in paths}


def test_every_format_writes_its_files(written: dict[str, Path]) -> None:
    assert sorted(written) == [
        "communication.json",
        "memory.pickle",
        "memory_viz.html",
        "op_statistic.csv",
        "profile.firefox.json",
        "profile.pb.gz",
        "profile.speedscope.json",
        "stacks.collapsed.txt",
        "stepscope.db",
        "trace.pftrace",
        "trace_view.json",
    ]
    assert set(FORMATS) == {
        *("csv", "json", "db", "trace", "pftrace", "speedscope", "pprof", "firefox", "collapsed", "memory_viz"),
    }


def test_files_are_private_and_nothing_else_is_left(written: dict[str, Path]) -> None:
    directory = written["stepscope.db"].parent
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in directory.iterdir()} == dict.fromkeys(written, 0o600)


@pytest.mark.parametrize("name", ["communication.json", "trace_view.json"])
def test_json_is_valid_for_the_strictest_reader(name: str, written: dict[str, Path]) -> None:
    content = written[name].read_bytes()
    assert orjson.loads(content) == json.loads(content)
    # A terminal that shows the file obeys nothing in it.
    controls = set(content.decode("utf-8")) & {chr(code) for code in (*range(10), *range(11, 32), *range(127, 160))}
    assert not controls


def test_json_results_give_the_names_back(written: dict[str, Path]) -> None:
    document = json.loads(written["communication.json"].read_bytes())
    assert set(document) == set(hostile.NAMES)
    assert document[hostile.NAMES[0]] == {"inner": hostile.NAMES[0], "lone": "\\ud800", "nan": None}


def test_trace_view_gives_the_names_back(written: dict[str, Path]) -> None:
    document = json.loads(written["trace_view.json"].read_bytes())
    assert set(hostile.NAMES) <= {event["name"] for event in document["traceEvents"]}
    assert document["distributedInfo"] == {"rank": 3}
    assert document["<b>bold</b> & &amp; | pipe | ` tick `"] == "<b>bold</b> & &amp; | pipe | ` tick `"


def test_trace_view_numbers_are_no_trap(written: dict[str, Path]) -> None:
    events = json.loads(written["trace_view.json"].read_bytes())["traceEvents"]
    lanes = {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"}
    named = [(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"]
    assert all(pid > 0 and tid > 0 for pid, tid in lanes)
    assert sorted(named) == sorted(lanes)  # every lane has one name, and no two lanes have one number
    for lane in lanes:
        assert_nests([event for event in events if event["ph"] == "X" and (event["pid"], event["tid"]) == lane])


def assert_nests(events: list[dict[str, object]]) -> None:
    times = [(round(float(str(event["ts"])) * 1000), round(float(str(event["dur"])) * 1000)) for event in events]
    stack: list[int] = []
    for start, length in sorted(times, key=lambda time: (time[0], -time[1])):
        while stack and stack[-1] <= start:
            stack.pop()
        assert not stack or start + length <= stack[-1]
        stack.append(start + length)


def test_csv_cells_are_not_formulas(written: dict[str, Path]) -> None:
    content = written["op_statistic.csv"].read_bytes().decode("utf-8")
    csv.field_size_limit(2_000_000)  # Python's own limit is below the megabyte of the longest name
    rows = list(csv.reader(io.StringIO(content)))
    assert rows[0] == ["Name", "Time(us)", "Shapes"]
    assert len(rows) == len(hostile.NAMES) + 1 == content.count("\n")  # one line a row, whatever is in it
    for name, row in zip(hostile.NAMES, rows[1:], strict=True):
        assert not row[0].startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d"))
        assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in row[0])
        if name[:1] in "=+-@\uff1d" and name:
            assert row[0] == "'" + name
    # Negative numbers are numbers.
    assert [row[1] for row in rows[2:4]] == ["-1.000", "-2.000"]


def test_database_holds_the_names_as_they_are(written: dict[str, Path]) -> None:
    connection = sqlite3.connect(written["stepscope.db"])
    try:
        names = {name for (name,) in connection.execute("SELECT name FROM spans")}
        assert set(hostile.NAMES) <= names
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        manifest = connection.execute("SELECT json FROM documents WHERE name = 'manifest'").fetchone()[0]
        assert json.loads(manifest)["command"][-1] == "lone \\udc80 surrogate"
        assert connection.execute("SELECT typeof(ts) FROM spans LIMIT 1").fetchone() == ("integer",)
    finally:
        connection.close()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [60, 100, 200])
@pytest.mark.parametrize("name", hostile.NAMES, ids=lambda name: ascii(name)[:20])
def test_terminal_obeys_nothing(name: str, width: int, encoding: str) -> None:
    # Given a summary with the name in every place where text of the trace or the manifest is shown
    place = replace(
        summarise(hostile.source().tables),
        operators=(Entry(name, "operator", 5, 1, 0.5),),
        kernels=(Entry(name, "kernel", 5, 1, 0.5),),
        devices=(name,),
        memory=(MemoryPeak(name, 5, 6),),
        losses=(Loss(name, 1, "data_loss", name, name), Loss(name, 1, "info", name, name)),
        on_device=True,
    )
    manifest = {"worker": name, "status": name, "steps": {"by": name}, "collectors": {"torch": {"version": name}}}
    # When it is shown
    raw = io.BytesIO()
    console = Console(file=io.TextIOWrapper(raw, encoding=encoding), width=width)
    finding = Finding(
        cause="slow", title=name, gain_ns=5, evidence=(Evidence(text=name),), remedy=name, basis=name, operator=name
    )
    render(place, [finding, msgspec.structs.replace(finding, title=f"{name} again")], manifest, console)
    render_findings([finding], 10, console)
    console.file.flush()
    shown = raw.getvalue().decode(encoding)
    # Then nothing in it moves the cursor, changes the colour, hides or reorders text, and no line is too long
    assert not {character for character in shown if ord(character) < 32 and character != "\n"}
    assert not set(shown) & set("\u202e\u2028\u2029\x9b\x7f")
    assert all(cell_len(line) <= width for line in shown.split("\n"))
    assert shown.count("\n") < 200
    # and what looks like markup is there as it is
    if name.startswith("[bold red]"):
        assert "[bold red]markup" in shown


def test_the_native_recorder_keeps_names_of_a_megabyte_apart(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LONG_NAMES.replace("stepscope.span", "torch.profiler.record_function"))
    done = forked_run(tmp_path / "runs", "--collector", "native", "--skip", "1", "--active", "4", script)
    assert done.returncode == 0, done.stderr
    tables = stepscope.open(*runs(tmp_path / "runs")).tables
    found = tables["spans"].select("name").collect()["name"].value_counts().rows()
    (first, _), (second, _) = cut = [row for row in found if row[0].startswith(LONG[:900])]
    assert [count for _, count in cut] == [64, 64]
    assert first != second
    assert all("… [1000000 bytes, " in name for name, _ in cut)
    assert ("operator_names_cut", 2) in tables["losses"].select("what", "count").collect().rows()


def test_a_name_of_a_megabyte_is_not_repeated_in_every_row(tmp_path: Path) -> None:
    # Given a run of four steps with ranges of such names
    script = tmp_path / "train.py"
    script.write_text(LONG_NAMES)
    steps = ("--skip", "1", "--active", "4")
    done = forked_run(tmp_path / "runs", "--collector", "kineto", *steps, script)
    assert done.returncode == 0, done.stderr
    (run,) = runs(tmp_path / "runs")
    # When its files are written
    done = forked("-m", "stepscope", "report", "--format", "all", run)
    # Then they are small, and say so
    assert done.returncode == 0, done.stderr
    assert "names of more than 4,096 characters (2)" in done.stdout
    results = run / "rank0" / "results"
    assert sum(path.stat().st_size for path in files_in(results)) < 5_000_000
    # and the names are still two, each with its spans
    events = orjson.loads((results / "trace_view.json").read_bytes())["traceEvents"]
    found = [event["name"] for event in events if event["name"].startswith(LONG[:1000])]
    assert {found.count(name) for name in set(found)} == {64}
    assert len(set(found)) == 2
    assert all(f"{LONG[:1000]}… [1000000 characters, " in name for name in found)
    with sqlite3.connect(results / "stepscope.db") as connection:
        rows = connection.execute("SELECT name, count(*) FROM spans WHERE length(name) > 1000 GROUP BY name").fetchall()
    connection.close()
    assert dict(rows) == dict.fromkeys(found, 64)
    # and the tables have them whole, stored once
    tables = stepscope.open(run).tables
    whole = tables["spans"].select("name").collect()["name"].value_counts()
    assert [(LONG + end, 64) for end in "12"] == [row for row in sorted(whole.rows()) if len(row[0]) > 1000]
    assert sum(path.stat().st_size for path in files_in(run / "rank0" / "tables")) < 5_000_000

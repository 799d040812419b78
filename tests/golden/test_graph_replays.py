"""Kernels of a graph's replay get the operators of its capture: a decode step of sglang on MI300, and its capture."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepscope
from stepscope.analyse.operators.operator_details import operator_details
from stepscope.read import read_files
from stepscope.trace.tables import Frames, lazy
from tests.conftest import WriteTrace

DECODE, CAPTURE = "sglang_Qwen3-8B_decode.json.gz", "capture_traces/bs_32_rank0.json.gz"


@pytest.fixture(scope="module")
def folder(shared_data: Path) -> Path:
    return shared_data / "kineto" / "tracelens" / "sglang_decode"


def events_of(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return found


def expected(capture: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the kernel and the innermost operator of every launch of the capture, by looking at all operators."""
    begin, end = (next(e for e in capture if e.get("name") == f"hipStream{what}Capture") for what in ("Begin", "End"))
    operators = [event for event in capture if event.get("cat") == "cpu_op"]
    calls = [event for event in capture if "kernel" in event.get("args", {}) and event.get("cat") == "cuda_runtime"]
    rows = []
    for call in sorted(calls, key=lambda event: event["ts"]):
        if begin["ts"] < call["ts"] < end["ts"]:
            around = [o for o in operators if o["ts"] <= call["ts"] and o["ts"] + o["dur"] >= call["ts"] + call["dur"]]
            innermost = min(around, key=lambda operator: operator["dur"])
            rows.append((call["args"]["kernel"], innermost["name"]))
    return rows


def replayed(tables: Frames) -> list[tuple[str, str]]:
    """Return name and operator of the kernels of the replay, in order of time."""
    names = tables["spans"].select("id", "ts", name=pl.col("name").cast(pl.String))
    kernels = tables["kernels"].filter(pl.col("graph").is_not_null())
    rows = kernels.join(names, left_on="span", right_on="id").join(
        names.select("id", operator_name="name"), left_on="operator", right_on="id", how="left"
    )
    return rows.sort("ts").select("name", "operator_name").rows()


def losses(tables: Frames) -> dict[str, int]:
    return dict(tables["losses"].select(pl.col("what").cast(pl.String), "count").rows())


def test_the_capture_in_a_neighbouring_file_gives_the_operators(folder: Path) -> None:
    found = replayed(read_files([folder / DECODE, folder / CAPTURE]))
    assert found == expected(events_of(folder / CAPTURE))
    assert len(found) == 544


def test_a_directory_is_enough(folder: Path) -> None:
    (rank,) = stepscope.open(folder).ranks
    frames = {name: rank.tables[name].collect() for name in ("spans", "kernels")}
    assert replayed(frames) == expected(events_of(folder / CAPTURE))


def test_the_capture_in_the_same_file_gives_the_operators(folder: Path, write_trace: WriteTrace) -> None:
    """Given both as one recording; their times have one base."""
    capture = events_of(folder / CAPTURE)
    tables = read_files([write_trace([*events_of(folder / DECODE), *capture])])
    assert replayed(tables) == expected(capture)


def test_without_names_the_number_of_nodes_decides(folder: Path, write_trace: WriteTrace) -> None:
    """Given the calls as CUDA records them, without the kernel's name, and nodes that ran in another order.

    Then the n-th node is the n-th launch.
    """
    capture, decode = events_of(folder / CAPTURE), events_of(folder / DECODE)
    rows = expected(capture)
    for event in [*capture, *decode]:
        if event.get("cat") == "cuda_runtime":
            event["name"] = event["name"].replace("hip", "cuda").replace("ExtModule", "").replace("Module", "")
            event["args"].pop("kernel", None)
    nodes = [event for event in decode if event.get("args", {}).get("kind") == "Dispatch Task"]
    times = [event["ts"] for event in nodes]
    for node, event in enumerate(sorted(nodes, key=lambda event: event["ts"])):
        event["args"] |= {"graph id": 7, "graph node id": 100 + node}
        event["ts"] = times[-1 - node]
    tables = read_files([write_trace([*decode, *capture])])
    assert replayed(tables) == rows[::-1]
    assert set(tables["kernels"]["graph"].to_list()) == {None, 7}


def test_another_capture_is_none_of_the_graph(folder: Path, write_trace: WriteTrace) -> None:
    """Given a capture of other kernels, then no operator is guessed: the replay stands for them, and a loss says so."""
    capture = events_of(folder / CAPTURE)
    next(e for e in capture if "rotary" in e.get("args", {}).get("kernel", ""))["args"]["kernel"] = "another"
    tables = read_files([write_trace([*events_of(folder / DECODE), *capture])])
    assert {operator for _, operator in replayed(tables)} == {"hipGraphLaunch"}
    assert losses(tables)["graph_capture_missing"] == 544


def test_without_a_capture_the_replay_is_the_owner(folder: Path) -> None:
    """Given the decode step alone, then its replay has the time of all its kernels, and their graph has a number."""
    tables = read_files([folder / DECODE])
    tasks = [event for event in events_of(folder / DECODE) if event.get("args", {}).get("kind") == "Dispatch Task"]
    details = operator_details(lazy(tables))
    row = details.filter(pl.col("Name").cast(pl.String) == "hipGraphLaunch").row(0, named=True)
    assert row["Device Self Duration(us)"] == pytest.approx(sum(event["dur"] for event in tasks), abs=0.01)
    assert tables["kernels"]["graph"].drop_nulls().to_list() == [1] * 544
    assert losses(tables)["graph_capture_missing"] == 544


def test_the_steps_are_those_of_the_file_that_replays(folder: Path) -> None:
    decode, capture, both = (
        read_files([folder / name for name in names]) for names in ((DECODE,), (CAPTURE,), (DECODE, CAPTURE))
    )
    assert capture["steps"]["source"].cast(pl.String).to_list() == ["declared"]
    # Then one step, from the decode's first span to its last
    begin, end = (decode["spans"]["ts"].min(), (decode["spans"]["ts"] + decode["spans"]["dur"]).max())
    assert both["steps"].select("ts", end=pl.col("ts") + pl.col("dur")).rows() == [(begin, end)]
    assert losses(both)["steps_of_capture"] == 1
    assert "steps_of_capture" not in {**losses(capture), **losses(decode)}

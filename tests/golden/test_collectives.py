"""One collective is one row of ``collectives``, on real captures of NCCL and gloo."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepscope.read import read_files
from stepscope.trace.tables import Frames
from tests.conftest import WriteTrace


def document(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def shown(tables: Frames) -> pl.DataFrame:
    """Return the collectives with the names of their spans, in order of time."""
    spans = tables["spans"].select(span="id", name=pl.col("name").cast(pl.String), ts="ts")
    rows = tables["collectives"].with_columns(pl.col(pl.Categorical).cast(pl.String))
    return rows.join(spans, on="span", how="left").sort("ts")


@pytest.mark.parametrize("name", ["trace_diff/control/control", "trace_diff/test/test", "trace_filter/sampled_rank-0"])
def test_a_collective_of_nccl_is_the_row_of_its_kernel(shared_data: Path, name: str) -> None:
    """Given call, annotation and kernel of each, then each kernel is a row, and nothing else: waits move no data."""
    path = shared_data / "kineto" / "hta" / f"{name}.json.gz"
    kernels = [event["name"] for event in document(path)["traceEvents"] if event.get("cat") == "kernel"]
    expected = Counter(kernel for kernel in kernels if kernel.startswith("nccl"))
    rows = shown(read_files([path]))
    assert Counter(rows["name"].to_list()) == expected
    assert rows["span"].is_unique().all()


@pytest.mark.parametrize(("name", "count"), [("rank_non_gpu/rank_non_gpu", 6), ("distributed_info_unavailable/*", 6)])
def test_without_kernels_it_is_the_row_of_the_call(shared_data: Path, name: str, count: int) -> None:
    """Given 6 × all_to_all within ``record_param_comms``, and 6 calls that only wait, then 6 rows are there."""
    (path,) = (shared_data / "kineto" / "hta").glob(f"{name.removesuffix('.json.gz')}.json.gz")
    rows = shown(read_files([path]))
    assert rows["operation"].to_list() == ["all_to_all"] * count
    assert set(rows["name"].to_list()) == {"record_param_comms"}


def test_the_call_and_its_annotation_complete_the_row(shared_data: Path) -> None:
    """Given one process, whose NCCL launches no kernel, then the rows have what the calls say."""
    (path,) = (shared_data / "kineto/hta/ns_resolution_trace").glob("*.json.gz")
    events = document(path)["traceEvents"]
    calls = [event for event in events if event["name"] == "record_param_comms" and event["ts"]]
    moving = sorted((c for c in calls if c["args"]["Collective name"] != "wait"), key=lambda c: c["ts"])
    rows = shown(read_files([path]))
    assert rows["operation"].to_list() == [call["args"]["Collective name"] for call in moving]
    assert rows["bytes_in"].to_list() == [
        {"Float": 4, "Long": 8}[call["args"]["dtype"]] * call["args"]["In msg nelems"] for call in moving
    ]
    assert rows.select("group_size", "group_ranks").unique().rows() == [(1, "[0]")]


def test_all_ranks_of_a_group_are_those_of_the_document(shared_data: Path, write_trace: WriteTrace) -> None:
    """Given a real call, as PyTorch abbreviates the ranks of a group of 300, then the row has those of the document."""
    config = document(next((shared_data / "kineto/hta/cpu_only_old").glob("*.json.gz")))["distributedInfo"]
    largest = config["pg_config"][0]
    shortened = "[" + ", ".join(map(str, largest["ranks"][:30])) + ", ...]"
    args = {"Collective name": "allreduce", "Process Group Name": largest["pg_name"], "Group size": 300}
    event = {"cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 1, "ts": 5, "dur": 2}
    event["args"] = {**args, "Process Group Ranks": shortened}
    tables = read_files([write_trace([event], distributedInfo=config)])
    assert json.loads(tables["collectives"]["group_ranks"][0]) == largest["ranks"] == list(range(300))


@pytest.mark.parametrize(
    ("stride", "ranks"),
    [(2, list(range(1, 81, 2))), (3, None)],  # with 3, the ranks that are shown contradict
)
def test_ranks_that_no_document_lists(write_trace: WriteTrace, stride: int, ranks: list[int] | None) -> None:
    shortened = "[" + ", ".join(str(1 + 2 * place) for place in range(30)) + ", ...]"
    args = {"Collective name": "allreduce", "Process Group Name": "7", "Group size": 40}
    args |= {"Process Group Ranks": shortened, "Global rank start": 1, "Global rank stride": stride}
    event = {"cat": "cpu_op", "name": "record_param_comms", "pid": 1, "tid": 1, "ts": 5, "dur": 2, "args": args}
    (found,) = read_files([write_trace([event])])["collectives"]["group_ranks"].to_list()
    assert (json.loads(found) if found else None) == ranks


def test_without_numbers_of_its_own_a_collective_has_its_place_in_the_group(write_trace: WriteTrace) -> None:
    """Given gloo as torch 2.13 records it, then the calls of a group are numbered, but not what only two ranks do."""
    config = {"rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "pg_size": 2, "ranks": [0, 1]}]}
    names = ("gloo:all_reduce", "gloo:broadcast", "gloo:send", "gloo:all_reduce")
    events = [
        {"cat": "user_annotation", "name": name, "pid": 1, "tid": 2 + place % 2, "ts": 10 * place + 1, "dur": 3}
        for place, name in enumerate(names)
    ]
    rows = shown(read_files([write_trace(events, distributedInfo=config)]))
    assert rows.select("operation", "group", "sequence").rows() == [
        ("all_reduce", "0", 0),
        ("broadcast", "0", 1),
        ("send", "0", None),
        ("all_reduce", "0", 2),
    ]


def test_what_begins_while_a_collective_runs_is_not_its_work(write_trace: WriteTrace) -> None:
    """The range of an asynchronous collective ends with the transfer; a product that begins in it is other work."""
    names = {"c10d::alltoall_base_": (0, 10), "hccl:all_to_all": (5, 95), "aten::copy_": (6, 2), "aten::mm": (30, 20)}
    events = [
        {"cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur} for name, (ts, dur) in names.items()
    ]
    spans = read_files([write_trace(events)])["spans"].select(pl.col("name", "phase").cast(pl.String))
    phases = dict(spans.rows())
    assert phases["aten::mm"] == "other"
    assert phases["c10d::alltoall_base_"] == phases["hccl:all_to_all"] == "communication"


def test_gloo_calls_that_do_not_say_their_group_have_no_number(shared_data: Path) -> None:
    """Given ten groups, and calls that name none."""
    rows = shown(read_files([next((shared_data / "kineto/hta/cpu_only_old").glob("*.json.gz"))]))
    assert len(rows) == 10
    assert rows["sequence"].null_count() == 10

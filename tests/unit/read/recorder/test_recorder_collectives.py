"""A collective is one row: from the call of torch.distributed to the end of what the backend did, on any thread."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.read import read_files
from stepscope.read.recorder.recorder_collectives import ProcessGroups, described, operation
from tests.unit.recorder_build import BASE_EPOCH, File, Thread, group, signed, tensor, tensors

USER_SCOPE = 7
FLOAT, BFLOAT16 = 6, 15
INTEGER, NESTED, OTHER = bytes([3]), bytes([11]), bytes([0])
#: The job: four ranks; the group 2 has the description of a mesh's dimension.
JOB = {
    "backend": "gloo",
    "rank": 1,
    "world_size": 4,
    "pg_config": [
        {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cpu:gloo,cuda:gloo", "ranks": [0, 1, 2, 3]},
        {"pg_name": "2", "pg_desc": "mesh_dp", "backend_config": "cpu:gloo", "ranks": [3, 1]},
    ],
}


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "recorder.ssr", distributed=JOB)


def launch(number: int, place: int | None = None) -> int:
    """Return the value of a LAUNCH word."""
    return number << 28 | (0 if place is None else place + 1)


def call(thread: Thread, at: tuple[int, int], name: str, inputs: bytes, word: int) -> None:
    thread.begin(at[0], name, inputs=inputs, launch=word)
    thread.end(at[1])


def work(thread: Thread, at: tuple[int, int], name: str, word: int) -> None:
    thread.begin(at[0], name, scope=USER_SCOPE, identity=at[0], launch=word)
    thread.end_of(at[1], at[0])


def rows(frames: dict[str, pl.DataFrame], *columns: str) -> list[tuple[Any, ...]]:
    """Return the collectives in order of start: start, end, and columns of them, of their spans, or ``track_name``."""
    tracks = frames["tracks"].select(pl.col("id").alias("track"), pl.col("name").alias("track_name"))
    spans = frames["spans"].drop("sequence", strict=False).join(tracks, on="track")
    table = frames["collectives"].join(spans, left_on="span", right_on="id").sort("ts", "dur")
    start = (pl.col("ts") - BASE_EPOCH).alias("start")
    texts = [pl.col(name).cast(pl.String) if table.schema[name] == pl.Categorical else name for name in columns]
    return table.select(start, (start + pl.col("dur")).alias("end"), *texts).rows()


ALL = group("0", 1, 4)


def test_call_and_work_are_one_row_with_the_time_of_both(file: File) -> None:
    program, gloo = file.thread(4711), file.thread(4712, 2, "pt_gloo_runloop")
    call(program, (100, 130), "c10d::allreduce_", tensors(tensor(FLOAT, [25], [1])) + ALL + OTHER, launch(7, 3))
    work(gloo, (160, 900), "gloo:all_reduce", launch(7, 3))
    frames = read_files([file.close()])
    said = (
        "operation",
        "group",
        "group_ranks",
        "group_size",
        "dtype",
        "bytes_in",
        "bytes_out",
        "transport",
        "sequence",
    )
    assert rows(frames, *said) == [
        (100, 900, "all_reduce", "0", "[0, 1, 2, 3]", 4, "float", 100, 100, "gloo", 3),
    ]
    assert rows(frames, "name", "kind", "track_name") == [
        (100, 900, "gloo:all_reduce", "collective", "gloo 0 (default_pg)")
    ]
    assert not frames["losses"].height


def test_what_is_under_way_at_once_lies_beside_each_other(file: File) -> None:
    """Given a send that is waited for after a receive began and ended, then both are rows."""
    program = file.thread(4711)
    send, receive = tensors(tensor(BFLOAT16, [8], [1])) + ALL + INTEGER + signed(3), group("2", 1, 2) + INTEGER
    program.begin(10, "c10d::send", inputs=send, launch=launch(1))
    program.begin(12, "gloo:send", scope=USER_SCOPE, identity=1, launch=launch(1))
    program.end(20)
    program.begin(30, "c10d::recv_", inputs=tensors(tensor(BFLOAT16, [8], [1])) + receive + signed(0), launch=launch(2))
    program.begin(31, "gloo:recv", scope=USER_SCOPE, identity=2, launch=launch(2))
    program.end(40)
    program.begin(50, "aten::mm")
    program.end(60)
    program.end_of(70, 2)
    program.end_of(90, 1)
    frames = read_files([file.close()])
    said = ("operation", "source", "destination", "bytes_in", "bytes_out", "sequence", "track_name")
    assert rows(frames, *said) == [
        (10, 90, "send", 1, 3, 16, 0, None, "gloo 0 (default_pg)"),
        (30, 70, "recv", 3, 1, 0, 16, None, "gloo 2 (mesh_dp)"),  # the ranks of the group are 3 and 1
    ]
    # What the program computes meanwhile is not part of the communication
    (product,) = frames["spans"].filter(pl.col("name").cast(pl.String) == "aten::mm").rows(named=True)
    assert (product["phase"], product["depth"]) == ("other", 0)


def test_works_of_one_group_that_overlap_get_a_track_each(file: File) -> None:
    program, gloo = file.thread(4711), file.thread(4712, 2)
    for number in range(3):
        call(program, (10 * number, 10 * number + 5), "c10d::allreduce_", tensors(tensor(FLOAT, [2])) + ALL,
             launch(number + 1, number))  # fmt: skip
    for number in range(3):
        work(gloo, (100 + 10 * number, 105 + 10 * number), "gloo:all_reduce", launch(number + 1, number))
    frames = read_files([file.close()])
    assert rows(frames, "track_name") == [
        (0, 105, "gloo 0 (default_pg)"),
        (10, 115, "gloo 0 (default_pg) · 2"),
        (20, 125, "gloo 0 (default_pg) · 3"),
    ]
    assert not frames["losses"].height


def test_several_works_of_a_call_are_one_row_until_the_last_ends(file: File) -> None:
    program, gloo = file.thread(4711), file.thread(4712, 2)
    call(program, (10, 20), "c10d::reduce_scatter_", tensors(tensor(FLOAT, [3])) + NESTED + b"\x01"
         + tensors(tensor(FLOAT, [3]), tensor(FLOAT, [4])) + ALL, launch(1, 0))  # fmt: skip
    work(gloo, (30, 80), "other:reduce", launch(1, 0))
    work(gloo, (40, 50), "other:reduce", launch(1, 0))
    frames = read_files([file.close()])
    assert rows(frames, "operation", "bytes_in", "bytes_out", "transport") == [
        (10, 80, "reduce_scatter", 28, 12, "other"),
    ]


def test_of_a_backend_that_says_its_arguments_the_call_is_the_row(file: File) -> None:
    """Given NCCL, whose call launches kernels and returns, then it stays where it is: kernels are found by it."""
    program = file.thread(4711)
    program.begin(10, "c10d::allreduce_", inputs=tensors(tensor(FLOAT, [4])) + ALL, launch=launch(1, 0))
    program.begin(12, "record_param_comms", launch=launch(1, 0))
    program.begin(14, "nccl:all_reduce", scope=USER_SCOPE, identity=1, launch=launch(1, 0))
    program.end_of(26, 1)
    program.end(24)
    program.end(30)
    frames = read_files([file.close()])
    assert rows(frames, "name", "operation", "bytes_in", "sequence", "track_name") == [
        (12, 24, "record_param_comms", "all_reduce", 16, 0, "thread 4711"),
    ]


def test_a_sample_numbers_no_collective(tmp_path: Path) -> None:
    """Given ranks that draw what they record, then the n-th that one has is not the n-th of another."""
    file = File(tmp_path / "recorder.ssr", distributed=JOB, sample=0.5)
    file.rates([(0, 0.5)])
    call(file.thread(4711), (10, 60), "c10d::allreduce_", tensors(tensor(FLOAT, [2])) + ALL, launch(1))
    assert rows(read_files([file.close()]), "sequence") == [(10, 60, None)]


def test_a_call_without_a_work_is_the_collective(file: File) -> None:
    """Given a backend that says nothing, such as that of a program of its own, then its calls are what is known."""
    call(file.thread(4711), (10, 60), "c10d::_allgather_base_",
         tensor(FLOAT, [8]) + tensor(FLOAT, [2]) + ALL, launch(1, 0))  # fmt: skip
    frames = read_files([file.close()])
    assert rows(frames, "name", "kind", "operation", "bytes_in", "bytes_out", "transport") == [
        (10, 60, "c10d::_allgather_base_", "collective", "all_gather", 8, 32, "gloo"),
    ]


def test_without_inputs_operation_place_and_time_are_known(file: File) -> None:
    program, gloo = file.thread(4711), file.thread(4712, 2)
    program.begin(10, "c10d::broadcast_", launch=launch(1))
    program.end(20)
    work(gloo, (30, 40), "gloo:broadcast", launch(1))
    frames = read_files([file.close()])
    assert rows(frames, "operation", "group", "bytes_in", "transport") == [(10, 40, "broadcast", None, None, "gloo")]


def test_a_work_whose_call_is_missing_keeps_its_own_time(file: File) -> None:
    work(file.thread(4712, 2), (30, 40), "gloo:broadcast", launch(1, 0))
    assert rows(read_files([file.close()]), "operation", "group") == [(30, 40, "broadcast", None)]


def test_groups_that_the_program_has_left_are_still_known(tmp_path: Path) -> None:
    file = File(tmp_path / "recorder.ssr", distributed=JOB)
    call(file.thread(4711), (10, 60), "c10d::barrier", tensor(FLOAT, [1]) + group("2", 1, 2), launch(1, 0))
    call(file.threads[0], (70, 80), "c10d::barrier", tensor(FLOAT, [1]) + group("9", 0, 2), launch(2, 0))
    last = {"rank": 1, "world_size": 4, "pg_config": [{"pg_name": "9", "ranks": [1, 0]}]}
    frames = read_files([file.close(distributed=last)])
    said = rows(frames, "operation", "group_ranks", "bytes_in")
    assert said == [(10, 60, "barrier", "[3, 1]", None), (70, 80, "barrier", "[1, 0]", None)]
    (known,) = frames["metadata"].filter(pl.col("key") == "distributedInfo")["value"]
    assert pl.Series([known]).str.json_path_match("$.pg_count").to_list() == ["3"]


@pytest.mark.parametrize(
    ("name", "inputs", "expected"),
    [
        ("c10d::gather_", bytes([8, 0]) + tensors(tensor(FLOAT, [4])), ("gather", 16, 0)),
        ("c10d::scatter_", tensors(tensor(FLOAT, [4])) + bytes([8, 0]), ("scatter", 0, 16)),
        ("c10d::alltoall_base_", tensor(FLOAT, [6]) + tensor(FLOAT, [4]), ("all_to_all", 16, 24)),
        ("c10d::allgather_into_tensor_coalesced_", tensors(tensor(FLOAT, [6]), tensor(FLOAT, [2]))
         + tensors(tensor(FLOAT, [3]), tensor(FLOAT, [1])), ("all_gather", 16, 32)),
        ("c10d::allreduce_coalesced_", tensors(tensor(FLOAT, [2]), tensor(FLOAT, [3])), ("all_reduce", 20, 20)),
        ("c10d::reduce_", tensors(tensor(200, [2])), ("reduce", None, None)),
        ("c10d::reduce_scatter_tensor_coalesced_", tensors() + tensors(), ("reduce_scatter", 0, 0)),
        ("c10d::monitored_barrier_", tensor(FLOAT, [1]), ("barrier", None, None)),
        ("c10d::of_the_future", tensors(tensor(FLOAT, [2])), ("of_the_future", 8, 8)),
    ],
)  # fmt: skip
def test_operation_and_sizes_of_every_call(name: str, inputs: bytes, expected: tuple[Any, ...]) -> None:
    frame = described([name], ["gloo:x"], [inputs + ALL], ProcessGroups(JOB))
    assert frame.select("operation", "bytes_in", "bytes_out").row(0) == expected


def test_calls_of_the_installed_names_have_operations() -> None:
    assert operation("c10d::recv_any_source_") == "recv"
    assert operation("c10d::_reduce_scatter_base_") == "reduce_scatter"


@given(st.binary(max_size=80), st.sampled_from(["c10d::send", "c10d::allreduce_", "c10d::gather_"]))
def test_any_inputs_give_a_row(content: bytes, name: str) -> None:
    assert described([name], ["gloo:x"], [content + ALL], ProcessGroups(JOB)).height == 1
    assert described([name], ["gloo:x"], [content], ProcessGroups({"pg_config": [3, {"ranks": 4}]})).height == 1

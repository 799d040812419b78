"""The native recorder's words become the right rows; what is damaged or missing is counted, and never guessed."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepscope.errors import FormatVersionError, InputError
from stepscope.read import read_capture, read_files
from stepscope.read.recorder.operator_inputs import texts_of
from stepscope.read.sniff import look
from stepscope.trace.blocks import FrameWriter, read_frames
from stepscope.trace.cupti_layout import Kind
from stepscope.trace.losses import LossLedger
from stepscope.trace.recorder_layout import MAGIC, PYTHON_SCOPE, VERSION
from stepscope.trace.schema import GAPS
from tests.sizes import SIZE, Size
from tests.unit import cupti_build
from tests.unit.recorder_build import (
    BASE_EPOCH,
    BASE_MONOTONIC,
    BASE_TICKS,
    File,
    Thread,
    signed,
    tensor,
    unsigned,
    without,
    word,
)

USER_SCOPE = 7


@pytest.fixture(params=["C", "Python"])
def _both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_NATIVE", "1" if request.param == "C" else "0")


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "recorder.ssr")


def spans(frames: dict[str, pl.DataFrame]) -> list[tuple[str, int, int]]:
    """Return name, start and end of every span, times since the beginning of the recording."""
    frame = frames["spans"].select(pl.col("name").cast(pl.String), pl.col("ts") - BASE_EPOCH, "dur")
    return [(name, ts, ts + dur) for name, ts, dur in frame.rows()]


def losses(frames: dict[str, pl.DataFrame]) -> dict[str, int]:
    table = frames["losses"].select(pl.col("what").cast(pl.String), "count")
    return dict(table.rows())


@pytest.mark.usefixtures("_both")
def test_operators_lie_where_they_ran(file: File) -> None:
    # Given: a forward thread, and autograd's
    main, engine = file.thread(4711, 1, "python"), file.thread(4712, 2, "pt_autograd_0")
    main.begin(100, "aten::linear", sequence=3, inputs=tensor(6, [4, 3], [3, 1]) + bytes([0]))
    main.begin(200, "aten::addmm", sequence=3)
    main.memory(250, 0x7F00_1234_5678, 64, device=1 << 8 | 3)
    main.end(300)
    main.end(400)
    main.begin(450, "my range", scope=USER_SCOPE, identity=99)
    main.end_of(900, 99)
    engine.begin(500, "autograd::engine::evaluate_function: AddmmBackward0")  # its numbers are its function's
    engine.begin(510, "AddmmBackward0", sequence=3, forward=1, scope=1)
    engine.memory(520, 0x7F00_1234_5678, -64, device=1 << 8 | 3)
    engine.end(590)
    engine.end(600)
    # When: the file is read
    path = file.close()
    frames = read_files([path])
    # Then: every column of every table is right
    assert look(path)[0].format == "recorder"
    assert spans(frames) == [
        ("aten::linear", 100, 400),
        ("aten::addmm", 200, 300),
        ("my range", 450, 900),
        ("autograd::engine::evaluate_function: AddmmBackward0", 500, 600),
        ("AddmmBackward0", 510, 590),
    ]
    table = frames["spans"]
    assert table["kind"].cast(pl.String).to_list() == ["operator", "operator", "annotation", "operator", "operator"]
    assert table["parent"].to_list() == [None, 0, None, None, 3]
    assert table["depth"].to_list() == [0, 1, 0, 0, 1]
    assert table["track"].to_list() == [0, 0, 0, 1, 1]
    assert table["sequence"].to_list() == [3, 3, None, 3, 3]
    assert table["phase"].cast(pl.String).to_list() == ["forward", "forward", None, "backward", "backward"]
    assert frames["flows"].rows() == [(1, 4, "forward_backward")]
    tracks = frames["tracks"].select(pl.col("kind").cast(pl.String), "process", "thread", "name").rows()
    assert tracks == [
        ("thread", 4711, 4711, "thread 4711 (python)"),
        ("thread", 4711, 4712, "thread 4712 (pt_autograd_0)"),
    ]
    assert set(frames["tracks"]["host"].cast(pl.String)) == {"node-1"}
    details = frames["operators"].select("span", "shapes", "dtypes", "strides", "concrete", "scope", "forward_thread")
    assert details.rows()[0] == (0, "[[4,3],[]]", '["float",""]', "[[3,1],[]]", '["",""]', 0, None)
    assert details.rows()[1:] == [
        (1, None, None, None, None, 0, None),
        (3, None, None, None, None, 0, 1),
        (4, None, None, None, None, 1, 1),
    ]
    memory = frames["allocations"].select(
        pl.col("ts") - BASE_EPOCH, pl.col("device").cast(pl.String), "address", "bytes", "allocated", "reserved",
        "span", "thread",
    )  # fmt: skip
    assert memory.rows() == [
        (250, "cuda:2", 0x7F00_1234_5678, 64, 100, 200, 1, 4711),
        (520, "cuda:2", 0x7F00_1234_5678, -64, 100, 200, 4, 4712),
    ]
    assert losses(frames) == {}


def test_python_calls_give_operators_their_stack_and_module(file: File) -> None:
    thread = file.thread()
    thread.begin(10, "train.py(5): step", scope=PYTHON_SCOPE)
    thread.begin(20, "nn.Module: Linear_0", scope=PYTHON_SCOPE)
    thread.begin(30, "aten::linear")
    for at in (40, 50, 60):
        thread.end(at)
    frames = read_files([file.close()])
    assert frames["spans"]["kind"].cast(pl.String).to_list() == ["python", "python", "operator"]
    assert frames["operators"]["module"].cast(pl.String).to_list() == ["Linear_0"]
    (frames_of,) = frames["stacks"]["frames"].to_list()
    assert [frame["function"] for frame in frames_of] == ["nn.Module: Linear_0", "step"]


@pytest.mark.usefixtures("_both")
def test_the_frames_of_a_stack_have_the_lines_that_call(file: File) -> None:
    thread = file.thread()
    thread.begin(10, "train.py(5): step", scope=PYTHON_SCOPE)
    thread.begin(20, "nn.Module: Linear_0", scope=PYTHON_SCOPE, line=7)
    thread.begin(30, "linear.py(50): forward", scope=PYTHON_SCOPE, line=1700)
    for at, line in ((40, 53), (50, 54), (60, 53), (70, None), (80, 1 << 31)):
        thread.begin(at, "aten::linear", inputs=b"", identity=at, line=line)
        thread.end_of(at + 5, at)
    for at in (90, 91, 92):
        thread.end(at)
    frames = read_files([file.close()])
    stacks = dict(frames["stacks"].iter_rows())
    found = [[(frame["file"], frame["line"]) for frame in stacks[number]] for number in frames["operators"]["stack"]]
    assert found == [[("linear.py", line), (None, None), ("train.py", 7)] for line in (53, 54, 53, 50, 50)]
    assert len(stacks) == 3
    assert losses(frames) == {}
    assert "calling_line" not in frames["spans"].columns


@pytest.mark.parametrize("version", [1, 2, 3])
def test_files_of_older_versions_are_read(version: int, tmp_path: Path) -> None:
    file = File(tmp_path / "recorder.ssr", version)
    thread = file.thread()
    thread.begin(10, "train.py(5): step", scope=PYTHON_SCOPE)
    thread.begin(20, "aten::linear")
    for at in (40, 60):
        thread.end(at)
    (stack,) = read_files([file.close()])["stacks"]["frames"].to_list()
    assert stack == [{"file": "train.py", "line": 5, "function": "step"}]


def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = File(tmp_path / "recorder.ssr", VERSION + 1).close()
    with pytest.raises(FormatVersionError, match=rf"capture format {VERSION + 1}; this stepscope reads {VERSION}"):
        read_files([path])


@pytest.mark.usefixtures("_both")
def test_an_end_may_be_that_of_an_operator_further_out(file: File) -> None:
    thread = file.thread()
    for at, name in enumerate(("a", "b", "c", "d")):
        thread.begin(at, name)
    thread.end(10, level=2)
    thread.end(11)
    thread.end(12, level=1)
    thread.end(13)
    assert sorted(spans(read_files([file.close()]))) == [("a", 0, 12), ("b", 1, 10), ("c", 2, 13), ("d", 3, 11)]


@pytest.mark.usefixtures("_both")
def test_ranges_end_on_any_thread_and_their_identity_comes_again(file: File) -> None:
    one, other = file.thread(1, 1), file.thread(2, 2)
    one.begin(10, "first", scope=USER_SCOPE, identity=7)
    other.end_of(20, 7)
    one.begin(30, "second", scope=USER_SCOPE, identity=7)
    one.end_of(40, 7)
    one.begin(40, "at once", scope=USER_SCOPE, identity=7)
    one.end_of(40, 7)
    one.end_of(50, 7)  # opened before the recording
    one.begin(60, "third", scope=USER_SCOPE, identity=7)
    frames = read_files([file.close(100)])
    assert spans(frames) == [("first", 10, 20), ("second", 30, 40), ("at once", 40, 40), ("third", 60, 100)]
    assert losses(frames) == {"span_other_thread": 1, "span_opened_before": 1, "span_not_closed": 1}


@pytest.mark.usefixtures("_both")
def test_chunks_go_on_where_the_one_before_ends(file: File) -> None:
    # Given: operators that are open from one chunk to the next, and definitions that each chunk has of its own
    thread = file.thread()
    thread.begin(10, "outer")
    thread.begin(20, "inner")
    thread.next_chunk()
    thread.end(30)
    thread.begin(40, "other")
    thread.flush()
    thread.begin(50, "outer")
    thread.end(60)
    thread.end(70)
    thread.next_chunk()
    thread.end(80)
    frames = read_files([file.close()])
    assert spans(frames) == [("outer", 10, 80), ("inner", 20, 30), ("other", 40, 70), ("outer", 50, 60)]
    assert losses(frames) == {}


@pytest.mark.usefixtures("_both")
def test_what_is_open_where_a_block_is_missing_is_lost(file: File) -> None:
    # Given: blocks 0 facts, 1 clock, and then four of words, the last in a chunk of its own
    thread = file.thread()
    thread.begin(10, "before")
    thread.end(20)
    thread.begin(30, "open")
    thread.flush()
    thread.end(40)
    thread.begin(50, "in between")
    thread.flush()
    thread.end(60)
    thread.begin(70, "before")
    thread.end(80)
    thread.next_chunk()
    thread.begin(90, "last")
    thread.end(99)
    path = file.close()
    # Then: nothing takes an end that may be another's
    frames = read_files([without(path, 3)])
    assert spans(frames) == [("before", 10, 20), ("before", 70, 80), ("last", 90, 99)]
    assert losses(frames) == {"block_damaged": 1, "event_unmatched_begin": 1, "event_unmatched_end": 1}
    # The name of the second block's operators was defined in the first.
    frames = read_files([without(path, 2)])
    assert spans(frames) == [("in between", 50, 60), ("unknown operator", 70, 80), ("last", 90, 99)]
    assert losses(frames) == {"block_damaged": 1, "event_unmatched_end": 1, "operator_name_missing": 1}
    # What comes at the end of a chunk is not missed where the next chunk begins: only the file's numbers tell.
    frames = read_files([without(path, 4)])
    assert spans(frames) == [("before", 10, 20), ("open", 30, 40), ("last", 90, 99)]
    assert losses(frames) == {"block_damaged": 1, "event_unmatched_begin": 1}


@pytest.mark.usefixtures("_both")
def test_a_chunk_that_begins_with_another_depth_follows_a_gap(file: File) -> None:
    thread = file.thread()
    thread.begin(10, "open")
    thread.next_chunk()
    thread.depth = 2  # another operator began, and no word tells
    thread.end(20)
    thread.end(30)
    frames = read_files([file.close()])
    assert spans(frames) == []
    assert losses(frames) == {"event_unmatched_begin": 1, "event_unmatched_end": 2}


@pytest.mark.usefixtures("_both")
def test_operators_that_were_dropped_are_counted(file: File) -> None:
    thread = file.thread()
    thread.begin(10, "open")
    thread.next_chunk(dropped=1234)
    thread.end(20)
    thread.begin(30, "after")
    thread.end(40)
    frames = read_files([file.close(losses={"operators_dropped": 1300})])
    assert spans(frames) == [("after", 30, 40)]
    assert losses(frames) == {"event_unmatched_begin": 1, "event_unmatched_end": 1, "operators_dropped": 1300}


def gaps(frames: dict[str, pl.DataFrame]) -> list[tuple[int | None, ...]]:
    """Return between which times operators are missing, since the beginning of the recording; None: to the end."""
    (said,) = frames["metadata"].filter(pl.col("key") == GAPS)["value"].to_list() or ["[]"]
    return [tuple(None if at is None else at - BASE_EPOCH for at in gap) for gap in json.loads(said)]


@pytest.mark.usefixtures("_both")
def test_it_is_known_when_operators_are_missing(file: File) -> None:
    thread = file.thread()
    thread.begin(10, "dropped behind it")
    thread.end(20)
    thread.next_chunk(dropped=5)
    thread.begin(30, "whole")
    thread.end(40)
    thread.flush()
    file.clock(50)
    thread.begin(55, "damaged")
    thread.end(60)
    thread.flush()
    file.clock(70)
    thread.begin(75, "whole")
    thread.flush()
    file.clock(80)
    path = file.close(90, losses={"operators_dropped": 5})
    # Then: between the words of the thread that dropped; nothing else where the file is whole
    assert gaps(read_files([path])) == [(20, 30)]
    # Of a damaged block: since the reading of the clocks before it, and to the one behind the next
    assert gaps(read_files([without(path, 5)])) == [(50, 80), (20, 30)]


def test_behind_its_last_reading_of_the_clocks_a_cut_file_is_not_whole(file: File) -> None:
    thread = file.thread()
    thread.begin(10, "written")
    thread.end(20)
    thread.flush()
    file.clock(30)
    thread.begin(35, "of this thread only")
    thread.end(40)
    thread.flush()
    assert gaps(read_files([file.path])) == [(30, None)]


def test_a_killed_process_leaves_what_was_written(file: File) -> None:
    thread = file.thread()
    thread.begin(10, "open")
    thread.begin(20, "inner")
    thread.end(30)
    frames = read_files([file.close(100, closed=False)])
    assert spans(frames) == [("open", 10, 100), ("inner", 20, 30)]
    assert losses(frames) == {"ended_abruptly": 1, "span_not_closed": 1}


@pytest.mark.usefixtures("_both")
def test_ticks_move_in_a_straight_line_from_reading_to_reading(tmp_path: Path) -> None:
    # Given: a counter whose speed seems to change, because CLOCK_MONOTONIC is slewed
    file = File(tmp_path / "recorder.ssr")
    thread = file.thread()
    knots = [(0, 0), (3_000_000_000, 1_000_000_000), (6_000_000_000, 1_999_999_000), (9_000_000_001, 3_000_000_777)]
    file.ticks = lambda at: BASE_TICKS + at  # type: ignore[method-assign]
    for ticks, ns in knots[1:]:
        said = struct.pack("<c7xQqqII", b"C", BASE_TICKS + ticks, BASE_MONOTONIC + ns, BASE_EPOCH + ns, 30, 40)
        file.writer.append(said)
    times = sorted({0, 1, 2, 3, 2_999_999_999, 3_000_000_000, 4_500_000_000, 9_000_000_001, 9_300_000_000})
    for at in times:
        thread.begin(at, "op")
        thread.end(at)
    thread.flush()
    file.writer.close()
    frames = read_files([file.path])

    def expected(at: int) -> int:
        pieces = [piece for piece in pairwise(knots) if at >= piece[0][0]]
        (low, before), (high, after) = pieces[-1]
        return before + (at - low) * (after - before) // (high - low)

    assert [start for _, start, _ in spans(frames)] == [expected(at) for at in times]


def test_where_the_system_clock_is_set_the_time_line_goes_on(file: File) -> None:
    thread = file.thread()
    thread.begin(10, "across")
    thread.flush()
    file.clock(1_000_000_000)
    hour = 3_600_000_000_000
    file.clock(2_000_000_000, set_by=hour)
    thread.end(2_000_000_010)
    thread.begin(2_000_000_020, "after")
    thread.end(2_000_000_030)
    thread.flush()
    file.clock(3_000_000_000, set_by=hour)
    file.writer.close()
    frames = read_files([file.path])
    assert spans(frames) == [("across", 10, 2_000_000_010), ("after", 2_000_000_020, 2_000_000_030)]
    assert losses(frames)["clock_set"] == 1


def test_changes_of_a_sample_are_a_counter(file: File) -> None:
    file.thread().begin(10, "aten::mm")
    file.rates([(0, 0.01), (1_000, 0.0)])
    file.rates([(2_000, 0.1)])
    file.rates([(1_500, 0.1)])  # damaged: before the last one
    file.rates([(3_000, 2.0)])
    file.rates([(3_000, float("nan"))])
    frames = read_files([file.close()])
    rows = frames["counters"].select("ts", pl.col("name").cast(pl.String), "value", "track").rows()
    (lane,) = frames["tracks"].filter(pl.col("name") == "operators recorded")["id"]
    times = [BASE_EPOCH, BASE_EPOCH + 1_000, BASE_EPOCH + 2_000]
    assert rows == [(at, "operators recorded", value, lane) for at, value in zip(times, (0.01, 0.0, 0.1), strict=True)]
    assert dict(frames["losses"].select("what", "count").rows())["journal_unreadable"] == 3


def test_ticks_may_be_nanoseconds(tmp_path: Path) -> None:
    file = File(tmp_path / "recorder.ssr", clock="monotonic")
    thread = file.thread()
    thread.begin(1_234_567, "op")
    thread.end(1_234_568)
    frames = read_files([file.close()])
    assert spans(frames) == [("op", 1_234_567, 1_234_568)]
    facts = dict(frames["metadata"].rows())
    assert json.loads(facts["recorder_clock"]) == {"clock": "monotonic", "error_ns": 70}


def test_one_reading_of_the_clocks_does_not_tell_the_rate(file: File) -> None:
    thread = file.thread()
    thread.begin(10, "op")
    thread.end(20)
    thread.flush()
    file.writer.close()
    frames = read_files([file.path])
    assert frames["spans"].height == 1
    assert losses(frames)["clock_rate_unknown"] == 1
    assert "error" in frames["losses"]["severity"].cast(pl.String).to_list()


def test_times_that_cannot_be_are_left_out(file: File) -> None:
    thread = file.thread()
    thread.begin(10, "late")
    thread.end(1 << 50)
    thread.begin(20, "backwards")
    thread.end(15)
    thread.begin(30, "good")
    thread.end(40)
    frames = read_files([file.close()])
    assert spans(frames) == [("good", 30, 40)]
    assert losses(frames) == {"event_bad_time": 1, "event_negative_duration": 1}


def test_forward_and_backward_meet_by_thread_and_number(file: File) -> None:
    # Given: two threads that count alike, autograd's thread for both, and several operators with one number
    one, other, engine = file.thread(1, 1), file.thread(2, 2), file.thread(3, 3)
    for thread, at in ((one, 100), (other, 200)):
        thread.begin(at, f"aten::outer{at}", sequence=5)
        thread.begin(at + 10, f"aten::node{at}", sequence=5)
        thread.end(at + 20)
        thread.end(at + 30)
        thread.begin(at + 40, f"aten::unrelated{at}", sequence=6)
        thread.end(at + 50)
    for forward, at in ((2, 300), (1, 400)):
        engine.begin(at, f"autograd::engine::evaluate_function: Backward{at}")
        engine.begin(at + 10, f"Backward{at}", sequence=5, forward=forward)
        engine.end(at + 20)
        engine.end(at + 30)
    frames = read_files([file.close()])
    name = frames["spans"]["name"].cast(pl.String).to_list()
    assert sorted((name[begin], name[end]) for begin, end, _ in frames["flows"].rows()) == [
        ("aten::node100", "Backward400"),
        ("aten::node200", "Backward300"),
    ]


def test_marks_of_steps_are_steps(file: File) -> None:
    thread = file.thread()
    for number in (3, 4):
        thread.begin(100 * number, f"ProfilerStep#{number}", scope=USER_SCOPE, identity=number)
        thread.begin(100 * number + 10, "aten::add")
        thread.end(100 * number + 20)
        thread.end_of(100 * number + 90, number)
    frames = read_files([file.close()])
    assert frames["steps"].select("number", pl.col("ts") - BASE_EPOCH, "dur").rows() == [(3, 300, 90), (4, 400, 90)]
    assert frames["spans"]["step"].to_list() == [3, 3, 4, 4]


def test_threads_have_the_names_that_python_gave_them(file: File) -> None:
    thread = file.thread(4712, 2, "python")
    thread.begin(10, "op")
    thread.end(20)
    frames = read_files([file.close(threads={str(4712 << 20): "loader"})])
    assert frames["tracks"]["name"].to_list() == ["thread 4712 (loader)"]


REAL = b"\x04"


def real(value: float) -> bytes:
    return REAL + struct.pack("<d", value)


#: A definition of inputs → what Kineto of torch 2.13 writes of the same inputs: dims, types, strides, concrete inputs.
INPUTS: list[tuple[bytes, tuple[str, str, str, str]]] = [
    (tensor(6, [8, 3, 3, 3], [27, 9, 3, 1]), ("[[8,3,3,3]]", '["float"]', "[[27,9,3,1]]", '[""]')),
    (tensor(4, []), ("[[]]", '["long int"]', "[[]]", '[""]')),
    (tensor(15, [1 << 40], [1]), (f"[[{1 << 40}]]", '["c10::BFloat16"]', "[[1]]", '[""]')),
    (tensor(9, [2]), ("[[2]]", '["c10::complex<float>"]', "[[]]", '[""]')),
    (bytes([0]), ("[[]]", '[""]', "[[]]", '[""]')),
    (bytes([2]), ("[[]]", '[""]', "[[]]", '[""]')),
    (b"\x03" + signed(-100), ("[[]]", '["Scalar"]', "[[]]", '["-100"]')),
    (b"\x03" + signed(1 << 40), ("[[]]", '["Scalar"]', "[[]]", '["1099511627776"]')),
    (b"\x05\x01\x05\x00", ("[[],[]]", '["Scalar","Scalar"]', "[[],[]]", '["True","False"]')),
    (
        b"\x07" + unsigned(2) + tensor(6, [2, 3], [3, 1]) + bytes([2]),
        ("[[[2,3],[]]]", '["TensorList"]', "[[[3,1],[]]]", '[""]'),
    ),
    (b"\x08\x02" + b"\x03" + signed(1) + b"\x03" + signed(-1), ("[[]]", '["ScalarList"]', "[[]]", '["[1, -1]"]')),
    (b"\x08\x00", ("[[]]", '["ScalarList"]', "[[]]", '["[]"]')),
    (b"\x08\x02" + real(2.0) + b"\x05\x01", ("[[]]", '["ScalarList"]', "[[]]", '["[2., True]"]')),
    (b"", ("[]", "[]", "[]", "[]")),
]

#: Numbers as that torch writes them.
REALS = {
    1e-7: "9.9999999999999995e-08", 3.0: "3.", 1e20: "1e+20", float("inf"): "inf", -float("inf"): "-inf",
    float("nan"): "nan", -0.0: "0.", 123456789.125: "123456789.125", 0.1 + 0.2: "0.30000000000000004",
    1e10: "10000000000.", -5.0: "-5.", 1e300: "1.0000000000000001e+300", 5e-324: "4.9406564584124654e-324",
    0.5: "0.5", -1e9: "-1000000000.",
}  # fmt: skip


@pytest.mark.parametrize(("content", "texts"), INPUTS)
def test_inputs_are_spelled_as_kineto_does(content: bytes, texts: tuple[str, ...]) -> None:
    assert texts_of(content) == (texts, True)


@pytest.mark.parametrize(("value", "text"), REALS.items())
def test_numbers_are_spelled_as_kineto_does(value: float, text: str) -> None:
    assert json.loads(texts_of(real(value))[0].concrete) == [text]


@pytest.mark.parametrize(("value", "text"), [(1 + 2j, "1.+2.j"), (1 - 2.5j, "1.-2.5j")])
def test_complex_numbers_are_spelled_as_kineto_does(value: complex, text: str) -> None:
    content = b"\x06" + struct.pack("<dd", value.real, value.imag)
    assert json.loads(texts_of(content)[0].concrete) == [text]


def test_inputs_that_were_cut_keep_what_comes_before(file: File) -> None:
    thread = file.thread()
    for content in (tensor(6, [2], [1]) + b"\x09", tensor(6, [2], [1]) + tensor(6, [3], [1])[:-1]):
        thread.begin(10, "op", inputs=content)
        thread.end(20)
    frames = read_files([file.close()])
    assert set(frames["operators"]["shapes"].cast(pl.String)) == {"[[2]]"}
    assert losses(frames) == {"operator_inputs_cut": 2}


@given(st.binary(max_size=60))
def test_any_bytes_give_lists_of_one_length(content: bytes) -> None:
    texts, _ = texts_of(content)
    assert len({len(json.loads(text)) for text in texts}) == 1


@dataclass(frozen=True)
class Ran:
    """An operator that the model of a thread knows."""

    name: str
    begin: int
    end: int


class Program:
    """Two threads that do what chance says, written down as the recorder would, and what they did."""

    def __init__(self, path: Path, seed: int, steps: int) -> None:
        self.file = File(path)
        self.chance = random.Random(seed)
        self.ran: list[Ran] = []
        self.now = self.begun = 0
        self.ranges: dict[int, tuple[str, int]] = {}
        threads = [self.file.thread(4711, 1), self.file.thread(4712, 2)]
        stacks: list[list[tuple[str, int]]] = [[], []]
        for _ in range(steps):
            self.now += self.chance.randint(1, 50)
            which = self.chance.randrange(2)
            self._step(threads[which], stacks[which])
        self.open = [*stacks[0], *stacks[1], *self.ranges.values()]
        self.path = self.file.close(self.now + 10)

    def _step(self, thread: Thread, stack: list[tuple[str, int]]) -> None:
        choice, name = self.chance.random(), f"op{self.chance.randint(0, 5)}"
        if choice < 0.45 and len(stack) < 6:
            self.begun += 1
            inputs = self.chance.choice([None, tensor(6, [self.chance.randint(0, 300)], [1])])
            thread.begin(self.now, name, inputs=inputs, sequence=self.chance.randint(-1, 9))
            stack.append((name, self.now))
        elif choice < 0.8 and stack:
            level = self.chance.randint(0, len(stack) - 1) if self.chance.random() < 0.1 else 0
            thread.end(self.now, level)
            self.ran.append(Ran(*stack.pop(len(stack) - 1 - level), self.now))
        elif choice < 0.87:
            self._range(thread, name)
        elif choice < 0.9:
            thread.memory(self.now, 64, 64)
        elif choice < 0.97:
            self.file.clock(self.now)
            for each in self.file.threads:
                each.flush()
        else:
            thread.next_chunk()

    def _range(self, thread: Thread, name: str) -> None:
        identity = self.chance.randint(1, 3)
        if identity in self.ranges:
            thread.end_of(self.now, identity)
            self.ran.append(Ran(*self.ranges.pop(identity), self.now))
        else:
            self.begun += 1
            thread.begin(self.now, name, scope=USER_SCOPE, identity=identity)
            self.ranges[identity] = name, self.now


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("recorder")  # type: ignore[return-value]


#: The fixtures of these tests hold no state that an example changes.
STATELESS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
SEVERAL = settings(max_examples=SIZE.examples(60), suppress_health_check=STATELESS)


@SEVERAL
@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 150))
@pytest.mark.usefixtures("_both")
def test_every_operator_of_any_program_is_there(seed: int, steps: int, folder: Path) -> None:
    path = folder / "program.ssr"
    path.unlink(missing_ok=True)
    program = Program(path, seed, steps)
    frames = read_files([path])
    expected = [(ran.name, ran.begin, ran.end) for ran in program.ran]
    expected += [(name, begin, program.now + 10) for name, begin in program.open]
    assert sorted(spans(frames)) == sorted(expected)
    found = losses(frames)
    assert found.pop("span_not_closed", 0) == len(program.open)
    assert set(found) <= {"span_crosses_parent", "span_other_thread"}


@SEVERAL
@given(seed=st.integers(0, 1 << 32), lost=st.integers(1, 3))
@pytest.mark.usefixtures("_both")
def test_of_a_damaged_file_no_operator_is_wrong_and_every_loss_is_counted(seed: int, lost: int, folder: Path) -> None:
    path = folder / "program.ssr"
    path.unlink(missing_ok=True)
    program = Program(path, seed, 120)
    blocks = len(list(read_frames(path, LossLedger("x"), MAGIC, VERSION)))
    chosen = random.Random(seed).sample(range(1, blocks), min(lost, blocks - 1))
    frames = read_files([without(path, *chosen)])
    # Times are those of the readings that are left: there are always two, and they lie on one line.
    if frames["spans"].height and "clock_rate_unknown" not in losses(frames):
        true = Counter((ran.begin, ran.end) for ran in program.ran)
        begins = {begin for _, begin in program.open}
        for _, begin, end in spans(frames):
            assert (begin, end) in true or begin in begins
    found = losses(frames)
    assert found["block_damaged"] >= 1
    assert frames["spans"].height + found.get("event_unmatched_begin", 0) <= program.begun


def attempt(path: Path, ledger: LossLedger) -> dict[str, pl.DataFrame] | None:
    """Read one file into tables of its own, which is all that is this reader's."""
    try:
        return read_capture(look(path)[0], ledger)
    except InputError as error:
        assert str(error).count("\n") == 0
        return None


def test_every_length_of_a_small_file(tmp_path: Path, size: Size) -> None:
    program = Program(tmp_path / "program.ssr", 5, 60)
    content = program.path.read_bytes()
    whole = {(ran.begin, ran.end) for ran in program.ran}
    begins = {begin for _, begin in program.open} | {ran.begin for ran in program.ran}
    cut = tmp_path / "cut.ssr"
    read = 0
    lengths = size.lengths(len(content))
    for length in lengths:
        cut.write_bytes(content[:length])
        ledger = LossLedger("cut")
        frames = attempt(cut, ledger)
        if frames is None:
            continue
        read += 1
        lost = {loss.what for loss in ledger.rows()}
        assert lost
        if "clock_rate_unknown" not in lost:
            # An operator whose end the cut took ends, for all that is known, where the file does.
            assert all((begin, end) in whole or begin in begins for _, begin, end in spans(frames))
            assert frames["spans"].height <= program.begun
    assert read > len(lengths) * 0.9


def rewritten(path: Path, payloads: list[bytes]) -> Path:
    path.unlink(missing_ok=True)
    writer = FrameWriter(path, MAGIC, VERSION)
    for payload in payloads:
        writer.append(payload)
    writer.close()
    return path


def mutated(content: bytes, chance: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(changed) + 1)
        width = chance.choice([1, 1, 1, 4, 8])
        new = chance.choice([chance.randbytes(width), b"\xff" * width, b"\0" * width])
        changed[start : start + chance.choice([0, width, width])] = new
    return bytes(changed)


def test_two_thousand_mutations(tmp_path: Path, size: Size) -> None:
    # Half of them have the right checksums: what the reader sees is then damaged itself
    program = Program(tmp_path / "program.ssr", 6, 80)
    content = program.path.read_bytes()
    payloads = list(read_frames(program.path, LossLedger("x"), MAGIC, VERSION))
    chance = random.Random(3)
    path = tmp_path / "mutated.ssr"
    for number in range(size.many(2_000)):
        if number % 2:
            path.write_bytes(mutated(content, chance))
        else:
            chosen = chance.randrange(len(payloads))
            changed = [mutated(part, chance) if place == chosen else part for place, part in enumerate(payloads)]
            rewritten(path, changed)
        frames = attempt(path, LossLedger("mutated"))
        assert frames is None or (frames["spans"]["dur"] >= 0).all()
        if frames is not None and number % 20 == 0:
            read_files([path])


WORDS = st.tuples(
    st.integers(0, 15),
    st.one_of(st.integers(0, 9), st.integers(0, (1 << 60) - 1), st.integers(BASE_TICKS, BASE_TICKS + 999)),
)


@settings(max_examples=SIZE.examples(200), suppress_health_check=STATELESS)
@given(words=st.lists(WORDS, max_size=40))
def test_any_words_are_read_alike_by_both(words: list[tuple[int, int]], folder: Path) -> None:
    path = folder / "words.ssr"
    path.unlink(missing_ok=True)
    file = File(path)
    thread = file.thread()
    thread.words = [word(8, 0), *(word(tag, value) for tag, value in words)]
    file.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPSCOPE_NATIVE", "1")
        fast = read_capture(look(path)[0], LossLedger("x"))
        patch.setenv("STEPSCOPE_NATIVE", "0")
        plain = read_capture(look(path)[0], LossLedger("x"))
    assert all(fast[name].equals(plain[name]) for name in fast)


def test_kernels_belong_to_the_operator_around_their_launch(tmp_path: Path) -> None:
    # Given: operators of two threads, and CUPTI's account of launches on two streams, one of them of a graph
    file = File(tmp_path / "recorder.ssr")
    main, other = file.thread(4711, 1), file.thread(4712, 2)
    main.begin(1_000, "aten::mm")
    main.end(2_000)
    main.begin(3_000, "aten::add")
    main.begin(3_100, "aten::inner")
    main.end(3_900)
    main.end(4_000)
    main.begin(5_000, "graph replay", scope=USER_SCOPE, identity=5)
    main.end_of(6_000, 5)
    other.begin(1_000, "aten::copy_")
    other.end(2_000)
    operators = file.close()
    device = cupti_build.File(tmp_path / "cupti.ssc")
    device.names([(0xABC0, "gemm", "gemm"), (0xABC8, "fill", "fill")])
    call = {"process": 4711, "callback": 211}
    at = 0  # its clock, which the file's anchors take to the same epoch
    device.buffer(
        device.record(Kind.RUNTIME, **call, thread=4711, start=at + 1_100, end=at + 1_200, correlation=1),
        device.record(Kind.RUNTIME, **call, thread=4711, start=at + 3_200, end=at + 3_300, correlation=2),
        device.record(Kind.RUNTIME, **call, thread=4712, start=at + 1_150, end=at + 1_250, correlation=3),
        device.record(Kind.RUNTIME, **call, thread=4711, start=at + 5_200, end=at + 5_300, correlation=4),
        *(
            device.record(
                Kind.CONCURRENT_KERNEL, start=at + start, end=at + start + 50, stream=stream, name=name,
                correlation=number, **({"graph": 9, "graph_node": start} if number == 4 else {}),
            )
            for start, stream, number, name in (
                (7_000, 7, 1, 0xABC0), (7_000, 13, 3, 0xABC8), (7_100, 13, 2, 0xABC8), (7_200, 7, 4, 0xABC0),
                (7_300, 13, 4, 0xABC8),
            )
        ),
    )  # fmt: skip
    # When: both are read together
    frames = read_files([operators, device.close()])
    # Then: each kernel has its launch and the innermost operator around it, on the thread that launched
    name = frames["spans"]["name"].cast(pl.String).to_list()
    stream = dict(frames["tracks"].select("id", "stream").rows())
    track = frames["spans"]["track"].to_list()
    kernels = {
        (frames["spans"]["ts"][span] - BASE_EPOCH, stream[track[span]]): (
            None if operator is None else name[operator],
            launch is not None,
            graph,
        )
        for span, operator, launch, graph in frames["kernels"].select("span", "operator", "launch", "graph").rows()
    }
    assert kernels == {
        (7_000, 7): ("aten::mm", True, None),
        (7_000, 13): ("aten::copy_", True, None),
        (7_100, 13): ("aten::inner", True, None),
        (7_200, 7): (None, True, 9),
        (7_300, 13): (None, True, 9),
    }
    assert "correlation_dangling" not in losses(frames)

"""The journal's reader: sound blocks become tables, nonsense with a right checksum is a counted loss."""

from __future__ import annotations

import time
import zlib
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.collect.journal.journal import Journal
from stepscope.errors import NotATraceError
from stepscope.read.journal.journal_reader import read
from stepscope.trace.blocks import FrameWriter, pack
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import KINDS, TABLES
from stepscope.trace.tables import Frames, conform

ORIGIN = 1_700_000_000_000_000_000


def sound(**changes: Any) -> dict[str, Any]:
    """A block as the journal writes it: two spans on two threads, a step, a counter."""
    block = {
        "process": 77,
        "host": "node-3",
        "anchors": [[0, ORIGIN, 40], [1_000_000, ORIGIN + 1_000_000, 40]],
        "threads": [[1, "MainThread"]],
        "names": ["outer", "annotation", "inner", "garbage", "declared", "loss", "training", ""],
        "spans": {
            "thread": [1, 2],
            "start": [100, 200],
            "dur": [1_000, 50],
            "name": [0, 2],
            "kind": [1, 3],
            "args": ['{"b":[1,{"c":null}],"a":"x"}', None],
        },
        "steps": {"number": [4], "start": [100], "dur": [900], "source": [4]},
        "counters": {"time": [150], "lane": [6], "name": [5], "value": [0.5], "unit": [7]},
        "metadata": [["seed", "1"]],
        "losses": {"span_not_closed": 2},
        "closed": True,
    }
    return {**block, **changes}


def write(path: Path, *blocks: object) -> Path:
    writer = FrameWriter(path)
    for block in blocks:
        writer.append(block if isinstance(block, bytes) else pack(block))  # type: ignore[arg-type]
    writer.close()
    return path


def tables(path: Path) -> tuple[Frames, dict[str, int]]:
    ledger = LossLedger("test")
    frames = read(path, ledger)
    assert list(frames) == list(TABLES)
    for name, frame in frames.items():
        assert conform(name, frame).equals(frame), name
    return frames, {loss.what: loss.count for loss in ledger.rows()}


def test_every_column_of_every_table(tmp_path: Path) -> None:
    frames, lost = tables(write(tmp_path / "journal.ssj", sound()))
    assert lost == {}
    columns = ["id", "track", "ts", "dur", "name", "kind", "parent", "depth", "step"]
    assert frames["spans"].select(columns).rows() == [
        (0, 0, ORIGIN + 100, 1_000, "outer", "annotation", None, 0, None),
        (1, 1, ORIGIN + 200, 50, "inner", "garbage", None, 0, None),
    ]
    assert frames["tracks"].rows() == [
        (0, "thread", 0, "node-3", "cpu", 77, 1, None, "MainThread", 0),
        (1, "thread", 0, "node-3", "cpu", 77, 2, None, "thread 2", 1),
        (2, "counter", 0, "node-3", "cpu", 77, None, None, "training", 2),
    ]
    assert frames["counters"].rows() == [(ORIGIN + 150, 2, "loss", 0.5, "")]
    assert frames["steps"].rows() == [(4, ORIGIN + 100, 900, None, "declared", None)]
    assert frames["arguments"].rows() == [(0, "b", '[1,{"c":null}]'), (0, "a", '"x"')]
    assert frames["metadata"].rows() == [("seed", "1")]
    ((what, count, severity, source, advice),) = frames["losses"].rows()
    assert (what, count, severity, source) == ("span_not_closed", 2, "info", "journal")
    assert advice.startswith("A span was still open")


def test_blocks_are_one_recording(tmp_path: Path) -> None:
    # Given: two blocks, the later one with earlier times, another name for a thread and another value of a fact
    second = sound(threads=[[1, "trainer"], [2, "loader"]], metadata=[["seed", "2"], ["lr", "0.1"]])
    second["spans"] = {**second["spans"], "start": [50, 60]}
    frames, lost = tables(write(tmp_path / "journal.ssj", sound(), second))
    assert lost == {}
    assert frames["spans"]["ts"].to_list() == [ORIGIN + 50, ORIGIN + 60, ORIGIN + 100, ORIGIN + 200]
    assert frames["spans"]["id"].to_list() == [0, 1, 2, 3]
    assert frames["tracks"]["name"].to_list() == ["trainer", "loader", "training"]
    assert dict(frames["metadata"].iter_rows()) == {"seed": "2", "lr": "0.1"}
    assert frames["losses"]["count"].to_list() == [4]


def test_a_recording_without_end_is_said_to_be(tmp_path: Path) -> None:
    _, lost = tables(write(tmp_path / "journal.ssj", sound(closed=False)))
    assert lost == {"ended_abruptly": 1}


def test_times_of_steps_without_end_may_lack_the_last_ones(tmp_path: Path) -> None:
    """The file grows after its window, whose data are whole: the program still runs, or was killed later."""
    assert tables(write(tmp_path / "steps.ssj", sound(closed=False)))[1] == {"run_end_unknown": 1}
    (tmp_path / "closed").mkdir()
    assert tables(write(tmp_path / "closed" / "steps.ssj", sound()))[1] == {}


@pytest.mark.parametrize("content", [b"", b"SSJ1", None], ids=["empty file", "cut header", "no block"])
def test_a_journal_that_just_began(tmp_path: Path, content: bytes | None) -> None:
    path = write(tmp_path / "journal.ssj")
    if content is not None:
        path.write_bytes(content)
    frames, lost = tables(path)
    assert sum(map(len, frames.values())) == 0
    assert lost.pop("ended_abruptly") == 1
    assert lost == ({} if content is None else {"block_cut": 1})


NONSENSE = {
    "not compressed": b"plain text",
    "not JSON": zlib.compress(b"{'spans'}"),
    "a list": zlib.compress(b"[]"),
    "a number": zlib.compress(b"5"),
    "not UTF-8": zlib.compress(b'{"names":["\xff"]}'),
    "columns of unequal length": sound(spans={**sound()["spans"], "dur": [1]}),
    "a column missing": sound(steps={"number": [1]}),
    "a name that is not there": sound(names=["outer"]),
    "a negative index": sound(spans={**sound()["spans"], "name": [-1, 0]}),
    "a time beyond 64 bits": sound(spans={**sound()["spans"], "start": [2**70, 0]}),
    "a time that is no integer": sound(spans={**sound()["spans"], "start": [0.5, 1]}),
    "times that overflow together": sound(anchors=[[0, 2**62, 0]]),
    "a text for a number": sound(counters={**sound()["counters"], "value": ["many"]}),
    "an object for a text": sound(metadata=[[{}, "1"]]),
    "a step beyond 32 bits": sound(steps={**sound()["steps"], "number": [2**40]}),
    "a negative step": sound(steps={**sound()["steps"], "number": [-1]}),
    "deep nesting": zlib.compress(b"[" * 100_000),
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_with_a_right_checksum_costs_one_block(tmp_path: Path, nonsense: object) -> None:
    frames, lost = tables(write(tmp_path / "journal.ssj", sound(), nonsense, sound(), nonsense))
    assert lost == {"journal_unreadable": 2}
    assert len(frames["spans"]) == 4


def test_what_the_schema_does_not_know_is_counted_and_left_out(tmp_path: Path) -> None:
    block = sound(losses={"from the future": 3})
    block["names"][3] = "teleport"
    block["names"][4] = "guessed"
    frames, lost = tables(write(tmp_path / "journal.ssj", block))
    assert frames["spans"]["name"].to_list() == ["outer"]
    assert lost == {"journal_unreadable": 2}
    assert frames["losses"].rows() == [("from the future", 3, "info", "journal", "")]


def test_negative_durations_are_counted_and_left_out(tmp_path: Path) -> None:
    frames, lost = tables(write(tmp_path / "journal.ssj", sound(spans={**sound()["spans"], "dur": [-1, 50]})))
    assert frames["spans"]["name"].to_list() == ["inner"]
    assert frames["arguments"].is_empty()
    assert lost == {"event_negative_duration": 1}


@pytest.mark.parametrize("text", ["", "[1]", '{"a":', "{1:2}", "nul"])
def test_arguments_that_are_no_json_object(tmp_path: Path, text: str) -> None:
    frames, lost = tables(write(tmp_path / "journal.ssj", sound(spans={**sound()["spans"], "args": [text, None]})))
    assert len(frames["spans"]) == 2
    assert frames["arguments"].is_empty()
    assert lost == {"value_unreadable": 1}


def test_metadata_that_is_no_json_becomes_text(tmp_path: Path) -> None:
    frames, _ = tables(write(tmp_path / "journal.ssj", sound(metadata=[["a", "{oops"], ["b", '{"x":1}']])))
    assert dict(frames["metadata"].iter_rows()) == {"a": '"{oops"', "b": '{"x":1}'}


def test_huge_counts_do_not_overflow(tmp_path: Path) -> None:
    blocks = [sound(losses={"span_not_closed": 2**61}) for _ in range(10)]
    frames, _ = tables(write(tmp_path / "journal.ssj", *blocks))
    assert frames["losses"]["count"].to_list() == [2**61]


def test_without_an_anchor_there_are_no_times(tmp_path: Path) -> None:
    frames, lost = tables(write(tmp_path / "journal.ssj", sound(anchors=[])))
    assert frames["spans"].is_empty()
    assert frames["metadata"].rows() == [("seed", "1")]
    assert lost == {"journal_unreadable": 4}


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text("{}")
    with pytest.raises(NotATraceError):
        read(tmp_path / "trace.json", LossLedger("test"))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(sorted(sound()))


@given(st.dictionaries(keys, values, max_size=3), st.dictionaries(st.sampled_from(sorted(sound()["spans"])), values))
def test_any_content_is_read_or_counted(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any], spans: dict[str, Any]
) -> None:
    block = sound(**{"spans": {**sound()["spans"], **spans}, **changes})
    path = write(tmp_path_factory.mktemp("fuzz") / "journal.ssj", sound(), block)
    frames, lost = tables(path)
    assert len(frames["spans"]) >= 2 or lost


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**15), st.integers(0, 10**12), st.text(), st.sampled_from(sorted(KINDS)), st.integers(1, 4)
        ),
        max_size=40,
    )
)
def test_what_the_journal_records_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[int, int, str, str, int]]
) -> None:
    path = tmp_path_factory.mktemp("same") / "journal.ssj"
    journal = Journal(path)
    for start, dur, name, kind, thread in records:
        journal.span(name, kind, start, start + dur, None, thread)
    journal.close()
    frames, lost = tables(path)
    assert lost == {}
    spans = frames["spans"].join(frames["tracks"].select(track="id", thread="thread"), on="track")
    found = spans.select("ts", "dur", pl.col("name", "kind").cast(pl.String), "thread").rows()
    offset = found[0][0] - min(start for start, *_ in records) if found else 0
    assert sorted((ts - offset, *rest) for ts, *rest in found) == sorted(records)


def test_a_million_spans(tmp_path: Path) -> None:
    # Given: as many blocks as the journal would write; then: about a second, and no more
    count = 2_000
    spans = {
        "thread": [1] * count,
        "start": list(range(count)),
        "dur": [1] * count,
        "name": [0] * count,
        "kind": [1] * count,
        "args": [None] * count,
    }
    path = write(tmp_path / "journal.ssj", *[sound(spans=spans) for _ in range(500)])
    start = time.perf_counter()
    frames, _ = tables(path)
    assert len(frames["spans"]) == 1_000_000
    assert time.perf_counter() - start < 20

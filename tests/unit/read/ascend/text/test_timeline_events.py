"""Events of Ascend's timelines: the C tokenizer and msgspec read the same from any file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stepscope import native
from stepscope.read.ascend.text import timeline_events, timeline_events_tokenized
from stepscope.read.ascend.text.event_columns import AscendEvents
from stepscope.trace.losses import LossLedger
from tests.unit.ascend_build import OUTPUT, capture

pytestmark = pytest.mark.skipif(native.available() is not None, reason=str(native.available()))


def both(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[AscendEvents, LossLedger]]:
    """Read a file with the C tokenizer, and without."""
    found = []
    for switch in ("1", "0"):
        monkeypatch.setenv("STEPSCOPE_NATIVE", switch)
        ledger = LossLedger("test")
        found.append((timeline_events.read(path, ledger), ledger))
    return found


def rows(frame: pl.DataFrame) -> pl.DataFrame:
    plain = frame.with_columns(pl.col(pl.Categorical).cast(pl.String))
    return plain.sort(pl.all(), maintain_order=True)


def assert_alike(path: Path, monkeypatch: pytest.MonkeyPatch) -> AscendEvents:
    (one, lost), (other, lost_too) = both(path, monkeypatch)
    for name in ("complete", "counters", "arrows"):
        assert_frame_equal(rows(getattr(one, name)), rows(getattr(other, name)))
    assert (one.processes, one.threads) == (other.processes, other.threads)
    assert lost.rows() == lost_too.rows()
    return one


def span(**members: Any) -> dict[str, Any]:
    return {"ph": "X", "name": "op", "pid": 1, "tid": 2, "ts": "1000000.125", "dur": 1.5, "args": {}} | members


def mark(**members: Any) -> dict[str, Any]:
    return {"ph": "s", "name": "arrow", "cat": "async_npu", "pid": 1, "tid": 2, "ts": "1", "id": "7"} | members


#: What real files hold, and what they could.
CASES: dict[str, list[dict[str, Any]]] = {
    "no times": [span(ts=None), span(dur=None), {"ph": "X"}, span(dur=-1)],
    "times that are numbers": [span(ts=1000000.5, dur="2.25"), span(ts=17), span(ts="1e3"), span(ts="soon")],
    "identifiers of both sorts": [mark(id=7), mark(ph="f", id="7"), mark(id=None), mark(cat="HostToDevice")],
    "names": [span(name=None), span(name=5), span(name='a "b" \\ \n ü'), span(cat=""), span(name="")],
    "threads that are texts": [span(pid="NPU 3", tid="Stream 12"), span(pid=None), span(tid="host")],
    "arguments": [
        span(
            args={"Task Type": "AI_CORE", "Stream Id": 3, "bandwidth(GB/s)": 1.25, "notify_id": "18446744073709551615"}
        ),
        span(args={"connection_id": "15", "src rank": 1}),
        span(args={"Input Dims": None, "Call stack": "a.py(3): f;\r\n", "Task Type": 7}),
        span(args={"Task Id": {"deep": [1, "}, {"]}, "level": True}),
        span(args=None),
    ],
    "samples": [
        span(ph="C", args={"value": 3, "acc_id": 1}),
        span(ph="C", args={"KB": "no number", "MHz": True, "Read(MB/s)": 0.5}),
        span(ph="C", args={}, ts=None),
        span(ph="C", args=None),
    ],
    "names of lanes": [
        span(ph="M", name="process_name", args={"name": "Ascend Hardware"}),
        span(ph="M", name="thread_name", args={"name": "Stream 2 é"}),
        span(ph="M", name="thread_name", tid=None, args={"name": "nobody"}),
        span(ph="M", name="process_name", args={"name": 5}),
    ],
    "other phases": [span(ph="B"), span(ph="E"), span(ph="i", name="[memory]"), mark(ph="t"), span(ph="long")],
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("in_object", [False, True])
def test_the_tokenizer_reads_what_msgspec_reads(
    case: str, in_object: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace_view.json"
    found = [span(), *CASES[case], span(name="last")]
    path.write_text(json.dumps({"traceEvents": found, "more": 1} if in_object else found))
    assert assert_alike(path, monkeypatch).complete.height >= 2


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("cut", [0, 1, 20, 400])
def test_a_whole_capture_and_one_that_is_cut(
    cut: int, indent: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = capture(tmp_path) / OUTPUT / "trace_view.json"
    text = json.dumps(json.loads(path.read_text()), indent=indent)
    path.write_text(text[: len(text) - cut])
    assert assert_alike(path, monkeypatch).complete.height


def test_bytes_that_are_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace_view.json"
    path.write_bytes(json.dumps([span(name="odd"), span()]).encode().replace(b"odd", b"\xff\xfe"))
    assert assert_alike(path, monkeypatch).complete.height == 2


def test_pieces_that_are_not_taken_are_read_between_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline_events_tokenized, "BATCH_BYTES", 64 << 10)
    monkeypatch.setattr("stepscope.read.common.source.BLOCK", 16 << 10)
    path = tmp_path / "trace_view.json"
    odd = [span(name=5, args={"Call stack": "x" * 5000})]
    path.write_text(json.dumps([span(name=f"op {n}", args={"Task Id": n}) for n in range(3000)] + odd * 20))
    found = assert_alike(path, monkeypatch).complete
    assert found.height == 3020
    assert found["task"].drop_nulls().to_list() == list(range(3000))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_real_timeline(rank: int, shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shared_data / "ascend" / "text_level2" / f"rank{rank}_ascend_pt" / OUTPUT
    assert assert_alike(folder / "trace_view.json", monkeypatch).complete.height > 4000

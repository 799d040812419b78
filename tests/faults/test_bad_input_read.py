"""Whatever is given to be read: tables, or one line with a remedy; never another exception (fault matrix 25 to 34)."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import random
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from stepscope.errors import InputError, NotATraceError, StepscopeError
from stepscope.read import read_files
from stepscope.read.sniff import look
from stepscope.trace.tables import Frames
from tests.conftest import WriteTrace
from tests.sizes import Size

_SMALL = "kineto/hta/call_stack/backward_thread.json"
_MUTATED = (
    "kineto/hta/triton_example/triton_example.json.gz",
    "kineto/hta/critical_path/cuda_event_sync/event_sync_trace.json.gz",
    "kineto/hta/large_integer_trace/rank-70.Mar_25_20_48_12.2861.pt.trace.json.gz",
    "kineto/kineto/gpu_metrics/gpu_metrics_expected.json",
)


@pytest.fixture(params=["native", "plain"], autouse=True)
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setenv("STEPSCOPE_NATIVE", "0")


def _try(path: Path) -> Frames | None:
    """Read a file and ask what it is; anything but tables and our own one-line errors fails the test."""
    try:
        look(path)
        tables = read_files([path])
    except StepscopeError as error:
        assert isinstance(error, InputError)
        assert error.remedy
        assert "\n" not in str(error)
        return None
    _conserved(tables)
    return tables


def _conserved(tables: Frames) -> None:
    """Check what holds in any tables, however damaged their source."""
    spans = tables["spans"]
    assert (spans["dur"] >= 0).all()
    assert spans["id"].to_list() == list(range(spans.height))
    assert spans["track"].is_in(tables["tracks"]["id"].implode()).all()
    inner = spans.filter(pl.col("parent").is_not_null())
    outer = spans[inner["parent"]]
    assert (outer["track"] == inner["track"]).all()
    assert (outer["ts"] <= inner["ts"]).all()
    assert (outer["ts"] + outer["dur"] >= inner["ts"] + inner["dur"]).all()
    for name in ("kernels", "operators", "collectives", "arguments", "kernel_counters"):
        assert tables[name]["span"].is_in(spans["id"].implode()).all()


def _cut(content: bytes, lengths: range, path: Path) -> list[int]:
    """Read a file cut at these lengths; return how many spans each of them has."""
    spans = []
    for length in lengths:
        path.write_bytes(content[:length])
        tables = _try(path)
        if tables is not None:
            spans.append(tables["spans"].height)
            assert "file_cut" in tables["losses"]["what"].to_list()
    return spans


def test_every_length_of_a_small_file(write_trace: WriteTrace, tmp_path: Path, size: Size) -> None:
    # Given a small trace
    event = {"cat": "kernel", "pid": 0, "tid": 7, "dur": 1.5, "args": {"grid": [1, 2, 3], "stream": 7}}
    path = write_trace([{**event, "name": "a", "ts": 1.25}, {**event, "name": "b", "ts": 3}], a=[1])
    # When it is read cut at every length
    content = path.read_bytes()
    spans = _cut(content, size.lengths(len(content)), tmp_path / "cut.json")
    # Then there is never less than of a shorter one, and a cut is always said
    assert spans == sorted(spans)
    assert spans[-1] == 2


def test_many_lengths_of_a_real_file(shared_data: Path, tmp_path: Path, size: Size) -> None:
    whole = _try(shared_data / _SMALL)
    assert whole is not None
    content = (shared_data / _SMALL).read_bytes()
    spans = _cut(content, size.lengths(len(content), 47), tmp_path / "cut.json")
    assert spans == sorted(spans)
    assert spans[-1] == whole["spans"].height


def test_every_length_of_a_small_gzip_file(shared_data: Path, tmp_path: Path, size: Size) -> None:
    packed = gzip.compress((shared_data / _SMALL).read_bytes(), 1)
    path = tmp_path / "cut.json.gz"
    for length in size.lengths(len(packed), 23):
        path.write_bytes(packed[:length])
        tables = _try(path)
        assert tables is None or ("file_cut", 1) in tables["losses"].select("what", "count").rows()


def test_random_changes(shared_data: Path, tmp_path: Path, size: Size) -> None:
    # Given captures in which some bytes are changed, put in, or taken out
    chance = random.Random(20260101)
    path = tmp_path / "changed.json"
    read = 0
    for name in _MUTATED:
        content = (shared_data / name).read_bytes()
        content = gzip.decompress(content)[:12_000] if name.endswith(".gz") else content[:12_000]
        for _ in range(size.many(70)):
            path.write_bytes(_changed(content, chance))
            # When they are read, then there are tables or one line
            read += _try(path) is not None
    # Most changes cost an event at most
    assert read > size.many(200)


def _changed(content: bytes, chance: random.Random) -> bytes:
    text = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        place, many = chance.randrange(len(text)), chance.randint(1, 30)
        kind = chance.randrange(4)
        if kind == 0:
            text[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            text[place : place + many] = b""
        elif kind == 2:
            text[place:place] = bytes(chance.choices(b'{}[]",:\\0123456789.eE-tn \n\xff\x00', k=many))
        else:
            source = chance.randrange(len(text))
            text[place : place + many] = text[source : source + many]
    return bytes(text)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 1000,
        b"\x1f\x8b",
        b"\x1f\x8b" + b"x" * 100,
        b"SSJ1",
        b"SSJ1" + b"\xff" * 100,
        b"{" * 100_000,
        b"[" * 100_000,
        b'{"traceEvents":[' + b"[" * 100_000,
        b'{"traceEvents":[' + b'{"ph":' * 100_000,
        b'{"traceEvents":[{"ph":"X","ts":' + b"1" * 100_000 + b',"dur":1}]}',
        b'{"traceEvents":[{"ph":"X","name":"' + b"n" * 1_000_000 + b'","ts":1,"dur":1}]}',
        b'{"traceEvents":[],"traceEvents":[{"ph":"X"}]}',
        b'{"baseTimeNanoseconds": -5, "traceEvents":[{"ph":"X","ts":1,"dur":1}]}',
        b'{"baseTimeNanoseconds": 99999999999999999999999, "traceEvents":[{"ph":"X","ts":1,"dur":1}]}',
        b'{"distributedInfo":{"rank":"x","pg_config":[1,{"ranks":7}]},"traceEvents":[{"ph":"X","ts":1,"dur":1}]}',
        b'{"distributedInfo": [], "host_name": 7, "traceEvents":[{"ph":"M","name":"thread_name","args":{"name":7}}]}',
        b'{"traceEvents":[{"ph":"C","name":"c","ts":1,"args":{"a":"x","b":1e999,"c":true}}]}',
        b'{"traceEvents":[{"ph":"X","cat":"kernel","ts":1,"dur":1,"args":{"device":99999999999,"grid":[[1]]}}]}',
        b'{"traceEvents":[{"ph":"X","cat":"user_annotation","name":"ProfilerStep#99999999999999","ts":1,"dur":1}]}',
        b'{"traceEvents":[{"ph":"X","cat":"user_annotation","name":"nccl:x","ts":1,"dur":1,"args":'
        b'{"Input Dims":[[99999999999,99999999999]],"Input type":["float"]}}]}',
        b'{"traceEvents":[{"ph":"s","cat":"fwdbwd","id":1,"ts":1},{"ph":"f","cat":"fwdbwd","id":1,"ts":1}]}',
        b'{"traceEvents":[{"ph":"i","name":"[memory]","ts":1,"args":{"Bytes":5,"Device Type":99}}]}',
    ],
)
def test_odd_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "odd.json").write_bytes(content)
    _try(tmp_path / "odd.json")


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero"), tmp_path / "absent"):
        assert _try(path) is None


@pytest.mark.parametrize(
    ("pack", "command"),
    [
        (lzma.compress, "xz -d"),
        (bz2.compress, "bzip2 -d"),
        (lambda content: content.decode().encode("utf-16"), "iconv"),
    ],
)
def test_what_is_packed_another_way_is_said(tmp_path: Path, pack: Callable[[bytes], bytes], command: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(pack(b'{"traceEvents": []}'))
    with pytest.raises(NotATraceError) as error:
        read_files([path])
    assert command in error.value.remedy


@pytest.mark.parametrize(
    "name",
    ["kineto/tracelens/mi300_bert_small.json.gz", "kineto/hta/triton_example/triton_example.json.gz"],
)
def test_files_that_were_joined_are_said_to_be(shared_data: Path, tmp_path: Path, name: str) -> None:
    content = gzip.decompress((shared_data / name).read_bytes())
    path = tmp_path / "joined.json"
    path.write_bytes(content + b"\n" + content)
    alone, joined = read_files([shared_data / name]), read_files([path])
    assert joined["spans"].height < 2 * alone["spans"].height
    assert "text_after_end" in joined["losses"]["what"]
    assert "text_after_end" not in alone["losses"]["what"]


def test_a_bomb_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.read.common.source.RATIO_FREE", 8 << 20)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (64 << 20)))
    assert _try(path) is None

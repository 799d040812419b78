"""The C tokenizer gives what the plain reader gives, on every real capture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from stepscope import native
from stepscope.errors import NotATraceError
from stepscope.native.kineto import NotTokenized, Tokenizer
from stepscope.read import read_files
from stepscope.read.chrome_json import tokenizer as kineto_native
from stepscope.read.chrome_json.event_schema import ABSENT, Class

pytestmark = pytest.mark.skipif(native.available() is not None, reason=str(native.available()))


def _captures(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "kineto").rglob("*.json*") if path.suffix in (".json", ".gz"))


@pytest.mark.slow
def test_same_tables_as_the_plain_reader_on_every_real_capture(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given every real Kineto capture
    captures = _captures(shared_data)
    assert len(captures) > 30
    for path in captures:
        # When it is read with and without the C library
        monkeypatch.delenv("STEPSCOPE_NATIVE", raising=False)
        fast = read_files([path])
        monkeypatch.setenv("STEPSCOPE_NATIVE", "0")
        plain = read_files([path])
        # Then every table is the same
        for name, frame in plain.items():
            assert_frame_equal(_comparable(fast[name]), _comparable(frame))


def _comparable(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(pl.col(pl.Categorical).cast(pl.String))


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_same(shared_data: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    # Given a capture of several chunks
    path = shared_data / "kineto/hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
    monkeypatch.setattr("stepscope.read.common.source.BLOCK", 1 << 20)
    expected = read_files([path])
    # When it is read with some number of threads
    monkeypatch.setattr(kineto_native, "cores", lambda: workers)
    found = read_files([path])
    # Then nothing depends on it
    for name, frame in expected.items():
        assert_frame_equal(_comparable(found[name]), _comparable(frame))


def _tokenize(text: bytes, *, last: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(kineto_native.description())
    tokenizer.tokenize(text, last=last)
    return tokenizer


def test_times_are_exact() -> None:
    # Given times that a float cannot hold, and more digits than nanoseconds
    texts = [
        "4398046511103.999",
        "4371323315486.714",
        "0.0005",
        "0.00049",
        "-0.0005",
        "-1.5",
        "7",
        "2.0859999656677246",
    ]
    chunk = ",".join(f'{{"ph": "X", "ts": {text}, "dur": 0}}' for text in texts).encode()
    # When they are tokenized
    tokenizer = _tokenize(chunk + b"]")
    # Then they are whole nanoseconds, rounded half up
    expected = [4398046511103999, 4371323315486714, 1, 0, -1, -1500, 7000, 2086]
    assert tokenizer.base()["ts"].tolist() == expected


@pytest.mark.parametrize(
    "filler", ["", "x" * 31, "x" * 32, "x" * 33, "x" * 100, '\\"', "x\\\\", "x" * 30 + '\\"', "é" * 40]
)
def test_texts_of_every_length_and_escape_survive(filler: str) -> None:
    # Given a name that ends near the edge of what is looked at at once, with escapes there
    chunk = (
        f'{{"ph": "X", "cat": "cpu_op", "name": "{filler}", "ts": 1, "dur": 2, "args": {{"External id": 5}}}}'.encode()
    )
    # When it is tokenized
    tokenizer = _tokenize(chunk + b"]")
    # Then the pool holds it as written, and what follows was read
    name = tokenizer.texts()[tokenizer.base()["name"][0]]
    assert name == f'"{filler}"'.encode()
    assert tokenizer.columns(Class.OPERATOR)["external"].tolist() == [5]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b'{"ph": "X"', 1),
        (b'{"ph": "X', 1),
        (b'{"ph": "X\\', 1),
        (b'{"ph"', 1),
        (b'{"ph": ', 1),
        (b'{"ph": "X", ', 1),
        (b'{"ph" "X"}', 2),
        (b'{ph: "X"}', 2),
        (b'{"ts": 1 "dur": 2}', 2),
        (b'{"x": [1, 2}}', 2),
        (b'{"ts": 1e3}', 3),
        (b'{"ts": NaN}', 3),
        (b'{"ts": "12"}', 3),
        (b'{"ts": 01}', 3),
        (b'{"pid": 1.5}', 3),
        (b'{"ph": "X", "ph": "X"}', 3),
        (b'{"args": []}', 3),
        (b'{"ph":"X","cat":"kernel","name":"k","args":{"stream":"7"}}', 3),
        (b'{"ph":"X","cat":"kernel","name":"k","args":{"stream":99999999999999999999}}', 3),
        (b"[1]", 3),
        (b'{"x": ' + b"[" * 600 + b"]" * 600 + b"}", 4),
    ],
)
def test_what_is_not_as_kineto_writes_it_is_refused_and_taken_back(text: bytes, reason: int) -> None:
    # Given a tokenizer that has read an event
    tokenizer = Tokenizer(kineto_native.description())
    tokenizer.tokenize(b'{"ph": "X", "cat": "kernel", "name": "k", "args": {"stream": 7}}')
    # When a chunk follows that begins well and is not as it should be
    with pytest.raises(NotTokenized) as refused:
        tokenizer.tokenize(b'{"ph": "X", "cat": "kernel", "name": "k", "args": {"stream": 8}},' + text, last=True)
    # Then it says why, and only the first event is there
    assert refused.value.code == reason
    assert tokenizer.rows == 1
    assert tokenizer.columns(Class.DEVICE)["stream"].tolist() == [7]


def test_arguments_before_the_category_are_read_as_well() -> None:
    tokenizer = _tokenize(b'{"args": {"stream": 7, "grid": [1,2,3]}, "name": "k", "cat": "kernel", "ph": "X"}]')
    assert tokenizer.columns(Class.DEVICE)["stream"].tolist() == [7]


def test_only_what_names_a_collective_is_one() -> None:
    # Given a call with a group's size, and one that names its collective behind other arguments
    tokenizer = _tokenize(
        b'{"ph":"X","cat":"cpu_op","name":"a","args":{"Group size": 8}},'
        b'{"ph":"X","cat":"cpu_op","name":"b","args":{"Group size": 4, "Collective name": "allreduce"}}]'
    )
    # Then the second is a collective
    assert tokenizer.columns(Class.COLLECTIVE)["event"].tolist() == [1]
    assert tokenizer.columns(Class.COLLECTIVE)["group_size"].tolist() == [4]


def test_arrays_outlive_the_tokenizer() -> None:
    # Given columns of a tokenizer that nobody holds any more
    tokenizer = _tokenize(b",".join(b'{"ph": "X", "ts": %d}' % number for number in range(10_000)) + b"]")
    ts = tokenizer.base()["ts"]
    del tokenizer
    # Then they are still there
    assert np.array_equal(ts, np.arange(10_000) * 1000)


def test_absent_values_are_absent() -> None:
    tokenizer = _tokenize(b'{"ph": "X", "cat": "kernel", "name": null, "ts": null},{}]')
    base = tokenizer.base()
    assert base["ts"].tolist() == [ABSENT, ABSENT]
    assert base["name"].tolist() == [-1, -1]
    assert np.isnan(tokenizer.columns(Class.DEVICE)["occupancy"]).all()


def test_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_NATIVE", "0")
    assert "STEPSCOPE_NATIVE" in str(native.available())
    assert native.loaded() is None


def test_no_trace_is_no_trace_either_way(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{"a": [1]}')
    with pytest.raises(NotATraceError):
        read_files([path])

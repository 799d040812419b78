"""JSON that is not as it should be: what can be read is read, the rest is counted."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from stepscope.read import read_files

GOOD = b'{"ph":"X","cat":"cpu_op","name":"good","pid":1,"tid":1,"ts":1,"dur":2,"args":{"External id":7}}'


@pytest.fixture(params=["native", "plain"], autouse=True)
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setenv("STEPSCOPE_NATIVE", "0")


def read(tmp_path: Path, events: bytes) -> tuple[list[str], dict[str, int]]:
    """Return names of spans, and losses, of a document with these events."""
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": [' + events + b"]}")
    tables = read_files([path])
    losses = tables["losses"].filter(pl.col("source") == "trace.json")
    names = tables["spans"].sort("ts")["name"].cast(pl.String).to_list()
    return names, dict(zip(losses["what"].to_list(), losses["count"].to_list(), strict=True))


def span(name: bytes, extra: bytes = b"") -> bytes:
    return b'{"ph":"X","name":' + name + b',"pid":1,"tid":1,"ts":5,"dur":1' + extra + b"}"


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (span(b'"trailing comma"', b","), "trailing comma"),
        (span(b'"N/A"', b',"args":{"a": N/A}'), "N/A"),
        (span(b'"NaN"', b',"args":{"a": NaN, "b": -Infinity}'), "NaN"),
        (span(b'"control \x01\n\t"'), "control \x01\n\t"),
        (span(rb'"quote \" backslash \\ unicode \u00e9 \ud83d\ude00"'), 'quote " backslash \\ unicode é 😀'),
        (span(b'"zero \x00 end"'), "zero \x00 end"),
        (span(b"12"), "12"),
        (span(b'["list"]'), '["list"]'),
        (span(b'"numbers as text"', b',"args":{"External id": "7"}'), "numbers as text"),
        (span(b'"args are no object"', b',"args":[1]'), "args are no object"),
        (span(b'"x"').replace(b'"ts":5', b'"ts":"5"'), "x"),
        (span(b'"x"').replace(b'"ts":5', b'"ts":5e0'), "x"),
        (b'{"name":"ph last","pid":1,"tid":1,"ts":5,"dur":1,"ph":"X"}', "ph last"),
    ],
)
def test_what_some_writers_write_is_read(tmp_path: Path, event: bytes, name: str) -> None:
    names, losses = read(tmp_path, GOOD + b"," + event + b"," + GOOD.replace(b'"ts":1', b'"ts":9'))
    assert names == ["good", name, "good"]
    assert "event_damaged" not in losses


@pytest.mark.parametrize(
    ("event", "loss"),
    [
        (b'{"ph":"X" "name":"no comma"}', "event_damaged"),
        (b'{"ph":"X","name":}', "event_damaged"),
        (b"[1,2]", "event_not_an_object"),
        (b'"text"', "event_not_an_object"),
        (b"null", "event_not_an_object"),
        (b"17", "event_not_an_object"),
        (span(b'"x"').replace(b'"ts":5', b'"ts":"soon"'), "event_bad_time"),
        (span(b'"x"').replace(b'"ts":5', b'"ts":1e300'), "event_bad_time"),
        (span(b'"x"').replace(b'"ts":5', b'"ts":null'), "event_bad_time"),
        (span(b'"x"').replace(b',"ts":5', b""), "event_bad_time"),
        (span(b'"x"').replace(b'"dur":1', b'"dur":-1'), "event_negative_duration"),
        (span(b'"x"').replace(b'"dur":1', b'"dur":-2147483648'), "event_negative_duration"),
        (span(b'"x"').replace(b',"dur":1', b""), "event_without_duration"),
        (span(b'"x"').replace(b'"dur":1', b'"dur":9223372036854775807'), "event_bad_time"),
        (span(b'"x"').replace(b'"dur":1', b'"dur":NaN'), "event_without_duration"),
        (b'{"ph":"E","pid":1,"tid":1,"ts":5}', "event_unmatched_end"),
        (b'{"ph":"B","name":"x","pid":1,"tid":1,"ts":5}', "event_unmatched_begin"),
        (b'{"ph":"b","name":"x","pid":1,"tid":1,"ts":5,"id":1}', "event_unknown_kind"),
        (b'{"ph":"","name":"x","ts":5}', "event_unknown_kind"),
        (b"{}", "event_unknown_kind"),
        (b'{"ph":"X","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "event_damaged"),
    ],
)
def test_what_cannot_be_used_is_left_out_and_counted(tmp_path: Path, event: bytes, loss: str) -> None:
    names, losses = read(tmp_path, GOOD + b"," + event + b"," + GOOD.replace(b'"ts":1', b'"ts":9'))
    assert names == ["good", "good"]
    assert losses == {loss: 1}


@pytest.mark.parametrize(
    ("name", "shown"),
    [(b'"\xff\xfe"', "\\xff\\xfe"), (rb'"half \ud800 pair"', "half \\xed\\xa0\\x80 pair"), (b'"caf\xe9"', "caf\\xe9")],
)
def test_bytes_that_are_no_text_are_shown_as_escapes_and_counted(tmp_path: Path, name: bytes, shown: str) -> None:
    names, losses = read(tmp_path, span(name) + b"," + span(name))
    assert names == [shown, shown]
    assert losses == {"text_not_utf8": 1}


@pytest.mark.parametrize("number", [b"1e400", b"99999999999999999999", b"18446744073709551615", b"9" * 5000])
def test_integers_beyond_64_bits_are_null_and_counted(tmp_path: Path, number: bytes) -> None:
    kernel = b'{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2,"args":{"stream":7,"context":%s}}'
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": [' + kernel % number + b"," + kernel % b"5" + b"]}")
    tables = read_files([path])
    assert tables["kernels"]["context"].to_list() == [None, 5]
    assert {"integer_too_large", "value_unreadable"} & set(tables["losses"]["what"].to_list())


@pytest.mark.parametrize("cut", [b'{"ph":"X","name":"cut', b'{"ph":', b'{"ph":"X"}', b"", b","])
def test_a_cut_list_gives_everything_before_the_cut(tmp_path: Path, cut: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": [' + GOOD + b"," + cut)
    tables = read_files([path])
    assert tables["spans"]["name"].to_list()[0] == "good"
    assert "file_cut" in tables["losses"]["what"].to_list()


@pytest.mark.parametrize(
    "cut", [b'{"name":"x","args":{"shape', b'{"name":"x","args":{"a":{"b":1},"c":{"d"', b'{"ph":"X","na']
)
def test_the_event_that_a_file_ends_in_is_one_loss(cut: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b'{"traceEvents": [' + GOOD + b"," + cut)
    losses = read_files([path])["losses"].filter(pl.col("source") == "trace.json")
    assert losses.select(pl.col("what").cast(pl.String), "count").rows() == [("file_cut", 1)]

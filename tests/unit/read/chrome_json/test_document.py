from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import DamagedTraceError, NotATraceError
from stepscope.read.chrome_json.decode import ChromeDecoder
from stepscope.read.chrome_json.document import Document, first_event, last_event
from stepscope.trace.losses import LossLedger

EVENTS = [{"ph": "X", "name": f'n{number} {{"ph": [', "ts": number, "args": {"a": [{"b": 1}]}} for number in range(20)]


def split(text: bytes, size: int) -> Iterator[bytes]:
    return (text[place : place + size] for place in range(0, len(text), size))


def read(text: bytes, size: int) -> tuple[list[str], Document]:
    """Return the names of the events of a document that comes in blocks of some size."""
    document = Document(Path("x"), LossLedger("x"))
    decoder = ChromeDecoder(document.ledger)
    names: list[int] = []
    for chunk, last in document.chunks(split(text, size)):
        if last:
            batch, tail = decoder.decode_last(chunk, in_object=document.is_object)
            document.read_tail(tail)
        else:
            batch = decoder.decode(chunk)
        names += batch.base["name"].tolist()
    return [str(list(decoder.interner)[code]) for code in names], document


@given(st.integers(1, 400), st.sampled_from([None, 0, 2]))
def test_blocks_of_any_size_give_the_same_events(size: int, indent: int | None) -> None:
    # Given a document with keys before and behind its events, and names that look like events
    document = {"a": '"traceEvents": [', "distributedInfo": {"rank": 3}, "traceEvents": EVENTS, "z": [1, "]}"]}
    text = json.dumps(document, indent=indent).encode()
    # When it comes in blocks of some size
    names, found = read(text, size)
    # Then every event is there once, and so is every other key
    assert names == [event["name"] for event in EVENTS]
    assert {key: json.loads(value) for key, value in found.metadata.items()} == {
        key: value for key, value in document.items() if key != "traceEvents"
    }
    assert not found.ledger.rows()


@pytest.mark.parametrize("before", [b"", b"\n ", b"\xef\xbb\xbf"])
def test_a_list_alone_is_a_document(before: bytes) -> None:
    names, _ = read(before + json.dumps(EVENTS).encode(), 100)
    assert len(names) == len(EVENTS)


def test_events_whose_first_key_is_another_are_read_as_one_chunk() -> None:
    events = [{"name": "a", "ph": "X"}, {"name": "b", "ph": "X"}]
    names, found = read(json.dumps({"traceEvents": events, "z": 1}).encode(), 7)
    assert names == ["a", "b"]
    assert found.metadata == {"z": "1"}


def test_what_only_looks_like_an_event_is_none() -> None:
    text = rb'{"name": "{\"ph\"", "x": 1}'
    assert first_event(text) == last_event(text) == -1
    assert first_event(b'  {\n "ph": 1}') == 2


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (b"plain text", NotATraceError, "not JSON"),
        (b"\x89PNG\r\n", NotATraceError, "not JSON"),
        (b"12", NotATraceError, "without traceEvents"),
        (b'{"a": {"b": []}}', NotATraceError, "without traceEvents"),
        (b'{"traceEvents": 5}', NotATraceError, "without traceEvents"),
        (b"[[1, 2], [3, 4]]", NotATraceError, "a list without events"),
        (b"[1, 2]", NotATraceError, "a list without events"),
        (b'{"a": 1, "trace', DamagedTraceError, "before its first event"),
        (b"{", DamagedTraceError, "before its first event"),
        (b"[", DamagedTraceError, "before its first event"),
        (b"{" * 100_000, DamagedTraceError, "before its first event"),
        (b" \n ", NotATraceError, "not JSON"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(text: bytes, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as refused:
        read(text, 1000)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", [b'{"traceEvents": []}', b'{"traceEvents":[\n\n], "a": 1}', b"[]"])
def test_no_events_are_no_error(text: bytes) -> None:
    names, document = read(text, 1000)
    assert names == []
    assert not document.ledger.rows()


def test_damaged_metadata_is_counted_and_the_events_are_read() -> None:
    events: Any = json.dumps(EVENTS)
    names, document = read(f'{{"a": nonsense, "traceEvents": {events}}}'.encode(), 1000)
    assert len(names) == len(EVENTS)
    assert [loss.what for loss in document.ledger.rows()] == ["metadata_damaged"]

"""The machine of plain pickles: equal to ``pickle`` on plain values, closed to everything else."""

from __future__ import annotations

import os
import pickle
import pickletools
import resource
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.errors import DamagedTraceError, InputError, NotATraceError
from stepscope.read.memory_snapshot.plain_pickle import ALLOWED, PlainPickle

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner) | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=25,
)
#: What a file must not be able to do.
ACTED: list[str] = []


class Hostile:
    """Runs a function when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ACTED.append, ("ran",)


@given(PLAIN, st.integers(3, 5))
def test_plain_values_come_out_as_pickle_gives_them(value: object, protocol: int) -> None:
    assert PlainPickle(pickle.dumps(value, protocol), "x").value() == value


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol(protocol: int) -> None:
    shared = [1, "é\n"]
    value = {"a": shared, "b": shared, "c": (1, -(2**70), 2**31, 1.5, None, True, False), "d": {}, "e": ()}
    found = PlainPickle(pickle.dumps(value, protocol), "x").value()
    assert found == value
    assert found["a"] is found["b"]


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_that_it_asks_for_is_run(protocol: int) -> None:
    content = pickle.dumps({"segments": [Hostile()], "device_traces": []}, protocol)
    with pytest.raises(NotATraceError, match="is refused: it asks for more than plain values"):
        PlainPickle(content, "bad.pickle").value()
    assert ACTED == []


def test_the_message_names_what_it_asks_for(tmp_path: Path) -> None:
    target = tmp_path / "made"
    content = b"\x80\x04cposix\nsystem\n(X" + struct.pack("<I", 20) + b"touch " + os.fsencode(target)[:14] + b"tR."
    with pytest.raises(NotATraceError, match=r"\(GLOBAL posix\.system\)") as raised:
        PlainPickle(content, "bad.pickle").value()
    assert "\n" not in str(raised.value)
    assert not target.exists()


@pytest.mark.parametrize("opcode", pickletools.opcodes, ids=lambda opcode: opcode.name)
def test_only_the_listed_instructions_are_carried_out(opcode: Any) -> None:
    # Given a stack of two texts below the instruction
    content = b"\x80\x04\x8c\x02os\x8c\x06system" + opcode.code.encode("latin-1")
    if opcode.name in ALLOWED:
        return
    with pytest.raises(NotATraceError, match=f"more than plain values .{opcode.name}"):
        PlainPickle(content + b"x\nx\n.", "bad.pickle").value()


def test_every_cut_is_one_error() -> None:
    content = pickle.dumps({"a": [1, 300, 70_000, 2**40, "text", b"bytes", 1.5, (1, 2)], "b": {"c": None}})
    for length in range(len(content)):
        with pytest.raises(DamagedTraceError, match=r"ends in the middle|is damaged"):
            PlainPickle(content[:length], "cut.pickle").value()


CLAIMS = {
    "text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40),
    "bytes": b"\x80\x04\x8e" + struct.pack("<Q", (1 << 63) + 5),
    "integer": b"\x80\x04\x8b" + struct.pack("<i", (1 << 31) - 1),
    "negative": b"\x80\x04\x8b" + struct.pack("<i", -5) + b".",
    "memo": b"\x80\x04}r" + struct.pack("<I", (1 << 32) - 1) + b"j" + struct.pack("<I", 7) + b".",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62),
    "mark": b"\x80\x04(((u.",
    "underflow": b"\x80\x04\x87.",
    "nothing": b"\x80\x04.",
    "key": b"\x80\x04}]]s.",
    "numbers as keys": b"\x80\x04}K\x01K\x02s.",
    "not a list": b"\x80\x04}K\x01a.",
    "not a number": b"Iabc\n.",
    "digits": b"L" + b"9" * 5000 + b"L\n.",
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_claims_are_checked_before_anything_is_made(claim: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DamagedTraceError):
        PlainPickle(CLAIMS[claim], "bad.pickle").value()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_file_of_nothing_but_containers_is_refused() -> None:
    with pytest.raises(DamagedTraceError, match="more containers"):
        PlainPickle(b"\x80\x04(" + b"}" * 1_000_000 + b"l.", "bomb.pickle").value()


@given(st.binary(max_size=200))
def test_any_bytes_are_plain_values_or_one_error(content: bytes) -> None:
    try:
        PlainPickle(b"\x80\x04" + content, "any.pickle").value()
    except InputError as error:
        assert "any.pickle" in str(error)

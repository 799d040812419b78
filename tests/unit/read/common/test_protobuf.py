"""Protocol-buffer fields by column: the same as one by one, the same as Google's library, and none beyond a damage."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.read.common import protobuf
from stepscope.read.common.protobuf import BLOCK, CUT_BLOCK, FIXED32, FIXED64, VARINT, Fields, Messages
from stepscope.report.timeline.perfetto.protobuf import block, integer, varint
from stepscope.trace.losses import LossLedger
from tests import paddle_schemas
from tests.sizes import SIZE

DATA = Path(__file__).resolve().parents[3] / "data" / "paddle"


def messages(contents: Sequence[bytes]) -> Messages:
    ends = np.cumsum([len(content) for content in contents], dtype=np.int64)
    starts = ends - [len(content) for content in contents]
    return Messages(Messages.whole(b"".join(contents)).content, starts.astype(np.int64), ends)


def fixed(field: int, value: float) -> bytes:
    return varint(field << 3 | FIXED32) + struct.pack("<f", value)


FIELDS = st.one_of(
    st.builds(integer, st.integers(1, 20), st.integers(0, (1 << 64) - 1)),
    st.builds(block, st.integers(1, 20), st.binary(max_size=30)),
    st.builds(fixed, st.integers(1, 20), st.floats(width=32)),
    st.builds(lambda field: varint(field << 3 | FIXED64) + bytes(8), st.integers(1, 20)),
    st.binary(max_size=12),
)
MESSAGE = st.lists(FIELDS, max_size=6).map(b"".join)


@settings(max_examples=SIZE.examples(300))
@given(contents=st.lists(MESSAGE, min_size=1, max_size=40), cut=st.integers(0, 20))
def test_many_at_once_are_the_same_as_one_by_one(contents: list[bytes], cut: int) -> None:
    contents[-1] = contents[-1][:cut]
    both = []
    few = protobuf.FEW_MESSAGES
    for limit in (1, 1_000_000):
        try:
            protobuf.FEW_MESSAGES = limit
            both.append(messages(contents).fields())
        finally:
            protobuf.FEW_MESSAGES = few
    at_once, one_by_one = both
    assert np.array_equal(at_once.table, one_by_one.table)
    assert np.array_equal(at_once.broken, one_by_one.broken)


def test_it_reads_what_googles_library_reads() -> None:
    content = (DATA / "fluid185" / "all_total.pb").read_bytes()
    expected = paddle_schemas.profile().FromString(content)
    fields = Messages.whole(content).fields().within(1)[1].fields()
    ledger = LossLedger("x")
    assert fields.texts(1, ledger).to_list() == [event.name for event in expected.events]
    assert fields.integers(2).to_list() == [event.start_ns for event in expected.events]
    assert fields.integers(6).to_list() == [event.sub_device_id for event in expected.events]


def whole(content: bytes) -> Fields:
    return Messages.whole(content).fields()


def test_of_a_field_that_repeats_the_last_counts() -> None:
    fields = whole(integer(3, 1) + integer(3, 2) + integer(4, 7))
    assert fields.integers(3).to_list() == [2]
    assert fields.every_integer(3)[1].tolist() == [1, 2]
    assert fields.integers(5).to_list() == [None]


def test_negative_numbers_are_those_of_64_bits() -> None:
    assert whole(integer(1, (1 << 64) - 1)).integers(1).to_list() == [-1]


def test_floats() -> None:
    assert whole(fixed(2, 0.25)).floats(2).to_list() == [0.25]
    assert whole(integer(1, 1)).floats(2).to_list() == [None]


def test_texts_that_are_no_utf8_are_escaped_and_counted_once() -> None:
    ledger = LossLedger("x")
    fields = messages([block(1, b"caf\xe9"), block(1, b"caf\xe9"), block(1, "é".encode())]).fields()
    assert fields.texts(1, ledger).to_list() == ["caf\\xe9", "caf\\xe9", "é"]
    assert [(loss.what, loss.count) for loss in ledger.rows()] == [("text_not_utf8", 1)]


@pytest.mark.parametrize(
    "damage",
    [
        varint(1 << 3 | 3),  # a group
        varint(1 << 3 | 7),
        varint(0),  # field 0
        b"\xff" * 11,  # a varint beyond 64 bits
        varint(1 << 3 | FIXED64) + b"1234",
        varint(1 << 3) + b"\x80",
    ],
)
def test_what_comes_before_a_damage_is_there(damage: bytes) -> None:
    fields = whole(integer(3, 5) + damage)
    assert fields.integers(3).to_list() == [5]
    assert fields.broken.tolist() == [True]


def test_a_message_that_ends_in_a_block_keeps_it_for_those_who_ask() -> None:
    inner = integer(1, 8) + integer(2, 9)
    fields = whole(block(3, inner)[:-1])
    assert fields.table[:, 1:3].tolist() == [[3, CUT_BLOCK]]
    assert len(fields.within(3)[1]) == 0
    cut = fields.within(3, cut=True)[1].fields()
    assert cut.integers(1).to_list() == [8]
    assert cut.broken.tolist() == [True]


def test_kinds_on_the_wire_do_not_mix() -> None:
    fields = whole(integer(1, 3) + block(1, b"abc"))
    assert fields.integers(1).to_list() == [3]
    assert fields.texts(1, LossLedger("x")).to_list() == ["abc"]
    assert fields.table[:, 2].tolist() == [VARINT, BLOCK]

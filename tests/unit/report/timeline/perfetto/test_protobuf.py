"""The column-wise encoder writes what Google's decoder reads."""

from __future__ import annotations

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given
from hypothesis import strategies as st

from stepscope.report.timeline.perfetto.protobuf import (
    beside,
    block,
    blocks,
    doubles,
    fixed64,
    integer,
    integers,
    interleave,
    text,
    varint,
)

_KINDS = descriptor_pb2.FieldDescriptorProto
NUMBERS = st.integers(-(2**63), 2**63 - 1)


def message_class() -> type:
    """Return a message: repeated items (1), each with int64 a (1), double b (2), fixed64 c (3), string d (400)."""
    file = descriptor_pb2.FileDescriptorProto(name="test.proto", package="test", syntax="proto3")
    item = file.message_type.add(name="Item")
    for name, number, kind in (
        ("a", 1, _KINDS.TYPE_INT64),
        ("b", 2, _KINDS.TYPE_DOUBLE),
        ("c", 3, _KINDS.TYPE_FIXED64),
        ("d", 400, _KINDS.TYPE_STRING),
    ):
        item.field.add(name=name, number=number, type=kind, label=_KINDS.LABEL_OPTIONAL)
    items = file.message_type.add(name="Items")
    items.field.add(
        name="items", number=1, type=_KINDS.TYPE_MESSAGE, type_name=".test.Item", label=_KINDS.LABEL_REPEATED
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Items"))


ITEMS = message_class()


@given(st.lists(st.tuples(NUMBERS, st.floats(allow_nan=False), st.integers(0, 2**63 - 1)), max_size=20), st.text())
def test_columns_come_back(rows: list[tuple[int, float, int]], word: str) -> None:
    a, b, c = (
        np.array([row[place] for row in rows], kind) for place, kind in ((0, np.int64), (1, np.float64), (2, np.int64))
    )
    parts = beside(len(rows), integers(1, a), doubles(2, b), fixed64(3, c), text(400, word))
    found = ITEMS.FromString(blocks(1, parts).tobytes()).items
    assert [(item.a, item.b, item.c, item.d) for item in found] == [(*row, word) for row in rows]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300)), max_size=30))
def test_shapes_are_interleaved_in_order(rows: list[tuple[bool, int]]) -> None:
    # Given messages of two shapes: with and without a text
    shape, value = (np.array([row[place] for row in rows], np.int64) for place in (0, 1))
    groups = []
    for wanted, extra in ((0, b""), (1, text(400, "long"))):
        places = np.flatnonzero(shape == wanted)
        groups.append((places, blocks(1, beside(len(places), integers(1, value[places]), extra))))
    # When they are put in their order, then they come back in it
    found = ITEMS.FromString(interleave(len(rows), groups)).items
    assert [(item.d == "long", item.a) for item in found] == rows


@given(st.integers(0, 2**64 - 1))
def test_single_fields(number: int) -> None:
    assert len(varint(number)) == max(1, -(-number.bit_length() // 7))
    found = ITEMS.FromString(block(1, integer(1, number))).items[0]
    assert found.a % 2**64 == number


def test_lone_surrogates_are_replaced() -> None:
    assert ITEMS.FromString(block(1, text(400, "a\ud800b"))).items[0].d == "a?b"

"""Annotations of slices → details of spans: those that timelines of PyTorch and stepscope have, and any others."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from stepscope.read.common.distinct import of_each
from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import PartBuilder, as_json
from stepscope.read.common.protobuf import Fields
from stepscope.read.common.torch_events import parse_frame
from stepscope.read.perfetto.packets import Packets
from stepscope.trace.schema import TABLES
from stepscope.trace.tables import ARGUMENTS, schema

#: ``TrackEvent.debug_annotations``; vocabularies of their names and texts.
ANNOTATIONS, _NAMES, _TEXTS = 4, 3, 29
#: Fields of ``DebugAnnotation``: its name, its value if it is plain.
_NAME_NUMBER, _NAME, _TRUTH, _TEXT, _JSON, _TEXT_NUMBER = 1, 10, 2, 6, 9, 17
_INTEGERS, _REAL = (4, 3, 7), 5
#: Numbers of spans that are columns of theirs.
OWN = {"correlation": "correlation", "Sequence number": "sequence"}
#: What stepscope says of a slice that the tables do not hold.
_UNUSED = frozenset({"span"})
#: Detail table → the argument that only its spans have.
_SIGN = {"kernels": "device", "collectives": "Collective name", "operators": None}
_LISTS = frozenset({"grid", "block"})


def annotated(packets: Packets, events: Fields, packet_of: Integers) -> pl.DataFrame:
    """Return the annotations of events: ``event``, ``name``, and the value as ``integer``, ``real`` or ``text``.

    Args:
        packets: The packets.
        events: The fields of the events.
        packet_of: The packet of each event.
    """
    owners, messages = events.within(ANNOTATIONS)
    fields, ledger = messages.fields(), packets.ledger
    state = pl.Series("state", packets.state)[pl.Series(packet_of, dtype=pl.UInt32)][pl.Series(owners, dtype=pl.UInt32)]

    def numbered(number: int, vocabulary: int) -> pl.Series:
        asked = pl.DataFrame({"state": state, "number": fields.integers(number)})
        return asked.join(packets.texts(vocabulary), on=["state", "number"], how="left", maintain_order="left")[
            "text"
        ].cast(pl.String)

    def said(*columns: pl.Series) -> pl.Series:
        return pl.select(pl.coalesce(pl.lit(column) for column in columns)).to_series()

    rows = pl.DataFrame(
        {
            "event": owners,
            "name": said(fields.texts(_NAME, ledger), numbered(_NAME_NUMBER, _NAMES)),
            "integer": said(*(fields.integers(number) for number in _INTEGERS)),
            "real": fields.doubles(_REAL),
            "text": said(fields.texts(_TEXT, ledger), numbered(_TEXT_NUMBER, _TEXTS)),
            "json": fields.texts(_JSON, ledger),
            "truth": fields.integers(_TRUTH).cast(pl.Boolean),
        }
    )
    unread = rows.filter(pl.all_horizontal(pl.col("integer", "real", "text", "json", "truth").is_null()))
    ledger.add("value_unreadable", unread.height)
    return rows.filter(pl.col("name").is_not_null() & ~pl.col("name").is_in(list(_UNUSED)))


def own(rows: pl.DataFrame, events: int) -> pl.DataFrame:
    """Return what annotations say of each event's span itself: ``correlation`` and ``sequence``; null if nothing."""
    columns = {}
    for name, column in OWN.items():
        found = rows.filter(pl.col("name") == name).drop_nulls("integer").unique("event", keep="last")
        empty = pl.Series(column, [None], pl.Int64).new_from_index(0, events)
        columns[column] = empty.scatter(found["event"], found["integer"]) if found.height else empty
    return pl.DataFrame(columns)


def add_to(part: PartBuilder, rows: pl.DataFrame, span_of: pl.Series) -> None:
    """Add the details of spans.

    Args:
        part: Takes them.
        rows: What :func:`annotated` returned.
        span_of: The span of each event; null for events that are not spans.
    """
    rows = rows.with_columns(span=span_of[rows["event"].cast(pl.UInt32)]).drop_nulls("span")
    rows = rows.filter(~pl.col("name").is_in(list(OWN)))
    taken = pl.Series([], dtype=pl.Int64)
    for table, sign in _SIGN.items():
        known = {label: (column, form) for label, column, form in ARGUMENTS[table]}
        of_table = rows.filter(pl.col("name").is_in(list(known)))
        spans = of_table.filter(pl.col("name") == sign)["span"].unique() if sign else of_table["span"].unique()
        spans = spans.filter(~spans.is_in(taken.implode())) if sign is None else spans
        of_table = of_table.filter(pl.col("span").is_in(spans.implode()))
        if of_table.height:
            _add_table(part, table, of_table, known)
        taken = pl.concat([taken, spans]) if table == "kernels" else taken
        used = of_table.select("span", "name").with_columns(used=True)
        rows = rows.join(used, on=["span", "name"], how="anti") if used.height else rows
    _add_arguments(part, rows)


def _add_table(part: PartBuilder, table: str, rows: pl.DataFrame, known: dict[str, tuple[str, str]]) -> None:
    kinds = schema(table)
    spans = rows.select("span").unique().sort("span")
    for label, (column, form) in known.items():
        found = rows.filter(pl.col("name") == label).unique("span", keep="last")
        if column not in kinds or not found.height:
            continue
        value = found["real" if form == "float" else "integer" if form == "integer" else "text"]
        if column in _LISTS:
            value = of_each(_numbers, value.cast(pl.Categorical), dtype=pl.List(pl.Int64))
        elif table == "operators" and column == "stack":
            value = _stacks(part, value)
        made = pl.DataFrame([found["span"], value.cast(kinds[column], strict=False).alias(column)])
        spans = spans.join(made, on="span", how="left", maintain_order="left")
    needed = {column.name for column in TABLES[table].columns if not column.nullable}
    if needed <= set(spans.columns):
        part.add(table, spans.drop_nulls(needed))


def _numbers(text: str | None) -> list[int] | None:
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    numbers = isinstance(found, list) and all(type(one) is int and abs(one) < 1 << 62 for one in found)
    return found if numbers else None


def _stacks(part: PartBuilder, texts: pl.Series) -> pl.Series:
    """Add stacks, each a text of frames with semicolons between; return their numbers."""
    known: dict[str, int] = {}
    numbers = [None if text is None else known.setdefault(text, len(known)) for text in texts.to_list()]
    part.add_stacks([parse_frame(frame.removeprefix("(): ")) for frame in text.split(";")] for text in known)
    return pl.Series(numbers, dtype=pl.Int64)


def _add_arguments(part: PartBuilder, rows: pl.DataFrame) -> None:
    """Add what is left as arguments; those that stepscope wrote as one object are its members."""
    found: list[tuple[int, str, str]] = []
    for span, name, integer, real, text, document, truth in rows.select(
        "span", "name", "integer", "real", "text", "json", "truth"
    ).iter_rows():
        value: Any = next((one for one in (truth, integer, real, text) if one is not None), None)
        parsed = _json(text if name == "arguments" else document)
        if name == "arguments" and isinstance(parsed, dict):
            found += [(span, key, encoded) for key, encoded in as_json(parsed).items()]
        elif value is not None or parsed is not None:
            found.append((span, name, as_json({"": parsed if value is None else value})[""]))
    part.add_rows("arguments", found, "span", "key", "value")


def _json(text: str | None) -> Any:  # noqa: ANN401 - any JSON
    try:
        return json.loads(text or "null")
    except (ValueError, RecursionError):
        return None

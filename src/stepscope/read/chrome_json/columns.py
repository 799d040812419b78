"""Columns of trace events: what both tokenizers produce and the tables are built from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from stepscope.native.kineto import BASE, DTYPES
from stepscope.read.chrome_json.event_schema import FIELDS, WHOLE, Class
from stepscope.read.common.plain_text import printable
from stepscope.trace.losses import LossLedger

Codes: TypeAlias = npt.NDArray[np.int32]
Column: TypeAlias = npt.NDArray[Any]
Columns: TypeAlias = dict[str, Column]

_LOOSE = json.JSONDecoder(strict=False)
_NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def class_columns(kind: Class) -> dict[str, type[np.generic]]:
    """Return the columns of a class of events and their types; ``event`` is the row in the base columns."""
    columns: dict[str, type[np.generic]] = {"event": np.int64}
    columns.update({item.column: DTYPES[item.type] for item in FIELDS.get(kind, ())})
    if kind in WHOLE:
        columns["arguments"] = np.int32
    return columns


class Interner(dict[Any, int]):
    """Numbers texts as they come: ``str`` is a text, ``bytes`` a JSON value as written, ``int`` itself.

    None is −1.
    """

    def __missing__(self, key: Any) -> int:  # noqa: ANN401 - any of the three types above
        if key is None:
            return -1
        code = len(self)
        self[key] = code
        return code


@dataclass
class ChromeBatch:
    """Consecutive events of a file.

    Attributes:
        base: Columns of :data:`BASE`.
        classes: For each class that occurs its columns; ``event`` is a row of ``base``.
        pool: Number of the pool that the codes of texts belong to.
    """

    base: Columns
    classes: dict[Class, Columns] = field(default_factory=dict)
    pool: int = 0

    def __len__(self) -> int:
        return len(self.base["ts"])


@dataclass
class ChromeEvents:
    """All events of a file.

    Attributes:
        base: Columns of :data:`BASE`.
        classes: For each class its columns; ``event`` says which event.
        texts: The pool: code → text. JSON values are compact JSON; JSON strings their content.
    """

    base: Columns
    classes: dict[Class, Columns]
    texts: list[str]

    def __len__(self) -> int:
        return len(self.base["ts"])

    def of(self, kind: Class) -> Columns:
        """Return the columns of a class, empty where the file has no such event."""
        if kind in self.classes:
            return self.classes[kind]
        return {name: np.empty(0, dtype) for name, dtype in class_columns(kind).items()}

    def where(self, chosen: npt.NDArray[np.bool_]) -> ChromeEvents:
        """Return the chosen events, with all texts."""
        classes = {}
        for kind, columns in self.classes.items():
            kept = chosen[columns["event"]]
            classes[kind] = {name: column[kept] for name, column in columns.items()}
            classes[kind]["event"] = (np.cumsum(chosen) - 1)[classes[kind]["event"]]
        return ChromeEvents({name: column[chosen] for name, column in self.base.items()}, classes, self.texts)


def join(
    batches: Sequence[ChromeBatch], pools: Sequence[Iterable[str | bytes | int]], ledger: LossLedger
) -> ChromeEvents:
    """Concatenate batches and merge their pools of texts into one readable pool.

    Args:
        batches: In the file's order; the codes of each index its pool.
        pools: What was interned, see :class:`Interner`.
        ledger: Counts texts that are not UTF-8.
    """
    texts, codes_of = _merge_pools(pools, ledger)
    starts = np.cumsum([0, *(len(batch) for batch in batches)])
    base = {}
    for name, dtype in BASE.items():
        recoded = name in ("category", "name", "process", "thread")
        base[name] = _concatenate(
            [_recode(batch.base[name], codes_of[batch.pool] if recoded else None) for batch in batches], dtype
        )
    classes: dict[Class, Columns] = {}
    for kind in Class:
        parts = [(int(start), batch) for start, batch in zip(starts, batches, strict=False) if kind in batch.classes]
        if parts:
            classes[kind] = _join_class(kind, parts, codes_of)
    return ChromeEvents(base, classes, texts)


def _join_class(kind: Class, parts: list[tuple[int, ChromeBatch]], codes_of: Sequence[Codes | None]) -> Columns:
    texts = {item.column for item in FIELDS.get(kind, ()) if item.type == "text"} | {"arguments"}
    joined = {}
    for name, dtype in class_columns(kind).items():
        pieces = []
        for start, batch in parts:
            column = batch.classes[kind][name]
            if name == "event":
                column = column + start if start else column
            pieces.append(_recode(column, codes_of[batch.pool] if name in texts else None))
        joined[name] = _concatenate(pieces, dtype)
    return joined


def _concatenate(pieces: list[Column], dtype: type[np.generic]) -> Column:
    if len(pieces) == 1:
        return pieces[0].astype(dtype, copy=False)
    return np.concatenate(pieces, dtype=dtype) if pieces else np.empty(0, dtype)


def _recode(codes: Column, code_of: Codes | None) -> Column:
    """Replace the codes of one pool by those of the merged pool; −1 stays, as the last entry of ``code_of``."""
    return codes if code_of is None else code_of[codes]


def _merge_pools(
    pools: Sequence[Iterable[str | bytes | int]], ledger: LossLedger
) -> tuple[list[str], list[Codes | None]]:
    """Return the readable texts, and for each pool the code of each of its keys; None where they are the same."""
    first: dict[str, int] = {}
    codes_of: list[Codes | None] = []
    damaged = set()
    for pool in pools:
        codes = []
        for key in pool:
            text, whole = _readable(key)
            codes.append(first.setdefault(text, len(first)))
            if not whole:
                damaged.add(text)
        same = codes == list(range(len(codes)))
        codes_of.append(None if same else np.array([*codes, -1], np.int32))
    ledger.add("text_not_utf8", len(damaged))
    return list(first), codes_of


def _readable(key: str | bytes | int) -> tuple[str, bool]:
    """Return the text of an interned key, and whether it was whole."""
    if isinstance(key, int):
        return str(key), True
    if isinstance(key, bytes):
        key = _from_json(key)
    text = printable(key)
    return text, text is key


def _from_json(source: bytes) -> str:
    """Return the content of a JSON string, or other JSON without white space; anything else stays as it is."""
    text = source.decode("utf-8", "surrogateescape")
    if text[:1] == '"':
        with suppress(ValueError):
            return str(_LOOSE.decode(text)) if "\\" in text else text[1:-1]
        return text
    try:
        return msgspec.json.format(source, indent=-1).decode("utf-8", "surrogateescape")
    except _NOT_JSON:
        return text


def parse_arguments(source: str) -> dict[str, Any]:
    """Return arguments kept as JSON text; empty if they are not an object."""
    try:
        value = json.loads(source, strict=False)
    except (ValueError, RecursionError):
        return {}
    return {printable(key): item for key, item in value.items()} if isinstance(value, dict) else {}

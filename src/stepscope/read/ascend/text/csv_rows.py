"""The rows of Ascend's CSV files, block by block: a column is found by any of its names.

Cells may hold line ends and commas inside quotes, and stamps end with a tab. Versions differ in the number and order of
their columns.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stepscope.read.ascend.text import text_values
from stepscope.read.common.source import Progress, read_blocks
from stepscope.trace import ascend_columns as ascend
from stepscope.trace.ascend_columns import AscendColumn, unit_of
from stepscope.trace.losses import LossLedger

#: A longer first line is not a header.
_LONGEST_HEADER = 1 << 20
#: A record longer than this is damage: a quote that is never closed.
_LONGEST_RECORD = 64 << 20
_QUOTED = re.compile(rb'"[^"]*"')
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class AscendRows:
    """Some rows of a file.

    Attributes:
        frame: The cells as text; columns are numbered from 0.
        columns: Header without white space, in lower case → number of its column.
        headers: Headers as written.
        ledger: Counts what cannot be read.
    """

    frame: pl.DataFrame
    columns: dict[str, int]
    headers: list[str]
    ledger: LossLedger

    def __len__(self) -> int:
        return self.frame.height

    def unit(self, name: str) -> str:
        """Return the unit in the header of a column, given its name without the unit; empty if it has none."""
        units = (unit for found, unit in map(unit_of, self.headers) if found.lower() == name.lower())
        return next(units, "")

    def raw(self, *headers: str) -> pl.Series:
        """Return the cells of the column of one of these names; null if the file has none."""
        for key in map(key_of, headers):
            if key in self.columns:
                return self.frame[f"column_{self.columns[key] + 1}"]
        return pl.Series([None], dtype=pl.String).new_from_index(0, self.frame.height)

    def text(self, *headers: str) -> pl.Series:
        """Return a column of texts."""
        return text_values.texts(self.raw(*headers))

    def quoted(self, *headers: str) -> pl.Series:
        """Return a column of texts that have quotes of their own."""
        return text_values.quoted(self.raw(*headers))

    def integer(self, *headers: str) -> pl.Series:
        """Return a column of whole numbers."""
        return text_values.integers(self.raw(*headers), self.ledger)

    def real(self, *headers: str) -> pl.Series:
        """Return a column of real numbers."""
        return text_values.reals(self.raw(*headers), self.ledger)

    def ns(self, *headers: str, scale: int = 1) -> pl.Series:
        """Return a column of times, in µs times ``scale``, as ns."""
        return text_values.ns(self.raw(*headers), self.ledger, scale)

    def size(self, name: str) -> pl.Series:
        """Return a column of sizes in the unit that its header says, as bytes."""
        unit = self.unit(name)
        return text_values.sizes(self.raw(f"{name}({unit})", name), unit, self.ledger)

    def device(self, *headers: str) -> pl.Series:
        """Return the number in ``NPU:0`` or ``0``."""
        text = self.text(*headers).cast(pl.String)
        return text.str.extract(r"(\d{1,9})\s*$", 1).cast(pl.Int64, strict=False)

    def column(self, column: AscendColumn) -> pl.Series:
        """Return a column of the table of columns: times in ns, sizes in bytes."""
        if column.sort in (ascend.SIZE, ascend.HELD_SIZE):
            return self.size(unit_of(column.headers[0])[0])
        return _READ[column.sort](self, *column.headers)


#: What a column holds → the cells as values.
_READ: dict[str, Callable[..., pl.Series]] = {
    **dict.fromkeys((ascend.STAMP, ascend.HELD, ascend.TIME), AscendRows.ns),
    **dict.fromkeys((ascend.DEVICE, ascend.INDEX), AscendRows.device),
    **{
        ascend.WHOLE: AscendRows.integer,
        ascend.REAL: AscendRows.real,
        ascend.LABEL: AscendRows.text,
        ascend.SHAPES: AscendRows.quoted,
    },
}


def key_of(header: str) -> str:
    """Return a header without white space, in lower case."""
    return "".join(header.lower().split())


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Iterator[AscendRows]:
    """Yield the rows of a file.

    Raises:
        InputError: It cannot be read.
        DamagedTraceError: It is empty.
    """
    headers: list[str] | None = None
    for block in _records(path, ledger, progress):
        frame = _parsed(block, headers, ledger)
        if headers is None:
            headers = [str(cell or "") for cell in (frame.row(0) if frame.height else ())]
            frame = frame[1:]
        if frame.height:
            names = {key_of(header): place for place, header in reversed(list(enumerate(headers)))}
            yield AscendRows(frame, names, headers, ledger)


def _records(path: Path, ledger: LossLedger, progress: Progress | None) -> Iterator[bytes]:
    """Yield the file's bytes, cut after records; the first piece is the header."""
    pending, first, width = b"", True, 0
    for block in read_blocks(path, ledger, progress):
        pending += block
        if first:
            end = pending.find(b"\n") + 1
            if not end and len(pending) < _LONGEST_HEADER:
                continue
            if not end:
                ledger.add("file_unreadable")
                return
            yield pending[:end].removeprefix(_BYTE_ORDER_MARK)
            width = _cells(pending[:end])
            pending, first = pending[end:], False
        end = _end_of_records(pending)
        if end:
            yield pending[:end]
            pending = pending[end:]
        elif len(pending) > _LONGEST_RECORD:
            ledger.add("event_damaged")
            return
    # A last record without a line end is used if it has a cell for each header, as editors and scripts leave it; only
    # quotes show that its last cell is whole.
    whole = not first and not ledger.ends_early and _cells(pending) >= width
    if pending.strip() and not whole:
        ledger.add_cut()
    elif pending.strip():
        ledger.add("line_end_missing", int(not pending.rstrip().endswith(b'"')))
    if pending.strip() and (whole or first):
        yield pending


def _cells(record: bytes) -> int:
    """Return how many cells a record has; 0 if it ends inside quotes."""
    unquoted = _QUOTED.sub(b"", record)
    return 0 if b'"' in unquoted else unquoted.count(b",") + 1


def _end_of_records(text: bytes) -> int:
    """Return the end of the last complete record, a line end outside quotes; 0 if no record is complete."""
    odd = text.count(b'"') & 1
    end = len(text)
    while (at := text.rfind(b"\n", 0, end)) >= 0:
        odd ^= text.count(b'"', at, end) & 1
        if not odd:
            return at + 1
        end = at
    return 0


def _parsed(block: bytes, headers: list[str] | None, ledger: LossLedger) -> pl.DataFrame:
    """Return the cells of complete records; a block that is not CSV is counted."""
    width = len(headers) if headers is not None else 0
    schema = {f"column_{place + 1}": pl.String for place in range(width)} or None
    # A first line with a cell for each header: shorter lines are filled up, longer ones are cut.
    first = b"," * (width - 1) + b"\n" if width > 1 else b""
    try:
        found = pl.read_csv(
            io.BytesIO(first + block.replace(b"\0", b" ")),
            has_header=False,
            infer_schema=False,
            schema=schema,
            truncate_ragged_lines=True,
            encoding="utf8-lossy",
            raise_if_empty=False,
        )
        return found[1:] if first else found
    except pl.exceptions.PolarsError:
        ledger.add("event_damaged")
        return pl.DataFrame(schema=schema)

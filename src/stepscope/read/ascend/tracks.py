"""The tracks of an Ascend capture: threads, streams, lanes of communication and of samples."""

from __future__ import annotations

from dataclasses import dataclass, field

import polars as pl

from stepscope.trace.tables import dtype

_SCHEMA: dict[str, pl.DataType] = {
    "kind": pl.String(),
    "device": pl.String(),
    "process": pl.Int64(),
    "thread": pl.Int64(),
    "stream": pl.Int64(),
    "name": pl.String(),
}


@dataclass
class Tracks:
    """Numbers tracks as they are asked for.

    Attributes:
        rank: Rank of the process.
        host: Host name.
    """

    rank: int = 0
    host: str = ""
    _rows: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_SCHEMA))

    def numbered(self, places: pl.DataFrame) -> pl.Series:
        """Return the number of each row's track.

        Args:
            places: Columns kind, device, process, thread, stream, name; those that are absent are null.
        """
        if not places.height:
            return pl.Series("track", [], dtype=pl.Int32)
        columns = [
            pl.col(name).cast(kind) if name in places.columns else pl.lit(None, kind).alias(name)
            for name, kind in _SCHEMA.items()
        ]
        asked = places.select(columns)
        self._rows = pl.concat([self._rows, asked.unique(maintain_order=True)]).unique(maintain_order=True)
        # Of few columns that tell tracks apart here most are the same everywhere: the others are looked up.
        key = [name for name in _SCHEMA if name in places.columns]
        mine = self._rows.with_row_index("track").with_columns(pl.col("track").cast(pl.Int32))
        others = [pl.col(name).is_null() for name in _SCHEMA if name not in key]
        known = mine.filter(*others) if others else mine
        found = asked.select(key).join(known, on=key, how="left", nulls_equal=True, maintain_order="left")
        return found["track"]

    def frame(self) -> pl.DataFrame:
        """Return the table ``tracks``."""
        numbered = self._rows.with_row_index("id").with_columns(pl.col("id").cast(pl.Int32))
        return numbered.with_columns(
            pl.col("kind").cast(dtype("enum:track_kind")),
            order="id",
            rank=pl.lit(self.rank, pl.Int32),
            host=pl.lit(self.host),
        )


def npu(device: str = "device") -> pl.Expr:
    """Return the device's name of its number: ``npu:0``."""
    return pl.format("npu:{}", pl.col(device).fill_null(0))

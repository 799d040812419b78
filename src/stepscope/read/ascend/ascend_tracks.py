"""The tracks of an Ascend capture: threads, streams, lanes of communication and of samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from stepscope.read.common.distinct import combinations
from stepscope.trace.tables import dtype


class AscendTrack(NamedTuple):
    """What identifies a track."""

    kind: str
    device: str
    name: str
    process: int | None = None
    thread: int | None = None
    stream: int | None = None


@dataclass
class AscendTracks:
    """Numbers tracks in the order of their first use.

    Attributes:
        rank: Rank of the process.
        host: Host name.
    """

    rank: int = 0
    host: str = ""
    _numbers: dict[AscendTrack, int] = field(default_factory=dict)

    def numbered(self, track: Callable[..., AscendTrack], *keys: pl.Series) -> pl.Series:
        """Return the number of each row's track.

        Args:
            track: Makes a track of a row's keys; called once for each distinct combination of keys.
            keys: Columns that identify a track: numbers, booleans or categorical texts.
        """
        rows, number = combinations(*keys)
        tracks = [self._numbers.setdefault(track(*row), len(self._numbers)) for row in rows]
        return pl.Series("track", np.array(tracks, np.int32)[number])

    def frame(self) -> pl.DataFrame:
        """Return the table ``tracks``."""
        texts = dict.fromkeys(("kind", "device", "name"), pl.String)
        numbers = dict.fromkeys(("process", "thread", "stream"), pl.Int64)
        rows = pl.DataFrame(list(self._numbers), schema={**texts, **numbers}, orient="row")
        return rows.select(
            pl.col("kind").cast(dtype("enum:track_kind")),
            pl.exclude("kind"),
            id=pl.int_range(pl.len(), dtype=pl.Int32),
            order=pl.int_range(pl.len(), dtype=pl.Int32),
            rank=pl.lit(self.rank, pl.Int32),
            host=pl.lit(self.host),
        )


def npu(device: int | None) -> str:
    """Return the device's name of its number: ``npu:0``."""
    return f"npu:{device or 0}"

"""The nested results as JSON files."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analyse.results import kinds
from stepscope.report.protocol import Source
from stepscope.report.safe_text import storable, unprintable_as_json
from stepscope.report.whole_files import write_whole


@dataclass(frozen=True)
class Json:
    """One ``<name>.json`` for each nested result.

    Attributes:
        pretty: Indent by two spaces, one value a line.
        tables: Write the results that are tables instead, as a list of rows.
    """

    pretty: bool = False
    name: str = "json"
    tables: bool = False

    def write(self, source: Source, directory: Path) -> list[Path]:
        """Write the files; see :class:`stepscope.report.protocol.Format`."""
        written = []
        known = kinds()
        for name in source.results:
            if name in known and (known[name].extension == "csv") != self.tables:
                continue  # not computed: the rows of one may be millions
            result = source.results[name]
            if isinstance(result, pl.DataFrame) == self.tables:
                path = directory / f"{name}.json"
                content = result.to_dicts() if isinstance(result, pl.DataFrame) else result
                write_whole(path, (dumps(content, pretty=self.pretty) + "\n").encode())
                written.append(path)
        return written


def dumps(value: object, *, pretty: bool = False) -> str:
    """Return ``value`` as strict JSON: no NaN or infinity (they become null), no lone surrogate.

    Letters of all scripts stand as they are, because not every reader decodes escapes (Perfetto does not); what a
    terminal would obey or not show is escaped. Dates, paths and other foreign objects are written as their text.
    """
    options: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False, "indent": 2 if pretty else None}
    try:
        text = json.dumps(value, default=str, **options)
        text.encode()
    except (TypeError, ValueError):  # a key that is not text, NaN or infinity, half of a surrogate pair
        text = json.dumps(_strict(value), **options)
    return unprintable_as_json(text)


def _strict(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, dict):
        return {storable(str(key)): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return storable(value if isinstance(value, str) else str(value))

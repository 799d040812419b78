"""The nested results as JSON files."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from stepscope.report.protocol import Source
from stepscope.report.safe_text import storable, unprintable_as_json
from stepscope.report.whole_files import replacing


@dataclass(frozen=True)
class Json:
    """One ``<name>.json`` for each nested result.

    Attributes:
        pretty: Indent by two spaces, one value a line.
    """

    pretty: bool = False
    name: str = "json"

    def write(self, source: Source, directory: Path) -> list[Path]:
        """Write the files; see :class:`stepscope.report.protocol.Format`."""
        written = []
        for name, result in source.results.items():
            if isinstance(result, dict):
                path = directory / f"{name}.json"
                with replacing(path) as temporary:
                    temporary.write_text(dumps(result, pretty=self.pretty) + "\n", encoding="utf-8")
                written.append(path)
        return written


def dumps(value: object, *, pretty: bool = False) -> str:
    """Return ``value`` as strict JSON: no NaN or infinity (they become null), no lone surrogate.

    Letters of all scripts stand as they are, because not every reader decodes escapes (Perfetto does not); what a
    terminal would obey or not show is escaped. Dates, paths and other foreign objects are written as their text.
    """
    text = json.dumps(_strict(value), ensure_ascii=False, allow_nan=False, indent=2 if pretty else None)
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

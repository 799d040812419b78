"""What every output format is given, and the two members it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import polars as pl

from stepscope.trace.run_directory import Manifest
from stepscope.trace.tables import Tables

#: One result: a table, or a nested document.
Result: TypeAlias = "pl.DataFrame | dict[str, Any]"


@dataclass(frozen=True)
class Source:
    """What a format writes: one rank's tables, the results computed from them, and the manifest.

    Attributes:
        tables: Every table of the schema, lazily.
        results: Results by name; data frames (one file each as CSV) and nested documents (JSON).
        manifest: The rank's manifest; empty without one.
    """

    tables: Tables
    results: Mapping[str, Result]
    manifest: Manifest


class Format(Protocol):
    """One kind of output file."""

    @property
    def name(self) -> str:
        """Name on the command line: ``csv``, ``json``, ``db``, ``trace``, ``pftrace``."""
        ...

    def write(self, source: Source, directory: Path) -> list[Path]:
        """Write the files of this format into ``directory`` and return their paths.

        Each file is 0600 and appears complete or not at all.

        Raises:
            OutputError: The directory cannot be made or written.
        """
        ...

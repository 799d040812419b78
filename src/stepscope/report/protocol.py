"""What every output format is given, and the two members it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import polars as pl

from stepscope.trace.manifest import Manifest
from stepscope.trace.tables import Tables

#: One result: a table, or a nested document.
Result: TypeAlias = "pl.DataFrame | dict[str, Any] | list[Any]"


@dataclass(frozen=True)
class Source:
    """What a format writes: the tables of a rank or a job, the results computed from them, and the manifest.

    Attributes:
        tables: Every table of the schema, or of that of a job, lazily.
        results: Results by name; data frames (one file each as CSV) and nested documents (JSON).
        manifest: The rank's manifest; empty without one, and of a job.
        label: What a timeline of several ranks calls the rank; its processes then have numbers of their own there.
    """

    tables: Tables
    results: Mapping[str, Result]
    manifest: Manifest
    label: str = ""


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


@runtime_checkable
class TimelineFormat(Format, Protocol):
    """A format that can show several ranks on one time line."""

    def write_ranks(self, sources: Iterable[Source], directory: Path) -> list[Path]:
        """Write one file of several ranks into ``directory`` and return its path.

        Each source is used before the next is asked for; its label tells its processes from those of the others. Times
        are those of the sources: on one clock already.

        Raises:
            OutputError: The directory cannot be made or written.
        """
        ...

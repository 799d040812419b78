"""What a query can name: the tables, results and findings of a run, over all of its ranks, as Parquet files."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec
import polars as pl

from stepscope.advise.finding import Finding
from stepscope.advise.run_findings import findings
from stepscope.analyse.results import kinds
from stepscope.cluster.job_results import JOB_RESULTS
from stepscope.errors import InputError, OutputError
from stepscope.run import RankRun, Run
from stepscope.trace.schema import TABLES
from stepscope.trace.tables import RankTables, has_rows

#: The rows of a view: the rank that a file is of, None for all of the job, and the file.
Files: TypeAlias = list[tuple[int | None, Path]]

_LOG = logging.getLogger("stepscope")
_DOCUMENTS, _FINDINGS = "documents", "findings"


def known_views(run: Run) -> dict[str, str]:
    """Return the name of every view of a run, and what one row of it is."""
    views = {name: table.row for name, table in TABLES.items()}
    views |= {name: kind.doc for name, kind in kinds().items() if kind.extension == "csv"}
    views[_DOCUMENTS] = "the manifest of a rank, or one of its nested results, as JSON: " + ", ".join(_nested())
    views[_FINDINGS] = "a finding: its cause, what its repair saves, what to change"
    if len(run.ranks) > 1:
        views |= {name: result.doc for name, result in JOB_RESULTS.items()}
    return views


def stored_views(run: Run, names: Collection[str], folder: Path) -> dict[str, Files]:
    """Return the files with the rows of each view named; what is not kept with the run is written into the folder.

    A rank that cannot be read is left out and logged, if another can be.

    Raises:
        InputError: No rank can be read; the error is that of the first.
        OutputError: The folder cannot be written to.
    """
    views: dict[str, Files] = {name: [] for name in names}
    of_ranks = [name for name in names if name not in (*JOB_RESULTS, _FINDINGS)]
    first, readable = None, False
    for number, rank in enumerate(run.ranks if of_ranks else ()):
        try:
            files = [(name, _file_of(rank, name, folder / f"{name}-{number}.parquet")) for name in of_ranks]
            for name, file in files:
                views[name].append((rank.rank, file))
            readable = True
        except InputError as error:
            first = first or error
            _LOG.warning("stepscope: %s is left out: %s", rank.directory.path, error.message)
    if first is not None and not readable:
        raise first
    for name, frame in _of_job(run, [name for name in names if name not in of_ranks]):
        views[name].append((None, _written(frame.lazy(), folder / f"{name}.parquet")))
    return views


def _nested() -> list[str]:
    return [name for name, kind in kinds().items() if kind.extension != "csv"]


def _file_of(rank: RankRun, name: str, path: Path) -> Path:
    """Return the Parquet file with the rows of one view of a rank."""
    if name in TABLES:
        tables = rank.shown
        kept = tables.files.get(name) if isinstance(tables, RankTables) and has_rows(tables, name) else None
        return kept or _written(tables[name], path)
    if name == _DOCUMENTS:
        documents = {"manifest": rank.manifest, **{nested: rank.result(nested) for nested in _nested()}}
        texts = [_json(document) for document in documents.values()]
        return _written(pl.LazyFrame({"name": list(documents), "json": texts}), path)
    result = rank.result(name)
    return _written(result.lazy() if isinstance(result, pl.DataFrame) else pl.LazyFrame({"name": []}), path)


def _of_job(run: Run, names: Collection[str]) -> Iterator[tuple[str, pl.DataFrame]]:
    for name in names:
        yield name, _table_of(findings(run)) if name == _FINDINGS else run.job.results[name]


def _table_of(found: list[Finding]) -> pl.DataFrame:
    """Return one row a finding, the most important first; what is nested is JSON."""
    rows: dict[str, list[object]] = {name: [] for name in Finding.__struct_fields__}
    for finding in found:
        for name, values in rows.items():
            value = getattr(finding, name)
            values.append(value if value is None or isinstance(value, int | str) else _json(value))
    kinds_of = {name: pl.Int64 if name.endswith("_ns") or name == "stage" else pl.String for name in rows}
    return pl.DataFrame({"place": range(1, len(found) + 1), **rows}, schema={"place": pl.Int64, **kinds_of})


def _json(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _written(plan: pl.LazyFrame, path: Path) -> Path:
    try:
        plan.sink_parquet(path, compression="lz4")
    except OSError as error:
        message = f"Cannot write {path}: {error.strerror or error}."
        raise OutputError(message, "Free the space, or name another folder in TMPDIR.") from None
    return path

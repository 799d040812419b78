"""A recorded run as one object: finds its captures, reads them into tables, computes results when asked.

What ``stepscope.open`` returns::

    run = stepscope.open("stepscope-runs/train_20261121-093012")
    run.result("op_statistic")              # a Polars data frame
    run.tables["spans"].filter(...).collect()
    run.ranks[1].result("step_trace_time")  # of a run with several ranks
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from stepscope.analyse import results
from stepscope.analyse.step.answer import Summary
from stepscope.analyse.step.summary import summarise
from stepscope.errors import NotARunError, NotATraceError, UsageError
from stepscope.read import files_of, read_files, sniff
from stepscope.trace import run_directory, tables
from stepscope.trace.losses import CATALOGUE
from stepscope.trace.run_directory import FORMAT_VERSION, Manifest, RankDirectory, write_atomically
from stepscope.trace.schema import TABLES
from stepscope.trace.tables import Frames, Tables

#: A result is a table, or a nested document for the two communication files.
Result: TypeAlias = pl.DataFrame | dict[str, Any]
Progress: TypeAlias = Callable[[int, int], None]

_FINGERPRINT = "fingerprint.json"
#: Where runs are made where the user names no place.
_RUNS = Path("stepscope-runs")


class RankRun:
    """One rank of a run.

    Args:
        directory: The rank's directory.
        steps: First and last step to keep, both included; None keeps everything.
        progress: Called with bytes read and bytes in total while captures are read.
    """

    def __init__(
        self, directory: RankDirectory, *, steps: tuple[int, int] | None = None, progress: Progress | None = None
    ) -> None:
        self.directory = directory
        self.steps = steps
        self._progress = progress

    @cached_property
    def manifest(self) -> Manifest:
        """Who, where, when, with which options, and what each collector said."""
        return self.directory.read_manifest()

    @property
    def rank(self) -> int:
        """Rank of the process in its job."""
        return int(self.manifest.get("rank", 0))

    @property
    def captures(self) -> list[Path]:
        """The raw captures, in order of name: files, and directories where one capture is several files.

        Raises:
            NotARunError: There are none.
        """
        if not self.directory.capture.is_dir():
            files = []
        else:
            files = sorted(path for path in self.directory.capture.iterdir() if path.name[0] != ".")
        if not files:
            message = f"{self.directory.capture} holds no capture."
            raise NotARunError(message, "The process ended before anything was recorded; run it again.")
        return files

    @cached_property
    def tables(self) -> Tables:
        """Every table of the schema as a Polars lazy frame; read from the captures where missing or stale."""
        fingerprint = self._fingerprint()
        if self._stored_fingerprint() != fingerprint:
            self._read(fingerprint)
        found = tables.scan(self.directory.tables)
        return found if self.steps is None else _within_steps(found, self.steps)

    def result(self, name: str) -> Result:
        """Compute one result.

        Raises:
            UsageError: There is no result of that name.
        """
        if name not in results.RESULTS:
            message = f"There is no result {name!r}."
            raise UsageError(message, f"Known results: {', '.join(results.RESULTS)}.")
        return results.compute(name, self.tables)

    @property
    def results(self) -> Mapping[str, Result]:
        """All results that have something to say of this rank, computed now."""
        return results.computed(self.tables)

    @cached_property
    def summary(self) -> Summary:
        """What the printed summary shows."""
        return summarise(self.tables)

    def read(self) -> Frames:
        """Read the captures into tables; nothing is kept beside them."""
        rank, host = self.manifest.get("rank"), self.manifest.get("host")
        frames = read_files(self.captures, rank=rank, host=host, progress=self._progress)
        return {**frames, "losses": _with_recording_losses(frames["losses"], self.manifest)}

    def _read(self, fingerprint: str) -> None:
        tables.write(self.read(), self.directory.tables)
        write_atomically(self.directory.tables / _FINGERPRINT, fingerprint.encode())

    def _fingerprint(self) -> str:
        """Identify the captures, what reads them and what comes out, so that stale tables are never trusted."""
        from stepscope import __version__

        files = [
            (path.relative_to(self.directory.capture).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
            for capture in self.captures
            for path in files_of(capture)
        ]
        said = _recording_losses(self.manifest)
        columns = [(name, column.name, column.dtype) for name, table in TABLES.items() for column in table.columns]
        state = json.dumps([__version__, FORMAT_VERSION, columns, said, files])
        return hashlib.sha256(state.encode()).hexdigest()

    def _stored_fingerprint(self) -> str | None:
        path = self.directory.tables / _FINGERPRINT
        return path.read_text() if path.exists() else None


class Run:
    """A recorded or imported run: one or more ranks.

    Args:
        path: The run's directory, or one rank's directory in it; or a directory of captures of other tools (Ascend's,
            MindSpore's, JAX's profilers), which is read where it lies.
        steps: First and last step to keep, both included.
        progress: Called with bytes read and bytes in total while captures are read.

    Raises:
        NotARunError: There is no run at ``path``.
    """

    def __init__(
        self, path: str | Path, *, steps: tuple[int, int] | None = None, progress: Progress | None = None
    ) -> None:
        self.path = Path(path)
        self.ranks = _captured(self.path, steps) or [
            RankRun(rank, steps=steps, progress=progress) for rank in run_directory.ranks(self.path)
        ]

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, ranks={[rank.rank for rank in self.ranks]})"

    @property
    def tables(self) -> Tables:
        """The tables of a run with one rank."""
        return self._only().tables

    @property
    def manifest(self) -> Manifest:
        """The manifest of a run with one rank."""
        return self._only().manifest

    @property
    def summary(self) -> Summary:
        """The summary of a run with one rank."""
        return self._only().summary

    def result(self, name: str) -> Result:
        """Compute one result of a run with one rank; see :meth:`RankRun.result`."""
        return self._only().result(name)

    def _only(self) -> RankRun:
        if len(self.ranks) > 1:
            message = f"{self.path} has {len(self.ranks)} ranks."
            raise UsageError(message, "Name one: run.ranks[0].tables, run.ranks[0].result(...).")
        return self.ranks[0]


class CaptureRun(RankRun):
    """One rank of what another tool recorded, read where it lies: its tables are kept in memory, nothing is written.

    Args:
        captures: The captures of the rank.
        rank: Its rank.
        world_size: Number of ranks.
        steps: First and last step to keep, both included; None keeps everything.
    """

    def __init__(
        self, captures: list[Path], rank: int, *, world_size: int = 1, steps: tuple[int, int] | None = None
    ) -> None:
        # What is made of it goes where an import would: nothing is written beside the captures.
        super().__init__(RankDirectory(_RUNS / captures[0].name / f"rank{rank}"), steps=steps)
        self._captures = captures
        self._rank = rank
        self._world_size = world_size

    @cached_property
    def manifest(self) -> Manifest:
        """What the captures say of who and where; there is no recording of ours."""
        return _imported(self._captures, self._rank, self._world_size)

    @property
    def captures(self) -> list[Path]:
        """The captures, where they lie."""
        return self._captures

    @cached_property
    def tables(self) -> Tables:
        """Every table of the schema as a Polars lazy frame; read now."""
        found = tables.lazy(read_files(self._captures, rank=self._rank))
        return found if self.steps is None else _within_steps(found, self.steps)


def open(path: str | Path, *, steps: tuple[int, int] | None = None) -> Run:
    """Open a run for tables and results, or a directory that the profiler of another tool wrote; see :class:`Run`."""
    return Run(path, steps=steps)


def adopt(captures: list[Path], directory: RankDirectory, *, world_size: int) -> None:
    """Copy the captures of a rank that another tool recorded into a new rank's directory.

    Raises:
        InputError: A capture cannot be read, or is no trace that stepscope knows.
    """
    directory.create()
    for path in captures:
        _copy(path, directory.capture)
    directory.write_manifest(_imported(captures, directory.rank, world_size))


def _imported(captures: list[Path], rank: int, world_size: int) -> Manifest:
    identity = sniff.identify(captures[0])
    return {
        "status": "complete",
        "source": "import",
        "imported_from": str(captures[0].resolve()),
        "format": identity.format,
        "rank": rank,
        "rank_said": identity.rank,
        "world_size": identity.world_size or world_size,
        "host": identity.host or "",
        "imported_ns": time.time_ns(),
    }


def _copy(path: Path, target: Path) -> None:
    """Copy a capture, of a directory the files that its reader looks at; 0600 and 0700, under a name that is free."""
    free = (path.name, *(f"{path.name}_{number}" for number in range(2, 1000)))
    copy = next(target / name for name in free if not (target / name).exists())
    files = sniff.files_of(path)
    for file in files:
        # One file may stand for several beside it: those of one rank in a directory of many.
        inside = file.relative_to(path if path.is_dir() else path.parent)
        place = copy / inside if path.is_dir() or len(files) > 1 else copy
        for directory in reversed(place.relative_to(target).parents[:-1]):
            (target / directory).mkdir(mode=0o700, exist_ok=True)
        shutil.copyfile(file, place)
        place.chmod(0o600)


def _captured(path: Path, steps: tuple[int, int] | None) -> list[RankRun]:
    """Return the ranks of a directory that the profiler of another tool wrote; none where it is a run, or neither."""
    if not path.is_dir() or run_directory.is_run(path):
        return []
    try:
        found = sniff.by_rank(path)
    except NotATraceError:
        return []
    return [
        CaptureRun(captures, place if rank is None else rank, world_size=len(found), steps=steps)
        for place, (rank, captures) in enumerate(found.items())
    ]


def _recording_losses(manifest: Manifest) -> list[tuple[str, int, str]]:
    """Return what only the manifest knows, as name, count and source: collectors that failed, and the like."""
    rows = [(what, count, "session") for what, count in manifest.get("losses", {}).items() if what in CATALOGUE]
    if manifest.get("status") == "recording":
        rows.append(("ended_abruptly", 1, "process"))
    for name, state in manifest.get("collectors", {}).items():
        if state.get("failed"):
            rows.append(("collector_failed", 1, name))
        elif state.get("unavailable"):
            rows.append(("collector_unavailable", 1, name))
        if state.get("native"):
            rows.append(("recorder_unavailable", 1, name))
    rows += [("switch_unavailable", 1, name) for name in manifest.get("switches_unavailable", {})]
    return rows


def _with_recording_losses(losses: pl.DataFrame, manifest: Manifest) -> pl.DataFrame:
    rows = [(what, count, *CATALOGUE[what], source) for what, count, source in _recording_losses(manifest)]
    if not rows:
        return losses
    extra = pl.DataFrame(rows, schema=["what", "count", "severity", "advice", "source"], orient="row")
    return pl.concat([losses, tables.conform("losses", extra)])


def _within_steps(found: Tables, steps: tuple[int, int]) -> dict[str, pl.LazyFrame]:
    """Keep the steps ``first`` to ``last``, what happened in their windows, and the details of those spans."""
    first, last = steps
    kept = found["steps"].filter(pl.col("number").is_between(first, last)).collect()
    if kept.is_empty():
        numbers = sorted(found["steps"].select("number").collect()["number"].to_list())
        have = f"The run has steps {numbers[0]} to {numbers[-1]}." if numbers else "The run has no steps."
        message = f"No step between {first} and {last}."
        raise UsageError(message, have)
    begin, end = int(kept["ts"].min()), int((kept["ts"] + kept["dur"]).max())  # type: ignore[arg-type]
    spans = found["spans"].filter((pl.col("ts") < end) & (pl.col("ts") + pl.col("dur") > begin))
    result = {**found, "steps": kept.lazy(), "spans": spans}
    ids = spans.select(pl.col("id").alias("span"))
    for name in ("kernels", "tasks", "operators", "kernel_counters", "collectives", "transfers", "arguments"):
        result[name] = found[name].join(ids, on="span", how="semi")
    for name in ("counters", "allocations"):
        result[name] = found[name].filter(pl.col("ts").is_between(begin, end))
    return result

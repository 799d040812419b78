"""A recorded run as one object: finds its captures, reads them into tables, computes results on demand.

What ``stepscope.open`` returns::

    run = stepscope.open("stepscope-runs/train_20261121-093012")
    run.results["op_statistic"]             # a Polars data frame
    run.tables["spans"].filter(...).collect()
    run.ranks[1].results["step_trace_time"] # of a run with several ranks
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import msgspec
import polars as pl

from stepscope.analyse.results import Result, Results, kinds
from stepscope.analyse.step.summary import Summary, summarise
from stepscope.errors import NotARunError, NotATraceError, UsageError
from stepscope.read import Capture, read_files, sniff
from stepscope.trace import run_directory, tables
from stepscope.trace.losses import CATALOGUE
from stepscope.trace.run_directory import FORMAT_VERSION, Manifest, RankDirectory, write_atomically
from stepscope.trace.schema import TABLES
from stepscope.trace.tables import Frames, RankTables, Tables

Progress: TypeAlias = Callable[[int, int], None]

_FINGERPRINT = "fingerprint.json"
#: The few numbers of a rank, beside its manifest.
_SUMMARY = "summary.json"
#: Directory of runs unless the user names another.
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

    @cached_property
    def captures(self) -> list[Capture]:
        """The raw captures, in order of name; one that cannot be read says so in its ``fault``.

        Raises:
            NotARunError: There are none.
            InputError: None can be read.
        """
        folder = self.directory.capture
        entries = sorted(path for path in folder.iterdir() if path.name[0] != ".") if folder.is_dir() else []
        if not entries:
            message = f"{folder} holds no capture."
            raise NotARunError(message, "The process ended before anything was recorded; run it again.")
        return sniff.look_at_each(entries)

    @cached_property
    def tables(self) -> Tables:
        """Every table of the schema as a Polars lazy frame; read from the captures if missing or stale."""
        fingerprint = self._fingerprint
        path = self.directory.tables / _FINGERPRINT
        frames = None
        if not path.exists() or path.read_text() != fingerprint:
            frames = self.read()
            tables.write(frames, self.directory.tables)
            write_atomically(path, fingerprint.encode())
        found = tables.scan(self.directory.tables, frames)
        return found if self.steps is None else _within_steps(found, self.steps)

    @cached_property
    def results(self) -> Results:
        """Every result of this rank that has rows, by name; each is computed once, when it is first read."""
        return Results(self.tables)

    def result(self, name: str) -> Result:
        """Return one result, also one without rows.

        Raises:
            UsageError: No result has that name.
        """
        if name not in kinds():
            message = f"{name!r} is not a result."
            raise UsageError(message, f"Known results: {', '.join(kinds())}.")
        return self.results.compute(name)

    @property
    def made_of(self) -> str | None:
        """Fingerprint of results: captures, version, schema, steps, and which results exist; None if none is kept."""
        return f"{self._fingerprint} {self.steps} {','.join(kinds())}"

    @cached_property
    def summary(self) -> Summary:
        """What the printed summary shows; the one that is stored, where it was made of the same."""
        path, made_of = self.directory.path / _SUMMARY, self.made_of
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=_StoredSummary)
            if stored.made_of == made_of:
                return stored.summary
        except (OSError, ValueError):
            pass  # missing or damaged: made again
        summary = summarise(self.tables)
        if made_of is not None:
            with suppress(OSError):  # a run that cannot be written to can still be read
                write_atomically(path, msgspec.json.encode(_StoredSummary(made_of, summary)))
        return summary

    def release(self) -> None:
        """Give up tables and results in memory; both are read or computed again on the next use."""
        for name in ("tables", "results"):
            self.__dict__.pop(name, None)

    def read(self) -> Frames:
        """Read the captures into tables; nothing is kept beside them."""
        rank, host = self.manifest.get("rank"), self.manifest.get("host")
        frames = read_files(self.captures, rank=rank, host=host, progress=self._progress)
        return {**frames, "losses": _with_recording_losses(frames["losses"], self.manifest)}

    @cached_property
    def _fingerprint(self) -> str:
        """Identify the captures, what reads them and what comes out, so that stale tables are never trusted."""
        from stepscope import __version__

        files = [
            (path.relative_to(self.directory.capture).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
            for capture in self.captures
            for path in capture.all
        ]
        said = _recording_losses(self.manifest)
        columns = [(name, column.name, column.dtype) for name, table in TABLES.items() for column in table.columns]
        state = json.dumps([__version__, FORMAT_VERSION, columns, said, files])
        return hashlib.sha256(state.encode()).hexdigest()


@dataclass(frozen=True)
class _StoredSummary:
    made_of: str
    summary: Summary


class Run:
    """A recorded or imported run: one or more ranks.

    Args:
        path: A run's directory; one rank's directory in it; a directory of runs, of which the latest is taken
            (:func:`runs` lists them); or what another tool wrote, which is read in place: a capture, or a
            directory of captures of any number of ranks.
        steps: First and last step to keep, both included.
        progress: Called with bytes read and bytes in total while captures are read.

    Attributes:
        path: The run's directory, or the path of the captures.
        ranks: The ranks, in order.
        left_out: Captures that are not read, each with its fault.

    Raises:
        NotARunError: ``path`` holds neither a run nor a capture.
        InputError: The path, or every capture there, cannot be read.
    """

    def __init__(
        self, path: str | Path, *, steps: tuple[int, int] | None = None, progress: Progress | None = None
    ) -> None:
        self.path = Path(path)
        self.left_out: list[Capture] = []
        found = run_directory.ranks(self.path)
        if not found and (latest := run_directory.runs(self.path)):
            self.path = latest[-1]
            found = run_directory.ranks(self.path)
        recorded = [RankRun(rank, steps=steps, progress=progress) for rank in found]
        self.ranks = recorded or self._captured(steps, progress)

    def _captured(self, steps: tuple[int, int] | None, progress: Progress | None) -> list[RankRun]:
        """Return the ranks of captures that lie at the path."""
        if not self.path.exists():
            message = f"{self.path} does not exist."
            raise NotARunError(message, "Name a run of `stepscope run` or `stepscope import`, or a capture.")
        try:
            found = sniff.ranks([sniff.look(self.path)])
        except NotATraceError as error:
            raise NotARunError(error.message, error.remedy) from None
        self.left_out = found.left_out
        world = len(found.captures)
        return [
            CaptureRun(captures, rank, world_size=world, steps=steps, progress=progress)
            for rank, captures in found.captures.items()
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

    @property
    def results(self) -> Results:
        """The results of a run with one rank."""
        return self._only().results

    def result(self, name: str) -> Result:
        """Return one result of a run with one rank; see :meth:`RankRun.result`."""
        return self._only().result(name)

    def _only(self) -> RankRun:
        if len(self.ranks) > 1:
            message = f"{self.path} has {len(self.ranks)} ranks."
            raise UsageError(message, "Name one: run.ranks[0].tables, run.ranks[0].results[...].")
        return self.ranks[0]


class CaptureRun(RankRun):
    """One rank of what another tool recorded, read in place: its tables stay in memory, nothing is written.

    Args:
        captures: The captures of the rank.
        rank: Its rank.
        world_size: Number of ranks.
        steps: As in :class:`RankRun`, like ``progress``.
    """

    def __init__(
        self,
        captures: list[Capture],
        rank: int,
        *,
        world_size: int = 1,
        steps: tuple[int, int] | None = None,
        progress: Progress | None = None,
    ) -> None:
        # Its files go where an import would put them: nothing is written beside the captures.
        super().__init__(RankDirectory(_RUNS / captures[0].name / f"rank{rank}"), steps=steps, progress=progress)
        self.captures = captures
        self.manifest = _imported(captures, rank, world_size, [])

    @property
    def made_of(self) -> None:
        """None: nothing is kept beside captures of another tool."""

    @cached_property
    def tables(self) -> Tables:
        """Every table of the schema as a Polars lazy frame, kept in memory."""
        found = tables.lazy(read_files(self.captures, rank=self.rank, progress=self._progress))
        return found if self.steps is None else _within_steps(found, self.steps)


def open(path: str | Path, *, steps: tuple[int, int] | None = None) -> Run:
    """Open a run, the latest run of a directory, or captures of other tools; see :class:`Run`."""
    return Run(path, steps=steps)


def runs(directory: str | Path = _RUNS) -> list[Run]:
    """Return the runs in a directory, oldest first: the last is the one that ``stepscope.open(directory)`` opens.

    Nothing is read before it is asked for. The time of a run is that in its name, else that of its manifest.
    """
    return [Run(path) for path in run_directory.runs(Path(directory))]


def adopt(
    captures: list[Capture], directory: RankDirectory, *, world_size: int, left_out: Sequence[Capture] = ()
) -> None:
    """Copy the captures of a rank that another tool recorded into a new rank's directory.

    Args:
        captures: The captures of the rank.
        directory: The directory to make.
        world_size: Number of ranks, if the captures do not say it.
        left_out: Captures that are not copied; the manifest names them, and each is a row of ``losses``.

    Raises:
        InputError: A capture cannot be read.
    """
    directory.create()
    for capture in captures:
        _copy(capture, directory.capture)
    directory.write_manifest(_imported(captures, directory.rank, world_size, left_out))


def _imported(captures: list[Capture], rank: int, world_size: int, left_out: Sequence[Capture]) -> Manifest:
    first = captures[0]
    origin = first.root if len(captures) == 1 else os.path.commonpath([one.root.parent.resolve() for one in captures])
    manifest: Manifest = {
        "status": "complete",
        "source": "import",
        "imported_from": str(Path(origin).resolve()),
        "format": first.format,
        "rank": rank,
        "rank_said": first.rank,
        "world_size": first.world_size or world_size,
        "host": first.host or "",
        "imported_ns": time.time_ns(),
    }
    if left_out:
        manifest["left_out"] = {str(one.root): {"loss": one.loss, "reason": one.fault} for one in left_out}
    return manifest


def _copy(capture: Capture, target: Path) -> None:
    """Copy the files of a capture, 0600 in directories of 0700, under a name that is free."""
    free = (capture.name, *(f"{capture.name}_{number}" for number in range(2, 1000)))
    copy = next(target / name for name in free if not (target / name).exists())
    is_directory = capture.root.is_dir()
    for file in capture.all:
        # The root may be one of several files: those of one rank in a directory of many ranks.
        inside = file.relative_to(capture.root if is_directory else capture.root.parent)
        path = copy / inside if is_directory or len(capture.all) > 1 else copy
        for directory in reversed(path.relative_to(target).parents[:-1]):
            (target / directory).mkdir(mode=0o700, exist_ok=True)
        shutil.copyfile(file, path)
        path.chmod(0o600)


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
    left_out = manifest.get("left_out", {})
    rows += [(said["loss"], 1, Path(path).name) for path, said in left_out.items() if said.get("loss") in CATALOGUE]
    return rows


def _with_recording_losses(losses: pl.DataFrame, manifest: Manifest) -> pl.DataFrame:
    rows = [(what, count, *CATALOGUE[what], source) for what, count, source in _recording_losses(manifest)]
    if not rows:
        return losses
    extra = pl.DataFrame(rows, schema=["what", "count", "severity", "advice", "source"], orient="row")
    return pl.concat([losses, tables.conform("losses", extra)])


def _within_steps(found: Tables, steps: tuple[int, int]) -> RankTables:
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
    return RankTables(result, {})

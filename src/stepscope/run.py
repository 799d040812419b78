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
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import polars as pl

from stepscope.analyse.results import Result, Results, kinds
from stepscope.analyse.step.summarise import summarise
from stepscope.analyse.step.summary import Summary
from stepscope.errors import NotARunError, NotATraceError, UsageError
from stepscope.notebook_display import NotebookDisplay
from stepscope.read import Capture, read_files, sniff
from stepscope.read.common import communication
from stepscope.read.journal.journal_reader import of_one_process
from stepscope.trace import job_ranks, run_directory, tables
from stepscope.trace.job_ranks import RankSaid
from stepscope.trace.losses import CATALOGUE
from stepscope.trace.manifest import Manifest
from stepscope.trace.run_directory import FORMAT_VERSION, JOURNAL, STEP_TIMES, RankDirectory, write_atomically
from stepscope.trace.schema import ANY_WORK, NOT_RECORDED, SPEEDS, columns_as_text
from stepscope.trace.tables import Frames, RankTables, Tables

if TYPE_CHECKING:
    from stepscope.advise.finding import Findings
    from stepscope.cluster.job import Job
    from stepscope.report.inline import RunTimeline

Progress: TypeAlias = Callable[[int, int], None]

_FINGERPRINT = "fingerprint.json"
#: Section of a rank's summary with what the terminal prints.
_PRINTED = "printed"
#: Directory of runs unless the user names another.
_RUNS = Path("stepscope-runs")


class RankRun(NotebookDisplay):
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
    def said(self) -> RankSaid:
        """What the manifest and the captures say of this rank and its job."""
        captures = [] if self.reduced else self.captures
        sizes = (self.manifest.get("world_size"), *(capture.world_size for capture in captures))
        hosts = (capture.host for capture in captures)
        return RankSaid(
            self.directory.path.name, self.rank, frozenset(filter(None, sizes)), frozenset(filter(None, hosts))
        )

    @cached_property
    def captures(self) -> list[Capture]:
        """The raw captures, in order of name; one that cannot be read says so in its ``fault``.

        Raises:
            NotARunError: There are none.
            InputError: None can be read.
        """
        folder = self.directory.capture
        if self.reduced:
            return self._captures_elsewhere()
        entries = sorted(path for path in folder.iterdir() if path.name[0] != ".") if folder.is_dir() else []
        if not entries:
            message = f"{folder} holds no capture."
            if self.directory.tables.is_dir():
                raise NotARunError(message, "Put its files back: without them the tables cannot be checked or made.")
            raise NotARunError(message, "The process ended before anything was recorded; run it again.")
        found = [one for one in sniff.look_at_each(entries) if not one.ranks or one.rank == self.rank]
        own = {capture.name: capture for capture in found if capture.format == "journal" and not capture.fault}
        times, journal = own.get(STEP_TIMES), own.get(JOURNAL)
        if times and journal and not of_one_process(journal.root, times.root):
            fault = f"{times.root} holds the times of steps of another program."
            found[found.index(times)] = replace(times, fault=fault)
        return found

    @property
    def _origin(self) -> dict[str, Any]:
        """Where the captures lie of a rank of which only the summary was made, and of which version they are."""
        return dict(self.manifest.get("origin") or {})

    @property
    def reduced(self) -> bool:
        """Whether only its summary was made, and its captures stayed where they were."""
        return not self.directory.capture.is_dir() and bool(self._origin)

    def _captures_elsewhere(self) -> list[Capture]:
        roots = [str(root) for root in self._origin.get("roots", ())]
        gone = [root for root in roots if "://" in root or not run_directory.exists(Path(root))]
        if gone or not roots:
            where = gone[0] if gone else "their place is unknown"
            message = f"The captures of {self.directory.path} are not here: {where}."
            raise NotARunError(message, "Its summary serves the job. For results of the rank, reduce it with --keep.")
        found = sniff.look_at_each([Path(root) for root in roots])
        return [one for one in found if not one.ranks or one.rank == self.rank]

    @cached_property
    def tables(self) -> Tables:
        """Every table of the schema as a Polars lazy frame; read from the captures if missing, stale or damaged.

        On a file system that cannot be written to, tables that are read stay in memory.
        """
        found = self._kept() or self._made()
        return found if self.steps is None else _within_steps(found, self.steps)

    def tables_for_job(self) -> Tables:
        """Return the tables that are there, else what the captures say in brief, which is not kept."""
        if "tables" in self.__dict__ or self.steps is not None:
            return self.tables
        return self._kept() or tables.lazy(self.read(brief=True))

    @cached_property
    def shown(self) -> Tables:
        """The tables as results and files show them: with names that can be repeated in every row."""
        losses = tables.columns_of(self.tables, "losses", "what")["what"]
        return tables.with_short_names(self.tables) if "names_shortened" in losses.to_list() else self.tables

    def _kept(self) -> RankTables | None:
        """Return the tables on the disk, if they are of these captures and every file is as it was written."""
        try:
            kept = msgspec.json.decode((self.directory.tables / _FINGERPRINT).read_bytes(), type=_KeptTables)
        except (OSError, ValueError):
            return None  # missing or damaged
        return tables.scan(self.directory.tables, kept.files) if kept.made_of == self._fingerprint else None

    def _made(self) -> RankTables:
        frames, fingerprint = self.read(), self._fingerprint
        try:
            kept = _KeptTables(fingerprint, tables.write(frames, self.directory.tables))
            write_atomically(self.directory.tables / _FINGERPRINT, msgspec.json.encode(kept))
        except OSError:
            return tables.lazy(frames)
        return tables.scan(self.directory.tables, kept.files, frames) or tables.lazy(frames)

    @cached_property
    def results(self) -> Results:
        """Every result of this rank that has rows, by name; each is computed once, when it is first read."""
        return Results(self.shown)

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
    def selection(self) -> str:
        """What the names of a selection of steps end with, such as ``_steps_6-7``; empty for the whole run."""
        return "" if self.steps is None else "_steps_{}-{}".format(*self.steps)

    @property
    def results_directory(self) -> Path:
        """Where result files go: those of a selection of steps never replace the run's."""
        return self.directory.path / f"{self.directory.results.name}{self.selection}"

    @property
    def made_of(self) -> str | None:
        """Fingerprint of results: captures, version, schema, steps, and which results exist; None if none is kept."""
        return f"{self._fingerprint} {self.steps} {','.join(kinds())}"

    @cached_property
    def summary(self) -> Summary:
        """What the printed summary shows; the one that is kept, where it was made of the same."""
        kept = self.kept_section(_PRINTED)
        try:
            if kept is not None:
                return msgspec.json.decode(kept, type=Summary)
        except ValueError:
            pass  # of another version: made again
        summary = summarise(self.shown)
        self.keep_section(_PRINTED, msgspec.json.encode(summary))
        return summary

    def kept_section(self, name: str) -> bytes | None:
        """Return a section of the rank's summary file, if it was made of the same and is as it was written."""
        kept = self._kept_sections().get(name)
        return bytes(kept.content) if kept is not None and kept.checksum == zlib.crc32(kept.content) else None

    def keep_section(self, name: str, content: bytes) -> None:
        """Keep a section, JSON, beside the others of the summary file; nothing is kept of a selection of steps."""
        if (made_of := self._summary_made_of) is None:
            return
        sections = {**self._kept_sections(), name: _Section(zlib.crc32(content), msgspec.Raw(content))}
        with suppress(OSError):  # a run that cannot be written to can still be read
            write_atomically(self.directory.summary_path, msgspec.json.encode(_SummaryFile(made_of, sections)))

    def _kept_sections(self) -> dict[str, _Section]:
        if self._summary_made_of is None:
            return {}
        try:
            kept = msgspec.json.decode(self.directory.summary_path.read_bytes(), type=_SummaryFile)
        except (OSError, ValueError):
            return {}  # missing or damaged
        return kept.sections if kept.made_of == self._summary_made_of else {}

    @property
    def _summary_made_of(self) -> str | None:
        return None if self.steps else self.made_of

    def release(self) -> None:
        """Give up tables and results in memory; both are read or computed again on the next use."""
        for name in ("tables", "shown", "results"):
            self.__dict__.pop(name, None)

    def read(self, *, brief: bool = False) -> Frames:
        """Read the captures into tables; nothing is kept beside them. In brief, without what a job does not need."""
        rank, host = self.manifest.get("rank"), self.manifest.get("host") or None
        frames = read_files(self.captures, rank=rank, host=host, progress=self._progress, brief=brief)
        if speeds := self.manifest.get("speeds"):
            fact = pl.DataFrame({"key": [SPEEDS], "value": [json.dumps(speeds)]})
            frames = {**frames, "metadata": pl.concat([frames["metadata"], tables.conform("metadata", fact)])}
        rows = [(what, count, *CATALOGUE[what], source) for what, count, source in self._recording_losses()]
        if not rows:
            return frames
        extra = pl.DataFrame(rows, schema=["what", "count", "severity", "advice", "source"], orient="row")
        frames = {**frames, "losses": pl.concat([frames["losses"], tables.conform("losses", extra)])}
        if any(what == "capture_missing" and source != STEP_TIMES for what, _, source in self._recording_losses()):
            # What the lost file held would count as idle: of no part of a step the time is known.
            unknown = pl.DataFrame({"key": [NOT_RECORDED], "value": [json.dumps(ANY_WORK)]})
            frames["metadata"] = pl.concat([frames["metadata"], tables.conform("metadata", unknown)])
        return frames

    def _recording_losses(self) -> list[tuple[str, int, str]]:
        """Return what the captures do not say, as name, count and source: what the manifest knows, captures gone."""
        named = ((self.directory.path / path) for path in self.manifest.get("captures", ()))
        gone = [path.name for path in named if not run_directory.exists(path)]
        return [*_losses_said(self.manifest), *(("capture_missing", 1, name) for name in gone)]

    @cached_property
    def _fingerprint(self) -> str:
        """Identify the captures, what reads them and what comes out, so that stale tables are never trusted."""
        from stepscope import __version__

        if self.reduced:
            files = list(self._origin.get("files", ()))  # as they were when it was reduced: they may be far away
        else:
            files = [
                (path.relative_to(self.directory.capture).as_posix(), *_size_and_time(path))
                for capture in self.captures
                for path in capture.all
            ]
        made_by = [__version__, FORMAT_VERSION, columns_as_text(), communication.fingerprint()]
        state = json.dumps([*made_by, self._recording_losses(), files, self.manifest.get("speeds")])
        return hashlib.sha256(state.encode()).hexdigest()


def _size_and_time(path: Path) -> tuple[int, int]:
    """Return size and time of change of a file; zeros of one that is not there, such as a link to itself."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


class _KeptTables(msgspec.Struct):
    """What the tables on the disk were made of, and how their files were written."""

    made_of: str
    files: tables.Sums


class _Section(msgspec.Struct):
    """A part of a summary file: the CRC32 of its content, and the content, JSON."""

    checksum: int
    content: msgspec.Raw


class _SummaryFile(msgspec.Struct):
    """The summary of a rank: what it was made of, and what it holds: the printed summary, the job's columns."""

    made_of: str
    sections: dict[str, _Section]


class Run(NotebookDisplay):
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
        if not run_directory.exists(self.path):
            message = f"{self.path} does not exist."
            raise NotARunError(message, "Name a run of `stepscope run` or `stepscope import`, or a capture.")
        try:
            found = sniff.ranks([sniff.look(self.path)])
        except NotATraceError as error:
            raise NotARunError(error.message, error.remedy) from None
        self.left_out = found.left_out
        said = (
            (captures, imported_manifest(captures, rank, found.world_size, found.left_out_of(rank)))
            for rank, captures in found.captures.items()
        )
        return [CaptureRun(captures, manifest, steps=steps, progress=progress) for captures, manifest in said]

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, ranks={[rank.rank for rank in self.ranks]})"

    @cached_property
    def rank_problems(self) -> list[str]:
        """What is wrong with the ranks as a whole, one sentence each: missing, there twice, contradictory."""
        # One rank's own directory says nothing of the others.
        whole = self.path != self.ranks[0].directory.path
        return job_ranks.problems([rank.said for rank in self.ranks], whole=whole)

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

    @cached_property
    def job(self) -> Job:
        """All ranks as one job; see :func:`stepscope.job`."""
        import stepscope

        return stepscope.job(self)

    @cached_property
    def findings(self) -> Findings:
        """What makes the steps slow, the most important first; see :func:`stepscope.findings`."""
        import stepscope

        return stepscope.findings(self)

    def timeline(self, rank: int | None = None, *, height: int = 640) -> RunTimeline:
        """Return the timeline, which shows itself in a notebook with all other pages of the run.

        Args:
            rank: Number of a rank; by default the one to look at first.
            height: Its height in pixels.
        """
        from stepscope.report.inline import RunTimeline

        return RunTimeline(self, rank, height=height)

    def query(self, sql: str) -> pl.DataFrame:
        """Answer one ``SELECT`` over the tables and results of all ranks; see :func:`stepscope.query`."""
        import stepscope

        return stepscope.query(self, sql)

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
        manifest: What an import would note of it.
        steps: As in :class:`RankRun`, like ``progress``.
    """

    def __init__(
        self,
        captures: list[Capture],
        manifest: Manifest,
        *,
        steps: tuple[int, int] | None = None,
        progress: Progress | None = None,
    ) -> None:
        # Its files go where an import would put them: nothing is written beside the captures.
        directory = RankDirectory(_RUNS / captures[0].name / f"rank{manifest['rank']}")
        super().__init__(directory, steps=steps, progress=progress)
        self.captures = captures
        self.manifest = manifest

    @property
    def made_of(self) -> None:
        """None: nothing is kept beside captures of another tool."""

    @cached_property
    def tables(self) -> Tables:
        """Every table of the schema as a Polars lazy frame, kept in memory."""
        found = tables.lazy(self.read())
        return found if self.steps is None else _within_steps(found, self.steps)

    def tables_for_job(self) -> Tables:
        """Return the tables that are in memory, else what the captures say in brief."""
        known = "tables" in self.__dict__ or self.steps is not None
        return self.tables if known else tables.lazy(self.read(brief=True))


def open(path: str | Path, *, steps: tuple[int, int] | None = None) -> Run:
    """Open a run, the latest run of a directory, or captures of other tools; see :class:`Run`."""
    return Run(path, steps=steps)


def runs(directory: str | Path = _RUNS) -> list[Run]:
    """Return the runs in a directory, oldest first: the last is the one that ``stepscope.open(directory)`` opens.

    Nothing is read before it is asked for. The time of a run is that in its name, else that of its manifest.
    """
    return [Run(path) for path in run_directory.runs(Path(directory))]


def adopt(
    captures: list[Capture], directory: RankDirectory, *, world_size: int | None, left_out: Sequence[Capture] = ()
) -> None:
    """Copy the captures of a rank that another tool recorded into a new rank's directory.

    Args:
        captures: The captures of the rank.
        directory: The directory to make.
        world_size: Number of ranks, if the captures do not say it; None if it is unknown.
        left_out: Captures that are not copied; the manifest names them, and each is a row of ``losses``.

    Raises:
        InputError: A capture cannot be read.
    """
    directory.create()
    for capture in captures:
        _copy(capture, directory.capture)
    manifest = imported_manifest(captures, directory.rank, world_size, left_out)
    if of_others := sum(capture.of_others for capture in captures):  # the copies are the user's own
        manifest["losses"] = {"files_of_others": of_others}
    directory.write_manifest(manifest)


#: Formats of our own recordings, of which the manifest says how they ended: as a capture, one has lost it.
_RECORDED = frozenset({"journal", "recorder", "cupti"})


def imported_manifest(
    captures: Sequence[Capture], rank: int, world_size: int | None, left_out: Sequence[Capture]
) -> Manifest:
    """Return the manifest of a rank that another tool recorded; the arguments are those of :func:`adopt`."""
    first = captures[0]
    origin = first.root if len(captures) == 1 else os.path.commonpath([one.root.parent.resolve() for one in captures])
    manifest: Manifest = {
        "status": "unknown" if first.format in _RECORDED else "complete",
        "source": "import",
        "imported_from": str(Path(origin).resolve()),
        "format": first.format,
        "rank": rank,
        "rank_said": first.rank,
        "world_size": next((one.world_size for one in captures if one.world_size), world_size),
        "host": first.host or "",
        "imported_ns": time.time_ns(),
    }
    if left_out:
        manifest["left_out"] = {str(one.root): {"loss": one.loss, "reason": one.fault} for one in left_out}
    return manifest


def _copy(capture: Capture, target: Path) -> None:
    """Copy the files of a capture, 0600 in directories of 0700, under a name that is free."""
    free = (target / f"{capture.name}{suffix}" for suffix in ("", *(f"_{number}" for number in range(2, 1000))))
    copy = next(path for path in free if not path.exists())
    is_directory = capture.root.is_dir()
    for file in capture.all:
        # The root may be one of several files: those of one rank in a directory of many ranks.
        inside = file.relative_to(capture.root if is_directory else capture.root.parent)
        path = copy / inside if is_directory or len(capture.all) > 1 else copy
        for directory in reversed(path.relative_to(target).parents[:-1]):
            (target / directory).mkdir(mode=0o700, exist_ok=True)
        shutil.copyfile(file, path)
        path.chmod(0o600)


def _losses_said(manifest: Manifest) -> list[tuple[str, int, str]]:
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

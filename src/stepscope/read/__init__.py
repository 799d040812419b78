"""Files → tables: one reader per format, and the assembly of a rank's files on one time line."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.errors import FormatVersionError, InputError, NotATraceError, UsageError
from stepscope.extensions import extensions
from stepscope.read import sniff
from stepscope.read.assemble.assemble import assemble
from stepscope.read.common.source import Capture, Progress
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import ANY_WORK, NOT_RECORDED
from stepscope.trace.tables import Frames, conform

__all__ = ["READERS", "Capture", "read_capture", "read_files"]

_LOG = logging.getLogger("stepscope")

#: Format → the module that reads it, with ``read(source, ledger, progress)``, where the source is the file, or the
#: :class:`Capture` of a format in :data:`sniff.OF_DIRECTORIES`; none is imported before it is needed.
READERS: dict[str, str] = {
    "journal": "journal.journal_reader",
    "cupti": "cupti.cupti_reader",
    "recorder": "recorder.recorder_reader",
    "kineto": "kineto.kineto_reader",
    "mindspore": "mindspore.mindspore_reader",
    "ascend": "ascend.ascend_reader",
    "fluid": "paddle.fluid_profile",
    "paddle": "paddle.node_trees",
    "paddle_json": "paddle.paddle_chrome",
    "xplane": "xplane.xplane_reader",
    "pprof": "pprof",
    "collapsed": "collapsed",
    "memory_snapshot": "memory_snapshot.snapshot_reader",
    "rocprof": "rocprof.rocprof_reader",
    "nsight": "nsight.nsight_reader",
    "perfetto": "perfetto.perfetto_reader",
    "speedscope": "speedscope.speedscope_reader",
}


#: Formats of one file whose events do not lie in order of time: what is behind a cut may be of any step, and would
#: count as idle.
_OUT_OF_ORDER = frozenset({"kineto", "fluid", "paddle", "paddle_json", "xplane", "rocprof", "nsight"})
#: Formats whose recordings of one process, each of some steps, may lie beside each other.
_OF_WINDOWS = frozenset({"kineto", "ascend", "mindspore"})
#: Formats whose reader can leave out what the analysis of a job does not need.
IN_BRIEF = frozenset({"kineto", "ascend"})


def read_files(
    captures: Sequence[Path | Capture],
    *,
    rank: int | None = None,
    host: str | None = None,
    progress: Progress | None = None,
    brief: bool = False,
) -> Frames:
    """Read every capture of one rank.

    A capture that cannot be read costs itself only, if another can be: it is logged, and a row of ``losses``.

    Args:
        captures: The captures, or paths to look at: files, and directories above captures of one rank.
        rank: Rank of the process; None takes what the files say, else 0.
        host: Host name; None takes what the files say.
        progress: Called with bytes read and bytes in total, over all files.
        brief: Leave out what the analysis of a job does not need, where that is faster (:data:`IN_BRIEF`).

    Returns:
        Every table of the schema, on one time line.

    Raises:
        UsageError: No file is named.
        InputError: No file can be read, is a trace, or is sound up to its first event.
    """
    if not captures:
        message = "No file to read."
        raise UsageError(message, "Name at least one trace.")
    found = [one for given in captures for one in ([given] if isinstance(given, Capture) else _of_one_rank(given))]
    total = sum(capture.size for capture in found)
    ledgers = [LossLedger(capture.name) for capture in found]
    windows = [one for one in found if one.format in _OF_WINDOWS and not one.fault]
    windows = [one for one in windows if one.window or one.format != "kineto"]
    given = [(one, ledger, brief and one.format in IN_BRIEF) for one, ledger in zip(found, ledgers, strict=True)]
    parts = _numbered_on(_parts(given, progress, total), windows)
    return assemble(parts, ledgers, rank=rank, host=host, brief=brief)


def read_capture(
    capture: Capture, ledger: LossLedger, progress: Progress | None = None, *, brief: bool = False
) -> dict[str, pl.DataFrame]:
    """Read one capture, of any known format, into tables of its own; in brief only one of :data:`IN_BRIEF`.

    Raises:
        InputError: It cannot be read, is not a trace, or is damaged before its first event.
    """
    if capture.fault:
        raise InputError(capture.fault, "Copy the file again, or record again.")
    if capture.format not in READERS:
        reader = extensions("stepscope.readers")[capture.format]
    else:
        reader = import_module(f"{__name__}.{READERS[capture.format]}")
    source = capture if capture.format in sniff.OF_DIRECTORIES else capture.root
    options: dict[str, Any] = {"brief": True} if brief else {}
    if capture.ranks:
        options["rank"] = capture.rank
    part: dict[str, pl.DataFrame] = reader.read(source, ledger, progress, **options)
    if capture.format in _OUT_OF_ORDER and ledger.ends_early:
        unknown = pl.DataFrame({"key": [NOT_RECORDED], "value": [json.dumps(ANY_WORK)]})
        part["metadata"] = pl.concat([part["metadata"], conform("metadata", unknown)])
    return part


def _of_one_rank(path: Path) -> list[Capture]:
    found = sniff.ranks([sniff.look(path)])
    if len(found.captures) > 1:
        message = f"{path} holds captures of {len(found.captures)} ranks."
        raise NotATraceError(message, "Use `stepscope import`, which makes one run of them.")
    return [*next(iter(found.captures.values())), *found.left_out]


def _parts(
    given: Sequence[tuple[Capture, LossLedger, bool]], progress: Progress | None, total: int
) -> Iterator[tuple[Capture, dict[str, pl.DataFrame]]]:
    """Yield each capture that can be read, and its tables; each is given with its ledger, and whether in brief.

    Raises:
        InputError: None can be read; the error is that of the first.
    """
    done, sound, first = 0, False, None
    for capture, ledger, brief in given:
        try:
            yield capture, read_capture(capture, ledger, _shifted(progress, done, total), brief=brief)
            ledger.add("files_of_others", capture.of_others)
            sound = True
        except InputError as error:
            if isinstance(error, FormatVersionError):
                raise
            first = first or error
            ledger.add(capture.loss if capture.fault else "file_unreadable")
            if len(given) > 1:
                _LOG.warning("stepscope: %s is left out: %s", capture.root, error.message)
        done += capture.size
    if first is not None and not sound:
        raise first


def _numbered_on(
    parts: Iterable[tuple[Capture, dict[str, pl.DataFrame]]], windows: Sequence[Capture]
) -> Iterator[dict[str, pl.DataFrame]]:
    """Yield parts; of several windows of a process, which may each count from 0, with steps that count on.

    A window without steps is one step, as the time between windows was not recorded and belongs to none.
    """
    last, end = -1, 0
    for capture, part in parts:
        if len(windows) > 1 and capture in windows and part["spans"].height:
            first, stop = part["spans"].select(pl.col("ts").min(), stop=(pl.col("ts") + pl.col("dur")).max()).row(0)
            steps = part["steps"]
            if first >= end and steps.is_empty():
                values = {"number": [last + 1], "ts": [first], "dur": [stop - first], "source": ["inferred"]}
                part["steps"] = conform("steps", pl.DataFrame(values))
            elif first >= end and (lowest := int(steps["number"].min())) <= last:  # type: ignore[arg-type]
                part["steps"] = steps.with_columns(pl.col("number") + (last + 1 - lowest))
            end = max(end, stop)
            last = max([last, *part["steps"]["number"].to_list()])
        yield part


def _shifted(progress: Progress | None, done: int, total: int) -> Progress | None:
    """Return progress over all files for a reader that knows only its own."""
    return None if progress is None else lambda read, _: progress(done + read, total)

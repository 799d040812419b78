"""Captures of Ascend devices: a directory of what CANN, torch_npu and MindSpore wrote → tables of one part.

The database and the text files hold the same. Of a capture with both, the database is read, or the text files if it is
damaged. Nothing is written into the directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from stepscope.errors import DamagedTraceError, InputError
from stepscope.read.ascend import ascend_facts, ascend_pipeline, ascend_tables, stated_sums
from stepscope.read.ascend.ascend_facts import AscendFacts
from stepscope.read.ascend.ascend_files import OF_GPU, OUTPUT, SUBSTANTIAL
from stepscope.read.ascend.ascend_frames import Frames
from stepscope.read.ascend.ascend_tables import SPANS
from stepscope.read.ascend.database import event_database
from stepscope.read.ascend.text.text_files import AscendText
from stepscope.read.common import stated_totals
from stepscope.read.common.distinct import filled
from stepscope.read.common.part_builder import as_json
from stepscope.read.common.source import Capture, Progress
from stepscope.trace.losses import LossLedger
from stepscope.trace.schema import ANY_WORK, NOT_RECORDED, STATED

_DATABASES = ("events_db", "analysis_db")
_WORTH = ("spans", "steps", "counters", "allocations", "static_memory", "links")
#: Sorts of files that hold the events of a step, in any order; and those whose events show copies, too.
_OF_EVENTS = ("trace", "parts", "events_db")
_WITH_COPIES = ("trace", "parts", "events_db", "display_1", "gpu_kernels", "gpu_display")


def read(
    capture: Capture, ledger: LossLedger, progress: Progress | None = None, *, brief: bool = False
) -> dict[str, pl.DataFrame]:
    """Read the files of one rank.

    Args:
        capture: The files of one rank; any of them may be missing.
        ledger: Counts losses that belong to no single file; those of files are in the table ``losses`` of the result.
        progress: Called with bytes read and bytes in total.
        brief: Leave out what the analysis of a job does not need: samples, memory, stacks, inputs.

    Raises:
        InputError: A file cannot be read.
        DamagedTraceError: All files are empty or damaged.
    """
    said = ascend_facts.read(capture, ledger)
    frames, ledgers = _frames(capture, said, progress, brief=brief)
    if brief and not any(frames[name].height for name in (*SPANS, "steps")):
        brief = False  # what is left out may be all that there is
        frames, ledgers = _frames(capture, said, progress, brief=brief)
    if capture.of("pipeline", "queues", "queue_cpu", "batches"):
        ledgers = [*ledgers, LossLedger("data pipeline")]
        frames = ascend_pipeline.added(frames, capture, said.shift, ledgers[-1])
    ledgers = [*ledgers, *_missing(capture, frames)]
    if progress is not None:
        progress(capture.size, capture.size)
    if OF_GPU & set(capture.files) and said.device is None:
        said.device = capture.rank  # the number in the names of these files is that of the device
    built = ascend_tables.build(_on_device(frames, said), said, capture.rank, ledger, brief=brief)
    for one in ledgers:
        built.add_ledger(one)
    stated_totals.add(built, stated_sums.compared(frames))
    if unrecorded := _not_recorded(capture, frames, ledgers):
        built.add_facts(as_json({NOT_RECORDED: unrecorded}))
    states = frames["facts"]["key"].str.starts_with(STATED).any()
    if not states and not any(built.piece(name).height for name in _WORTH):
        if any(loss.severity != "info" for one in ledgers for loss in one.rows()):
            message = f"{capture.root} holds nothing that was recorded: its files are empty or damaged."
            raise DamagedTraceError(message, "Copy it again, or record again.")
        ledger.add("files_without_events")
    part = built.tables()
    if OF_GPU & set(capture.files):
        device = pl.col("device").cast(pl.String).str.replace("^npu", "cuda")
        part["tracks"] = part["tracks"].with_columns(device)
    return part


def _on_device(frames: Frames, said: AscendFacts) -> Frames:
    """Return frames whose work has a device: if its own files do not say it, the one that others of the rank name."""
    devices = [frames[name]["device"].drop_nulls() for name in ("tasks", "memory", "blocks", "counters")]
    device = next((int(one[0]) for one in devices if len(one)), None) if said.device is None else said.device
    works = ("tasks", "communications", "communication_tasks")
    return {**frames, **{name: frames[name].with_columns(filled(frames[name]["device"], device)) for name in works}}


def _not_recorded(capture: Capture, frames: Frames, ledgers: Sequence[LossLedger]) -> list[str]:
    """Return the parts of a step that no file of the capture shows: what is behind a cut would count as idle."""
    names = {path.name for path in capture.of(*_OF_EVENTS) or capture.of("kernels")}
    if any(ledger.ends_early and ledger.source.rpartition("/")[2] in names for ledger in ledgers):
        return ANY_WORK
    host, works = frames["host"], bool(frames["tasks"].height)
    if not works and (host["level"] == "cpu").any():
        return []  # the host did the work
    unknown = [] if works else ["computing"]
    unknown += [] if works or frames["communications"].height else ["communication"]
    unknown += [] if works and capture.of(*_WITH_COPIES) else ["copy"]
    return unknown + ([] if host.height else ["data wait", "sync", "host only"])


def _frames(
    capture: Capture, said: AscendFacts, progress: Progress | None, *, brief: bool
) -> tuple[Frames, list[LossLedger]]:
    found = capture.of("events_db")
    if not found and set(capture.files) & (SUBSTANTIAL - set(_DATABASES)):
        text = AscendText(capture, said, progress)
        return text.frames(), text.ledgers
    ledger = LossLedger(found[0].name if found else capture.of("analysis_db")[0].name)
    analysis = next(iter(capture.of("analysis_db")), None)
    try:
        frames = event_database.read(found[0] if found else None, analysis, ledger, brief=brief)
    except InputError:
        ledger.add("file_unreadable")
        text = AscendText(capture, said, progress)
        return text.frames(), [ledger, *text.ledgers]
    text = AscendText(capture, said)
    # MindSpore's databases hold what the device and CANN did; its operators are in raw records beside them.
    frames = text.with_framework(frames)
    return {**frames, "facts": pl.concat([said.frame(), frames["facts"]])}, [ledger, *text.ledgers]


@dataclass(frozen=True)
class _PairOfFiles:
    """Two files of which a profiler writes both or neither.

    Attributes:
        there: Sort of the file that the capture has.
        absent: Sort of the file that it may lack.
        name: Name of the second file.
        written: Whether the frames show that the profiler wrote the second file.
    """

    there: str
    absent: str
    name: str
    written: Callable[[Frames], bool] = lambda _: True


_PAIRS = (
    _PairOfFiles("kernels", "trace", "trace_view.json"),
    # A capture without device work, or of the lowest level, has no details.
    _PairOfFiles("trace", "kernels", "kernel_details.csv", lambda frames: bool(frames["tasks"].height)),
    _PairOfFiles("memory", "blocks", "operator_memory.csv"),
    _PairOfFiles("blocks", "memory", "memory_record.csv"),
    _PairOfFiles("communication", "matrix", "communication_matrix.json"),
    _PairOfFiles("matrix", "communication", "communication.json"),
    _PairOfFiles("analysis_db", "events_db", "ascend_*_profiler_*.db"),
    _PairOfFiles("events_db", "analysis_db", "analysis.db", lambda frames: bool(frames["communications"].height)),
)


def _missing(capture: Capture, frames: Frames) -> Iterator[LossLedger]:
    """Yield the loss of each file that captures of this kind have and this one lacks."""
    if not capture.root.is_dir():
        return  # one file was named
    there = {sort for sort in capture.files if any(path.parent.name == OUTPUT for path in capture.of(sort))}
    by_database = "events_db" in there
    for pair in _PAIRS:
        is_database = pair.absent.endswith("_db")
        # A capture with a database need not have all text files.
        if (
            pair.there in there
            and pair.absent not in there
            and (is_database or not by_database)
            and pair.written(frames)
        ):
            ledger = LossLedger(pair.name)
            ledger.add("file_missing")
            yield ledger

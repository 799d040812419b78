"""The losses: everything that was dropped, cut, clipped or repaired, counted by name.

A loss in this catalogue has its severity and advice here, once; readers and collectors only count. The idea of a
table of losses with severity and advice is Perfetto's ``stats`` table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from stepscope.trace.schema import SEVERITIES


@dataclass(frozen=True)
class Loss:
    """A row of the table ``losses``."""

    what: str
    count: int
    severity: str
    source: str
    advice: str


#: name → (severity, advice). Names say what happened to the data.
CATALOGUE: dict[str, tuple[str, str]] = {
    # reading traces
    "event_negative_duration": ("data_loss",
        "The source wrote a negative duration; the event is left out of every sum. Re-record if it matters."),
    "event_without_duration": ("data_loss",
        "The source wrote no duration; the event is left out. Often the recording was cut off."),
    "event_unmatched_begin": ("data_loss",
        "A begin event without its end: the recording stopped inside it. The span is left out."),
    "event_unmatched_end": ("data_loss",
        "An end event without its begin: the recording started inside it. The span is left out."),
    "event_bad_time": ("data_loss",
        "The time is not a number or lies outside 64 bits of nanoseconds; the event is left out."),
    "event_twice": ("info",
        "Events that the file holds twice, equal in name, place, time and number, as in files that were joined; each "
        "counts once."),
    "event_not_an_object": ("data_loss", "An element of the event list is not a JSON object; it is left out."),
    "event_unknown_kind": ("info",
        "Events of a phase that stepscope does not use (metadata, samples); nothing is missing from the results."),
    "kind_unknown": ("info",
        "Work of a type that stepscope does not know. It keeps its time: on a device it counts as computing."),
    "line_unknown": ("data_loss",
        "Lines of a device that stepscope does not know. They are in the timeline and count in no result, because they "
        "may repeat other work. Please report the file."),
    "total_differs": ("error",
        "A total that the source itself states differs by more than 1 % from the same total of what was read. "
        "Trust the source's; please report the file."),
    "integer_too_large": ("info", "An integer beyond 64 bits was kept as null."),
    "names_shortened": ("info",
        "Names of more than 4,096 characters: files and results show their first 1,000, the length and a checksum; "
        "the tables (`stepscope.open(RUN).tables`) hold them whole."),
    "text_not_utf8": ("info", "Bytes that are not UTF-8 were replaced; names may look odd."),
    "file_cut": ("data_loss",
        "The file ends in the middle; everything before is used. Stop the recorder before the process ends."),
    "line_end_missing": ("data_loss",
        "The last line of the file has no line end: its row is used, but nothing shows that its last value is whole "
        "and that no row followed. Copy the file again if it was cut."),
    "text_after_end": ("data_loss",
        "More events follow the end of the document, as in files that were joined; they are left out. Name the files "
        "one by one."),
    "file_corrupt": ("data_loss",
        "The compressed file is damaged; everything before the damage is used. Copy it again, or record again."),
    "file_unreadable": ("data_loss",
        "A file of the capture that is not what its name says; it is left out. Copy it again, or record again."),
    "file_duplicate": ("info",
        "A file of the same rank and the same time as another is there; it is left out. The manifest names both."),
    "summary_cut": ("info",
        "Steps, the last ones, that the summary of the rank has no room for; the analysis of the job does not have "
        "them (`kept_until` of the table of ranks). The tables and results of the rank do. Record fewer steps."),
    "files_of_others": ("info",
        "Files that belong to another user, or that everyone may write: they may say what somebody else wants."),
    "file_missing": ("info", "A file that captures of this sort have is not there; what only it says is missing."),
    "rank_left_out": ("data_loss",
        "A rank of the job is not in this run: its capture is empty or damaged. Copy it again, or record again."),
    "files_without_events": ("data_loss",
        "The files are intact and hold no event: the profiler recorded nothing there."),
    "steps_without_events": ("data_loss",
        "A file lists these steps, but no other file has an event of them: one was cut. The steps are left out."),
    "counters_unmatched": ("info", "Counters and times of device work that is not in the files; they are left out."),
    "event_damaged": ("data_loss",
        "An event that cannot be read; it is left out. The recorder or a later tool wrote it wrongly."),
    "metadata_damaged": ("info", "Facts about the recording that are not valid JSON; rank or host may be missing."),
    "value_unreadable": ("info", "A value of an event has the wrong type and was left out; the event is there."),
    "event_not_an_interval": ("info",
        "Marks of MindSpore's queues, which end before they begin; they are not intervals and are left out."),
    "event_noise": ("info",
        "Marks of XLA's thread pools and of the ends of its operators; they are not work and are left out."),
    "event_aggregate": ("info",
        "Sums over many occurrences, without a time of their own; they are not intervals and are left out."),
    "start_unknown": ("data_loss",
        "The file does not say when its recording began; its times count from 0. Often the file was cut off."),
    "operators_missing": ("data_loss",
        "MindSpore counted more operator calls than its file of times holds: the file is cut, damaged or gone."),
    "clock_unknown": ("info",
        "Samples of the data pipeline whose clock the files do not identify; they are put at the beginning."),
    "program_damaged": ("data_loss",
        "A compiled program in the file is damaged; its instructions before the damage are there. Record again."),
    "database_damaged": ("data_loss",
        "A table of a database is damaged; its rows before the damage are used. Copy the file again, or record again."),
    "table_unknown": ("info", "Tables of a database that stepscope does not know; they are left out."),
    "table_missing": ("data_loss",
        "A table of a database that other tables need is missing; names or places of their rows are not known."),
    "version_unknown": ("info", "A version of a format that stepscope does not know; it is read like the last known."),
    "flow_dangling": ("info", "An arrow whose start or end is not in the file; it is left out."),
    "correlation_dangling": ("info", "Device work whose launching call is not in the file; it has no operator."),
    "graph_capture_missing": ("info",
        "Kernels of the replay of a graph whose capture is not in the files; the operator around the replay, or the "
        "replay, owns them. Import the trace of the capture together with this one."),
    "steps_of_capture": ("info",
        "Steps in which graphs were captured that another file replays: they give the replays their operators, and are "
        "not among the steps."),
    "launched_before_recording": ("data_loss",
        "The program launched this device work before the recording began: it has no operator, and the step that it "
        "fills (`launched_before` in the table of steps) is not typical. Record a step more, and leave out the first."),
    "spans_outside_steps": ("error",
        "All work lies outside the steps: files of two recordings, or times of two clocks. What a step consists of is "
        "unknown. Import the files of one recording."),
    "epochs_apart": ("error",
        "Spans lie more than 30 days apart from the others: files of several recordings, or times of two clocks. "
        "Without steps, the results are those of the larger part. Import one recording at a time."),
    "span_crosses_parent": ("info",
        "Spans of one thread that overlap without nesting; each keeps its own time, and has no parent."),
    "step_number_large": ("data_loss",
        "Marks of steps with a number that no step can have (2^31 or more, or negative); their time is in no step."),
    "step_overlap": ("info", "Two marks of one step, or overlapping steps; the first is used."),
    "step_ends_unknown": ("info",
        "Steps end where the program asked for their work; when it was computed is unknown. Record with the host "
        "pipeline (--host-pipeline)."),
    # recording
    "block_damaged": ("data_loss", "A block of the capture failed its checksum and is left out."),
    "block_cut": ("data_loss", "The capture ends inside a block: the process was killed. Everything before is used."),
    "collector_unavailable": ("info", "A collector could not run here; the manifest says why."),
    "switch_unavailable": ("info",
        "A switch that was turned on cannot be served on this device; the source names it. The rest was recorded."),
    "recorder_unavailable": ("info",
        "The native recorder could not serve: Kineto recorded the operators, at more cost. The manifest says why."),
    "memory_ended_early": ("data_loss",
        "The program started torch's profiler, and torch reports memory to one only: later allocations are missing."),
    "build_not_verified": ("info",
        "stepscope does not change the memory of a framework's library whose build it was not verified on; "
        "`stepscope check RUN` says what is missing or less safe without that, and how to verify the build."),
    "collector_failed": ("data_loss", "A collector failed; the others went on. The manifest holds its message."),
    "span_not_closed": ("info", "A span was still open when recording stopped; it ends there."),
    "span_wrong_order": ("info", "Spans were closed in another order than opened; each keeps its own time."),
    "handler_failed": ("info", "on_trace_ready raised; training went on. The manifest holds the message."),
    "steps_not_recorded": ("data_loss",
        "Steps that were not recorded as a whole: the program ended before the window did, or started a profiler of "
        "its own, or a part of the recording is lost. The others are whole. Where the program ends early, use fewer "
        "--skip or --active."),
    "steps_recounted": ("data_loss",
        "Another optimizer stepped later, and ends the training steps. Of the recorded ones, those are kept that lie "
        "whole in the window; without one, parts of a step are. Skip more steps, or call step() of a profile."),
    "ended_abruptly": ("data_loss",
        "The process ended without closing the recording; everything up to the last block is used."),
    "run_end_unknown": ("info",
        "The times of all steps are those written until then: the program still ran, or was killed after its window. "
        "The last hundredth of its steps, or the last second of a short run, may be missing."),
    "step_times_foreign": ("data_loss",
        "The times of all steps (steps.ssj) are of another program than the recorded window, as after a copy into the "
        "wrong run: they are not used. Put the run's own file back."),
    "capture_missing": ("data_loss",
        "A file that was recorded is gone from capture/: what only it holds is missing. Put it back."),
    "capture_not_written": ("data_loss", "The capture could not be written: recording stopped, training went on."),
    "journal_overflow": ("data_loss",
        "More was recorded than could be written; the rest is left out. Put spans around larger parts."),
    "journal_unreadable": ("data_loss", "A sound block holds what stepscope does not write; it is left out."),
    "device_records_dropped": ("data_loss",
        "CUPTI had no room for records of kernels and calls; they are missing. Record fewer steps."),
    "device_buffers_lost": ("data_loss",
        "Buffers of CUPTI went to another user of it in this process. Do not use two profilers of the GPU at once."),
    "events_dropped": ("data_loss",
        "The profiler says itself that it dropped events; they are missing. Record a shorter time, or fewer sorts of "
        "events."),
    "device_records_damaged": ("data_loss",
        "Records of CUPTI that are damaged; of a damaged buffer, what follows the damage is left out."),
    "device_name_missing": ("info", "Kernels whose name could not be read; they are called `unknown kernel`."),
    "clock_set": ("info",
        "The system clock was set while recording; all times are those of the clock before it was set."),
    "clock_not_aligned": ("data_loss",
        "The system clock was set while recording, and it is unknown which times of a capture were taken before that. "
        "The steps are left out, because its work cannot be assigned to them. Record again."),
    "recording_ended_early": ("data_loss",
        "The program started its own profiler, and the framework allows one: the recording ended there. Steps that end "
        "later are left out. `stepscope check RUN` says when; record other steps, or without the program's profiler."),
    "memory_times_unknown": ("info",
        "The snapshot of memory has no times (PyTorch before 2.2): an event's number stands for its microsecond."),
    "memory_totals_unknown": ("data_loss",
        "Events of the allocator that do not lead to what its snapshot holds: totals of that device are unknown. "
        "Record the history up to the snapshot, from one start on."),
    "counter_not_a_number": ("info",
        "counter() was given no number; for a tensor pass .item() and accept that it waits for the device."),
    "span_other_thread": ("info", "A span was closed by another thread; it lies on the thread that opened it."),
    "span_opened_before": ("info", "A span was open when recording started; it is left out."),
    "disk_full": ("data_loss", "The disk was full: recording stopped, training went on."),
    "python_calls_short": ("info", "Calls of less than 2 µs in Python were left out; their time is their caller's."),
    "python_calls_overflow": ("data_loss",
        "More Python functions were called than could be written; the rest is left out. Record fewer steps."),
    "operators_dropped": ("data_loss",
        "The disk did not follow: operators are missing. Record fewer steps, or to a faster disk."),
    "operator_name_missing": ("data_loss",
        "Operators whose names stood in a part of the capture that is damaged; they are called `unknown operator`."),
    "operator_names_cut": ("info",
        "The native recorder keeps 1,024 bytes of a name; a longer one ends with its length and a checksum, and stays "
        "distinct. Kineto (--collector kineto) records names whole."),
    "operator_inputs_cut": ("info", "Operators with more inputs than could be noted; the first are there."),
    "samples_lost": ("data_loss",
        "Samples of Python stacks for which there was no room; the shares of the others are as good. More than 64 "
        "threads or 262,144 different stacks are too many."),
    "samples_stopped": ("data_loss",
        "Sampling Python stacks stopped itself: more than 5 % of them changed too much to be read. Please report it."),
    "stacks_cut": ("info", "Sampled stacks of more than 400 frames; the outermost frames are missing."),
    "workers_not_sampled": ("data_loss",
        "The system does not let this process read its workers (kernel.yama.ptrace_scope is 2 or 3, or a filter of "
        "system calls): which of their lines take time is unknown."),
    "clock_rate_unknown": ("error",
        "The capture ends before the clocks were read twice: its durations are in ticks of the processor, not in ns."),
    "operator_calls_overflow": ("data_loss",
        "More operators were called than could be written: shapes and stacks of the rest are missing; record fewer."),
    "operator_calls_unmatched": ("info",
        "Operators that ran without a recorded call of theirs; they have no shapes and no stack."),
}  # fmt: skip


def loss_text(what: str, count: int) -> str:
    """Return a count and a loss in words: ``1 step not recorded``, ``3 steps not recorded``."""
    noun, *rest = what.split("_")
    noun = noun[:-1] if count == 1 and noun.endswith("s") else noun
    return f"{count:,} {' '.join([noun, *rest])}"


def note_text(what: str, count: int) -> str:
    """Return in words what is only worth knowing, with its count: ``spans of one thread that overlap … (3)``."""
    said = re.split(r"[:;]|\.(?:\s|$)", CATALOGUE[what][1])[0] if what in CATALOGUE else what.replace("_", " ")
    return f"{said[:1].lower()}{said[1:]} ({count:,})"


def by_severity(losses: Iterable[Loss]) -> list[Loss]:
    """Return losses in order, most severe first."""
    return sorted(losses, key=lambda loss: (-SEVERITIES.index(loss.severity), loss.what))


class LossLedger:
    """Counts losses while a file is read or a recording runs.

    Args:
        source: File or collector that the losses belong to.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, what: str, count: int = 1, detail: str = "") -> None:
        """Count ``count`` more losses of the catalogue's name ``what``.

        Args:
            what: Name in the catalogue.
            count: How many more.
            detail: A sentence that says which; each has a row of its own, and precedes the advice.
        """
        if what not in CATALOGUE:
            raise KeyError(what)
        if count > 0:
            self._counts[what, detail] += count

    def add_cut(self) -> None:
        """Count that the file ends in the middle, unless what inflates it has counted a cut or damage already."""
        self.add("file_cut", int(not self.ends_early))

    @property
    def ends_early(self) -> bool:
        """Whether a file is cut or damaged, so that what lies behind was not read."""
        return any(what in ("file_cut", "file_corrupt", "database_damaged") for what, _ in self._counts)

    def rows(self) -> list[Loss]:
        """Return what was counted, most severe first."""
        return by_severity(
            Loss(what, count, CATALOGUE[what][0], self.source, f"{detail} {CATALOGUE[what][1]}".lstrip())
            for (what, detail), count in self._counts.items()
        )

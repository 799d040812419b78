"""The journal of a recording → tables.

``collect/journal/journal.py`` describes the blocks. None is trusted: a block whose checksum is right and whose content
is wrong is left out and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import polars as pl

from stepscope.read.common.part_builder import PartBuilder, TrackRow, as_json, sound
from stepscope.read.common.source import Progress, tell_all
from stepscope.read.journal.recounted_steps import Recount, recounted
from stepscope.read.journal.sampled_stacks import SampledStacks, SamplesBlock, decoded
from stepscope.trace.blocks import read_frames, unpack
from stepscope.trace.clock import Anchor, Clock
from stepscope.trace.losses import LossLedger
from stepscope.trace.run_directory import STEP_TIMES
from stepscope.trace.schema import CLOCK_SET, ENDED_EARLY, GAPS, KINDS, STEP_SOURCES, STEPS_RECOUNT
from stepscope.trace.tables import Frames, complete

# A column of spans that only the assembly knows.
_LINE = "calling_line"

# Times and offsets of this size can be added within 64 bits.
_MOST = 1 << 61
_Time = Annotated[int, msgspec.Meta(ge=-_MOST, le=_MOST)]
_Int = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_Index = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]


class _JournalSpans(msgspec.Struct):
    thread: list[_Int] = []
    start: list[_Time] = []
    dur: list[_Time] = []
    name: list[_Index] = []
    kind: list[_Index] = []
    args: list[str | None] = []
    calling_line: list[_Index] = []


class _JournalSteps(msgspec.Struct):
    number: list[_Index] = []
    start: list[_Time] = []
    dur: list[_Time] = []
    source: list[_Index] = []


class _JournalCounters(msgspec.Struct):
    time: list[_Time] = []
    lane: list[_Index] = []
    name: list[_Index] = []
    value: list[float | str] = []
    unit: list[_Index] = []


class _RunSteps(msgspec.Struct):
    number: list[_Int] = []
    gap: list[_Time] = []
    dur: list[_Count | None] = []
    cpu: list[_Count | None] = []
    delay: list[_Count | None] = []
    minor: list[_Count | None] = []
    major: list[_Count | None] = []
    read: list[_Count | None] = []
    written: list[_Count | None] = []
    voluntary: list[_Count | None] = []
    involuntary: list[_Count | None] = []
    data: list[_Count | None] = []
    ready: list[_Count | None] = []


class _RunEvents(msgspec.Struct):
    name: list[_Index] = []
    start: list[_Time] = []
    dur: list[_Time] = []


class _RunBatches(msgspec.Struct):
    start: list[_Time] = []
    dur: list[_Count] = []
    dataset: list[_Index] = []
    process: list[_Int] = []
    samples: list[_Count] = []
    sample: list[_Count] = []
    sample_cpu: list[_Count] = []
    collate: list[_Count] = []
    collate_cpu: list[_Count] = []
    elements: list[_Count] = []
    longest: list[_Count] = []
    collated: list[_Count] = []


class _RunCompilations(msgspec.Struct):
    name: list[str] = []
    start: list[_Time] = []
    dur: list[_Count] = []
    function: list[str | None] = []
    arguments: list[str | None] = []
    why: list[str | None] = []


class _JournalBlock(msgspec.Struct):
    process: _Int | None = None
    host: str = ""
    anchors: list[tuple[_Time, _Time, _Count]] = []
    threads: list[tuple[_Int, str]] = []
    names: list[str] = []
    spans: _JournalSpans = msgspec.field(default_factory=_JournalSpans)
    steps: _JournalSteps = msgspec.field(default_factory=_JournalSteps)
    counters: _JournalCounters = msgspec.field(default_factory=_JournalCounters)
    run_steps: _RunSteps = msgspec.field(default_factory=_RunSteps)
    compilations: _RunCompilations = msgspec.field(default_factory=_RunCompilations)
    batches: _RunBatches = msgspec.field(default_factory=_RunBatches)
    events: _RunEvents = msgspec.field(default_factory=_RunEvents)
    samples: SamplesBlock | None = None
    metadata: list[tuple[str, str]] = []
    losses: dict[str, _Count] = {}
    closed: bool = False


#: Columns of the table `run_steps` that only the file's own figures fill.
_STEP_FIGURES = (
    *("dur", "cpu", "delay", "minor_faults", "major_faults", "read", "written"),
    *("voluntary_switches", "involuntary_switches", "data_wait", "batches_ready"),
)
#: Columns of the table `batches`.
_BATCH_FIGURES = (
    *("process", "samples", "sample_dur", "sample_cpu", "collate_dur", "collate_cpu"),
    *("elements", "longest", "collated"),
)

#: Rows kept as Python objects, 50 bytes a value, before they become a frame.
_CHUNK = 1 << 16


class _TimedRows:
    """Rows of one table from many blocks; their times are still monotonic."""

    def __init__(self, **schema: type[pl.DataType]) -> None:
        self._schema = schema
        self._columns: list[list[object]] = [[] for _ in schema]
        self._chunks: list[pl.DataFrame] = []

    def __len__(self) -> int:
        return sum(map(len, self._chunks)) + len(self._columns[0])

    def add(self, columns: list[list[object]]) -> None:
        """Append the columns of a block."""
        for column, values in zip(self._columns, columns, strict=True):
            column += values
        if len(self._columns[0]) >= _CHUNK:
            self._pack()

    def frame(self, clock: Clock) -> pl.DataFrame:
        """Return all rows in order of time, since the epoch."""
        if not len(self):
            return pl.DataFrame(schema=self._schema)
        self._pack()
        absolute = [
            chunk.with_columns(pl.Series("ts", clock.epochs(chunk["ts"].to_list()), dtype=pl.Int64))
            for chunk in self._chunks
        ]
        return pl.concat(absolute).sort("ts", maintain_order=True)

    def recount(self, recount: Recount) -> None:
        """Let the rows, which are steps, end where ``recount`` says."""
        if len(self):
            self._pack()
            rows = recounted(pl.concat(self._chunks).rows(named=True), recount)
            self._chunks = [pl.DataFrame(rows, schema=self._schema)]

    def _pack(self) -> None:
        columns = dict(zip(self._schema, self._columns, strict=True))
        self._chunks.append(pl.DataFrame(columns, schema=self._schema))
        self._columns = [[] for _ in self._schema]


@dataclass
class _JournalContent:
    """What the blocks of a file hold together."""

    process: int | None = None
    host: str = ""
    anchors: list[Anchor] = field(default_factory=list)
    threads: dict[int, str] = field(default_factory=dict)
    spans: _TimedRows = field(
        default_factory=lambda: _TimedRows(
            ts=pl.Int64,
            dur=pl.Int64,
            thread=pl.Int64,
            name=pl.String,
            kind=pl.String,
            args=pl.String,
            calling_line=pl.Int64,
        )
    )
    steps: _TimedRows = field(
        default_factory=lambda: _TimedRows(ts=pl.Int64, dur=pl.Int64, number=pl.Int64, source=pl.String)
    )
    counters: _TimedRows = field(
        default_factory=lambda: _TimedRows(
            ts=pl.Int64, lane=pl.String, name=pl.String, value=pl.Float64, unit=pl.String
        )
    )
    run_steps: _TimedRows = field(
        default_factory=lambda: _TimedRows(ts=pl.Int64, number=pl.Int32, **dict.fromkeys(_STEP_FIGURES, pl.Int64))
    )
    events: _TimedRows = field(default_factory=lambda: _TimedRows(ts=pl.Int64, dur=pl.Int64, name=pl.String))
    compilations: _TimedRows = field(
        default_factory=lambda: _TimedRows(
            ts=pl.Int64, dur=pl.Int64, **dict.fromkeys(("name", "function", "arguments", "why"), pl.String)
        )
    )
    batches: _TimedRows = field(
        default_factory=lambda: _TimedRows(
            ts=pl.Int64, dur=pl.Int64, dataset=pl.String, **dict.fromkeys(_BATCH_FIGURES, pl.Int64)
        )
    )
    samples: SampledStacks = field(default_factory=SampledStacks)
    metadata: dict[str, str] = field(default_factory=dict)
    losses: dict[str, int] = field(default_factory=dict)
    closed: bool = False

    @property
    def rows(self) -> tuple[_TimedRows, ...]:
        """The rows of all tables."""
        return self.spans, self.steps, self.counters, self.run_steps, self.events, self.batches, self.compilations


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Frames:
    """Read a journal, which may still be written to, into tables: spans without parent, depth and step; rank 0.

    What the recording itself counted is in the table ``losses``; what is lost while reading is in the ledger.

    Raises:
        InputError: The file cannot be read, is not a journal, or a newer stepscope wrote it.
    """
    content = _JournalContent()
    decoder = msgspec.json.Decoder(_JournalBlock)
    for payload in read_frames(path, ledger):
        if not _add(payload, decoder, content):
            ledger.add("journal_unreadable")
    tell_all(path, progress)
    # The times of all steps are in a file of their own, which grows after the window: its end loses nothing of it.
    if not content.closed:
        ledger.add("run_end_unknown" if path.name == STEP_TIMES else "ended_abruptly")
    recount = _recount(content.metadata.pop(STEPS_RECOUNT, ""), ledger)
    if recount is not None:
        before = len(content.run_steps)
        content.steps.recount(recount)
        content.run_steps.recount(recount)
        ledger.add("steps_recounted", 0 if recount.ends else before - len(content.run_steps))
    part = PartBuilder(host=content.host)
    if content.anchors:
        clock = Clock(content.anchors)
        if clock.shifts:
            ledger.add("clock_set", len(clock.shifts))
            ends = [clock.epoch(edge([anchor.monotonic for anchor in content.anchors])) for edge in (min, max)]
            part.add_facts(as_json({CLOCK_SET: {"shifts": clock.shifts, "begin": ends[0], "end": ends[1]}}))
        if recount is not None and path.name == STEP_TIMES:
            part.add_facts({STEPS_RECOUNT: str(clock.epoch(recount.until))})
        if (ended := content.metadata.pop(ENDED_EARLY, "")).isdecimal():
            part.add_facts(as_json({GAPS: [(clock.epoch(int(ended)), None)]}))
        _add_tables(part, content, clock, ledger)
    else:  # without an anchor no time is known
        ledger.add("journal_unreadable", sum(map(len, content.rows)) + len(content.samples))
    part.add_facts({key: _json(value) for key, value in content.metadata.items()})
    part.add_losses(content.losses, "journal")
    # Without arrows, by which the assembly knows the steps of the journal from those of a trace.
    tables = part.tables()
    own = tables["spans"][[name for name in tables["spans"].columns if name != _LINE]]
    further = [column for column in tables["spans"] if column.name == _LINE and column.null_count() < len(column)]
    frames = complete({**tables, "spans": own})
    return {**frames, "spans": frames["spans"].hstack(further)}


def of_one_process(journal: Path, times: Path) -> bool:
    """Return whether the times of all steps are of the process that wrote a journal, as far as both say.

    A number of a process comes again, in a container with the next start. So their times must meet, too, by the
    monotonic clock, which nobody sets.
    """
    said: list[tuple[str, int | None, set[int], bool]] = []
    for path in (journal, times):
        content = _JournalContent()
        payloads = list(read_frames(path, LossLedger(path.name)))
        for payload in [*payloads[:1], *payloads[1:][-1:]]:
            _add(payload, msgspec.json.Decoder(_JournalBlock), content)
        moments = {anchor.monotonic for anchor in content.anchors}
        if content.process is None or len(moments) < 2:  # a journal without records has the time of its end alone
            return True
        said.append((content.host, content.process, moments, content.closed))
    (host, process, window, _), (other_host, other, all_steps, closed) = said
    meet = min(all_steps) <= max(window) and (not closed or min(window) <= max(all_steps))
    return (host, process) == (other_host, other) and meet


def _add(payload: bytes, decoder: msgspec.json.Decoder[_JournalBlock], content: _JournalContent) -> bool:
    """Add what a block holds; return False, and add nothing, if the journal does not write such blocks."""
    try:
        block = decoder.decode(unpack(payload))
        columns = (
            *(_spans(block), _steps(block), _counters(block)),
            *(_run_steps(block), _events(block), _batches(block), _compilations(block)),
        )
        samples = decoded(block.samples) if block.samples is not None else None
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return False
    for rows, added in zip(content.rows, columns, strict=True):
        rows.add(added)
    if samples is not None:
        content.samples.add(samples)
    content.anchors += [Anchor(*anchor) for anchor in block.anchors]
    content.process = content.process if content.process is not None else block.process
    content.host = content.host or block.host
    content.threads.update(block.threads)
    content.metadata.update(block.metadata)
    content.closed = content.closed or block.closed
    for what, count in block.losses.items():
        content.losses[what] = min(content.losses.get(what, 0) + count, _MOST)
    return True


def _spans(block: _JournalBlock) -> list[list[object]]:
    spans, names, kinds = block.spans, _texts(block.names, block.spans.name), _texts(block.names, block.spans.kind)
    lines = [line or None for line in spans.calling_line] or [None] * len(spans.start)
    return _even(spans.start, spans.dur, spans.thread, names, kinds, spans.args, lines)


def _steps(block: _JournalBlock) -> list[list[object]]:
    steps = block.steps
    return _even(steps.start, steps.dur, steps.number, _texts(block.names, steps.source))


def _counters(block: _JournalBlock) -> list[list[object]]:
    counters = block.counters
    lanes, names, units = (_texts(block.names, one) for one in (counters.lane, counters.name, counters.unit))
    return _even(counters.time, lanes, names, [float(value) for value in counters.value], units)


def _run_steps(block: _JournalBlock) -> list[list[object]]:
    """Return the columns of steps; ValueError for times or numbers beyond their bounds."""
    steps = block.run_steps
    times, switches = (steps.dur, steps.cpu, steps.delay), (steps.voluntary, steps.involuntary)
    empty: list[int | None] = [None] * len(steps.number)  # of a file from before these columns
    further = (steps.read or empty, steps.written or empty)
    figures = (*times, steps.minor, steps.major, *further, *switches, steps.data, steps.ready or empty)
    _even(steps.number, steps.gap, *figures)
    number, end, numbers, starts = 0, 0, [], []
    for more, gap, dur in zip(steps.number, steps.gap, steps.dur, strict=True):
        number, start = number + more, end + gap
        end = start + (dur or 0)
        if not 0 <= number < 1 << 31 or not -_MOST <= start <= end <= _MOST:
            message = "A step has an impossible number or time."
            raise ValueError(message)
        numbers.append(number)
        starts.append(start)
    return _even(starts, numbers, *figures)


def _events(block: _JournalBlock) -> list[list[object]]:
    events = block.events
    return _even(events.start, events.dur, _texts(block.names, events.name))


def _batches(block: _JournalBlock) -> list[list[object]]:
    rows = block.batches
    figures = (rows.process, rows.samples, rows.sample, rows.sample_cpu, rows.collate, rows.collate_cpu)
    sizes = (
        [size or None for size in sizes or [0] * len(rows.start)]
        for sizes in (rows.elements, rows.longest, rows.collated)
    )
    return _even(rows.start, rows.dur, _texts(block.names, rows.dataset), *figures, *sizes)


def _compilations(block: _JournalBlock) -> list[list[object]]:
    rows = block.compilations
    return _even(rows.start, rows.dur, rows.name, rows.function, rows.arguments, rows.why)


def _even(*columns: list[Any]) -> list[list[object]]:
    """Return the columns; ValueError unless all have one length."""
    if len({len(column) for column in columns}) > 1:
        message = "Columns of unequal length."
        raise ValueError(message)
    return list(columns)


def _texts(texts: Sequence[str], numbers: Sequence[int]) -> list[str]:
    """Return the texts of numbers; ValueError for a number without a text."""
    try:
        return [texts[number] for number in numbers]
    except IndexError:
        message = "A number has no name."
        raise ValueError(message) from None


def _add_tables(part: PartBuilder, content: _JournalContent, clock: Clock, ledger: LossLedger) -> None:
    spans = _sound(content.spans.frame(clock), "kind", tuple(KINDS), ledger)
    counters = content.counters.frame(clock)
    process, names = content.process, content.threads

    def thread(number: int) -> TrackRow:
        return TrackRow("thread", "cpu", names.get(number, f"thread {number}"), process, number)

    def lane(name: str) -> TrackRow:
        return TrackRow("counter", "cpu", name, process)

    track = part.tracks.numbered(thread, spans["thread"])
    numbered = spans.with_row_index("id").with_columns(track, depth=pl.lit(0))
    part.add_spans(numbered.drop("thread", "args"))
    track = part.tracks.numbered(lane, counters["lane"].cast(pl.Categorical()))
    part.add("counters", counters.drop("lane").hstack([track]))
    part.add("steps", _sound(content.steps.frame(clock).drop_nulls("dur"), "source", STEP_SOURCES, ledger))
    part.add("run_steps", content.run_steps.frame(clock).with_columns(recorded=pl.lit(value=False)))
    events = content.events.frame(clock)
    part.add("run_events", events.filter(events["dur"] >= 0))
    part.add("batches", content.batches.frame(clock))
    part.add("compilations", content.compilations.frame(clock))
    content.samples.add_tables(part, content.process, clock, ledger)
    part.add_rows("arguments", _arguments(spans["args"], ledger), "span", "key", "value")


def _sound(frame: pl.DataFrame, column: str, known: tuple[str, ...], ledger: LossLedger) -> pl.DataFrame:
    """Leave out rows with a negative duration, or with a value that the schema does not know."""
    kept = sound(ledger, event_negative_duration=frame["dur"] >= 0, journal_unreadable=frame[column].is_in(known))
    return frame if kept.all() else frame.filter(pl.Series(kept))


def _arguments(texts: pl.Series, ledger: LossLedger) -> list[tuple[int, str, str]]:
    """Return span, key and value of all arguments, from the JSON text of each span."""
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    rows: list[tuple[int, str, str]] = []
    given = texts.is_not_null().arg_true()
    for span, text in zip(given.to_list(), texts.gather(given).to_list(), strict=True):
        values = _values(decoder, text)
        rows += [(span, key, value) for key, value in values.items()]
        ledger.add("value_unreadable", int(not values))
    return rows


def _values(decoder: msgspec.json.Decoder[dict[str, msgspec.Raw]], text: str) -> dict[str, str]:
    """Return each argument's value as JSON; nothing if the text is not a JSON object."""
    try:
        return {key: bytes(value).decode() for key, value in decoder.decode(text).items()}
    except (ValueError, RecursionError):
        return {}


def _recount(text: str, ledger: LossLedger) -> Recount | None:
    try:
        return msgspec.json.decode(text, type=Recount) if text else None
    except (ValueError, RecursionError):
        ledger.add("journal_unreadable")
        return None


def _json(value: str) -> str:
    """Return ``value`` if it is JSON, else ``value`` as a JSON text."""
    try:
        msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return msgspec.json.encode(value).decode()
    return value

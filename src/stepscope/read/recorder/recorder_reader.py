"""A file of the native recorder → tables: operators, ranges, Python calls and memory of all threads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.common.dense import first_places, nullable
from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import (
    KIND_CODE,
    Mask,
    PartBuilder,
    TrackRow,
    as_json,
    coded,
    kinds_of,
    sound,
)
from stepscope.read.common.source import Progress, tell_all
from stepscope.read.common.torch_events import NAME_CLASSES, add_steps, device_name, kind_of, name_class
from stepscope.read.recorder import recorder_collectives, recorder_flops
from stepscope.read.recorder.operator_inputs import InputTexts, texts_of
from stepscope.read.recorder.recorder_blocks import MOST, RecordedThread, RecorderContent, RecorderFacts, open_file
from stepscope.read.recorder.recorder_clock import RecorderTicks
from stepscope.read.recorder.recorder_words import MemoryReports, Operators, State, decode
from stepscope.trace.losses import LossLedger
from stepscope.trace.recorder_layout import BACKWARD_SCOPE, PYTHON_SCOPE, USER_SCOPE
from stepscope.trace.schema import GAPS, SAMPLE, SAMPLED, TARGETS

_SCOPES = 16
#: What Kineto calls operators of each scope.
_CATEGORIES = {USER_SCOPE: "user_annotation", PYTHON_SCOPE: "python_function"}
_UNKNOWN = "unknown operator"
#: End of a name that the recorder cut.
_CUT = re.compile(r"… \[\d+ bytes, [0-9a-f]{16}\]$")
_EVALUATION = "autograd::engine::evaluate_function: "


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read a file of the native recorder, which may still be written to, into the tables of one part.

    Raises:
        InputError: The file cannot be read, has another format, or a newer stepscope wrote it.
    """
    content = open_file(path, ledger)
    operators, memory = decode(content, ledger)
    facts = content.facts
    clock = RecorderTicks(content.moments, ticks_are_ns=facts.clock == "monotonic")
    ledger.add("clock_set", clock.jumps)
    ledger.add("clock_rate_unknown", int(not clock.rate_known and len(operators.begin) > 0))
    part = PartBuilder(host=facts.host)
    for number, thread in content.threads.items():
        name = f"thread {thread.native}" + (f" ({thread.name})" if thread.name else "")
        part.tracks.number(TrackRow("thread", "cpu", name, facts.process, thread.native), number)
    numbers = list(content.threads)
    spans = _OperatorSpans(operators, clock, numbers, ledger)
    spans.add_collectives(part, facts)
    spans.add_to(part, content.threads, with_flops=facts.options.get("with_flops") is True)
    _add_rates(part, content, clock)
    _add_allocations(part, memory, _tracks_of(memory.thread, numbers), clock)
    if facts.clock:
        clocks = {"clock": facts.clock, "error_ns": clock.error_ns}
        sample = {SAMPLE: facts.sample} if facts.sample < 1 else {}
        distributed = {"distributedInfo": facts.distributed} if facts.distributed else {}
        targets = {TARGETS: facts.targets} if facts.targets else {}
        part.add_facts(as_json({"torch": facts.torch, "recorder_clock": clocks, **sample, **distributed, **targets}))
    gaps = operators.gaps if content.end == MOST else [*operators.gaps, (content.end, MOST)]
    if gaps:
        ends = clock.epochs(clock.monotonic(np.array(gaps, np.uint64).ravel())).reshape(-1, 2).tolist()
        missing = [(begin, None if end == MOST else at) for (_, end), (begin, at) in zip(gaps, ends, strict=True)]
        part.add_facts(as_json({GAPS: missing}))
    # The file itself counts operators that were dropped, too; of a killed process only it does.
    dropped = max(facts.losses.get("operators_dropped", 0), content.dropped)
    part.add_losses({**facts.losses, "operators_dropped": dropped}, "torch_native")
    tell_all(path, progress)
    return part.tables()


class _OperatorSpans:
    """The operators that are spans: rows of them, with times, kinds and tracks."""

    def __init__(self, found: Operators, clock: RecorderTicks, numbers: list[int], ledger: LossLedger) -> None:
        self._found = found
        self._ledger = ledger
        begin, end = clock.monotonic(found.begin), clock.monotonic(found.end)
        kept = self._ended(begin, end, clock)
        self._rows = None if kept.all() else np.flatnonzero(kept)
        begin = self._of(begin)
        self.ts = clock.epochs(begin)
        self.dur = self._of(end) - begin
        self._name, self._scope, self._sequence = self._of(found.name), self._of(found.scope), self._of(found.sequence)
        self._forward, self._inputs = self._of(found.forward), self._of(found.inputs)
        self._line = self._of(found.line)
        self._launch = self._of(found.launch).view(np.int64)
        self._thread = _tracks_of(self._of(found.thread), numbers)
        self._names = self._texts(found.names)
        self._kind = self._kinds()
        self._complete_evaluations()

    def _of(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return column if self._rows is None else column[self._rows]

    def _ended(self, begin: Integers, end: Integers, clock: RecorderTicks) -> Mask:
        """Return which operators have times; those that are open when the recording stops end there."""
        state = self._found.state
        lost, is_open = state == State.LOST, state == State.OPEN
        timed = ~clock.damaged(begin) & ~(clock.damaged(end) & (state == State.ENDED))
        known = timed & ~lost
        if is_open.any():
            last = [clock.last, *(times.max() for times in (begin[known], end[known & ~is_open]) if len(times))]
            end[is_open] = max(last)
        self._ledger.add("span_not_closed", int((known & is_open).sum()))
        return sound(
            self._ledger, event_unmatched_begin=~lost, event_bad_time=timed, event_negative_duration=end >= begin
        )

    def _texts(self, contents: list[bytes]) -> list[str]:
        """Return names; the first is that of operators whose definition is lost."""
        texts = [content.decode("utf-8", "replace") for content in contents]
        undecoded = sum(
            "�" in text and "�".encode() not in content for text, content in zip(texts, contents, strict=True)
        )
        self._ledger.add("text_not_utf8", undecoded)
        self._ledger.add("operator_names_cut", sum(_CUT.search(text) is not None for text in texts))
        self._ledger.add("operator_name_missing", int((self._name == 0).sum()))
        return [_UNKNOWN, *texts[1:]]

    def _kinds(self) -> npt.NDArray[np.uint8]:
        """Return the number of the kind of each span, by its scope and name."""
        classes = np.array([name_class(name) for name in self._names], np.uint8)
        categories = [_CATEGORIES.get(scope, "cpu_op") for scope in range(_SCOPES)]
        table = np.array([[kind_of(name, of) for of in range(NAME_CLASSES)] for name in categories], np.uint8)
        kinds: npt.NDArray[np.uint8] = table.ravel()[self._scope * np.uint8(NAME_CLASSES) + classes[self._name]]
        return kinds

    def _complete_evaluations(self) -> None:
        """Give the engine's evaluation of a node the numbers of the function that it calls, as Kineto does."""
        evaluation = np.array([name.startswith(_EVALUATION) for name in self._names])
        rows = np.flatnonzero(evaluation[self._name[:-1]])
        called = rows + 1
        own = (self._scope[called] == BACKWARD_SCOPE) & (self._thread[called] == self._thread[rows])
        own &= self.ts[called] < self.ts[rows] + self.dur[rows]
        rows, called = rows[own], called[own]
        self._said = self._sequence, self._forward
        # Nodes without a number have a forward thread, too; Kineto leaves it out.
        self._sequence, self._forward = self._sequence.copy(), np.where(self._sequence < 0, 0, self._forward)
        self._sequence[rows], self._forward[rows] = self._sequence[called], self._forward[called]

    def add_collectives(self, part: PartBuilder, facts: RecorderFacts) -> None:
        """Add the table ``collectives``, and let the span of each last from its call to the end of the work."""
        called = np.array([name.startswith(recorder_collectives.CALL) for name in self._names])[self._name]
        ranges = self._scope == USER_SCOPE
        found = recorder_collectives.launches(self._launch, called, ranges, self.ts + self.dur)
        if not len(found.call):
            return
        contents, groups = self._found.input_texts, recorder_collectives.ProcessGroups(facts.distributed)
        calls, works = ([self._names[name] for name in self._name[rows].tolist()] for rows in (found.call, found.work))
        inputs = [contents[number] for number in self._inputs[found.call].tolist()]
        frame = recorder_collectives.described(calls, works, inputs, groups)
        self._kind[found.parts] = KIND_CODE["annotation"]
        self._kind[found.work] = KIND_CODE["collective"]
        owners = [
            f"{transport or 'communication'} {groups.label(group or '')}".strip()
            for transport, group in frame.select("transport", "group").iter_rows()
        ]
        self._unite(part, found, owners, facts.process)
        place = pl.Series(found.place, dtype=pl.Int64)
        frame = frame.with_columns(span=pl.Series(found.work), sequence=pl.when(place >= 0).then(place))
        part.add("collectives", frame.sort("span"))

    def _unite(
        self, part: PartBuilder, found: recorder_collectives.Launches, owners: list[str], process: int | None
    ) -> None:
        """Let ranges of a backend begin with their calls.

        They overlap each other and what the program does meanwhile, so they move to tracks of their own.
        """
        later = (found.work != found.call) & (self.ts[found.work] >= self.ts[found.call])
        ranges = np.flatnonzero(later & (self._scope[found.work] == USER_SCOPE))
        work, call = found.work[ranges], found.call[ranges]
        end = self.ts[work] + self.dur[work]
        self.ts[work] = self.ts[call]
        self.dur[work] = end - self.ts[work]
        lanes = recorder_collectives.lanes([owners[row] for row in ranges.tolist()], self.ts[work], end)
        self._thread = self._thread.copy()
        self._thread[work] = [part.tracks.number(TrackRow("thread", "cpu", lane, process)) for lane in lanes]

    def add_to(self, part: PartBuilder, threads: Mapping[int, RecordedThread], *, with_flops: bool) -> None:
        """Add spans, operators, arrows and steps; operations are counted where they were asked for."""
        part.add_spans(
            {
                "track": self._thread,
                "ts": self.ts,
                "dur": self.dur,
                "name": coded(self._names, self._name),
                "kind": kinds_of(self._kind),
                "sequence": nullable(self._sequence, -1),
                "forward_thread": nullable(self._forward, 0),
                "calling_line": nullable(np.maximum(self._line, 0), 0),
            }
        )
        part.add("operators", self._details(with_flops=with_flops))
        part.add("arrows", self._arrows(threads))
        rows = np.flatnonzero(self._kind == KIND_CODE["step"])
        add_steps(part, [self._names[name] for name in self._name[rows].tolist()], self.ts[rows], self.dur[rows])

    def _details(self, *, with_flops: bool) -> dict[str, Any]:
        """Return columns of the table ``operators``."""
        chosen = np.zeros(len(KIND_CODE), np.bool_)
        chosen[[KIND_CODE["operator"], KIND_CODE["collective"]]] = True
        rows = np.flatnonzero(chosen[self._kind])
        inputs, scope, forward = (
            column if len(rows) == len(self.ts) else column[rows]
            for column in (self._inputs, self._scope, self._forward)
        )
        details = {"span": rows, "scope": scope.astype(np.int64), "forward_thread": nullable(forward, 0)}
        if len(self._found.input_texts) > 1:
            details |= {name: coded(texts, inputs) for name, texts in self._input_texts().items()}
        if with_flops:
            details["flops"] = self._flops(rows)
        return details

    def _flops(self, rows: Integers) -> pl.Series:
        """Return the floating-point operations; each name with each definition of inputs is counted once."""
        counted = np.array([name in recorder_flops.COUNTED for name in self._names])
        chosen = np.flatnonzero(counted[self._name[rows]] & (self._inputs[rows] > 0))
        definitions = len(self._found.input_texts)
        keys = self._name[rows[chosen]].astype(np.int64) * definitions + self._inputs[rows[chosen]]
        distinct, place = np.unique(keys, return_inverse=True)
        pairs = [divmod(key, definitions) for key in distinct.tolist()]
        known = [
            recorder_flops.count(self._names[name], texts_of(self._found.input_texts[inputs])[0])
            for name, inputs in pairs
        ]
        values = pl.Series(known, dtype=pl.Int64).gather(place)
        return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(rows)).scatter(chosen, values)

    def _input_texts(self) -> dict[str, list[str | None]]:
        """Return the texts of every definition of inputs; none for the first."""
        parsed = [texts_of(content) for content in self._found.input_texts[1:]]
        short = np.array([False, *(not whole for _, whole in parsed)])
        self._ledger.add("operator_inputs_cut", int(short[self._inputs].sum()) if short.any() else 0)
        return {name: [None, *(getattr(texts, name) for texts, _ in parsed)] for name in InputTexts._fields}

    def _arrows(self, threads: Mapping[int, RecordedThread]) -> pl.DataFrame:
        """Return an arrow from each forward operator to its backward operator, as Kineto draws them.

        Autograd counts on each thread by itself. Of several operators with one number the last forward operator made
        the node, and the first backward operator evaluates it.
        """
        of_torch = np.array([thread.torch & (1 << 63) - 1 for thread in threads.values()], np.int64)
        sequence, forward_of = self._said
        numbered = sequence >= 0
        backward = np.flatnonzero(numbered & (forward_of > 0))
        begins, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for torch in np.unique(forward_of[backward]).tolist():
            here = np.isin(self._thread, np.flatnonzero(of_torch == torch))
            forward = np.flatnonzero(numbered & here & (forward_of == 0))
            begin, end = self._pairs(forward, backward[forward_of[backward] == torch])
            begins.append(begin)
            ends.append(end)
        begin, end = np.concatenate(begins), np.concatenate(ends)
        return pl.DataFrame(
            {
                "from_track": self._thread[begin],
                "from_ts": self.ts[begin],
                "to_track": self._thread[end],
                "to_ts": self.ts[end],
            }
        ).select(pl.lit("forward_backward").alias("kind"), pl.all())

    def _pairs(self, forward: Integers, backward: Integers) -> tuple[Integers, Integers]:
        """Return forward and backward operators of one thread's numbers that belong together."""
        if (np.diff(self.ts[backward]) < 0).any():
            backward = backward[np.argsort(self.ts[backward], kind="stable")]
        sequence, _ = self._said
        number = sequence[backward]
        first = first_places(number, number) == np.arange(len(number))
        backward, number = backward[first], number[first]
        last = forward[::-1]
        place = first_places(sequence[last], number)
        backward, forward = backward[place >= 0], last[place[place >= 0]]
        ordered = self.ts[forward] <= self.ts[backward]
        return forward[ordered], backward[ordered]


def _tracks_of(threads: npt.NDArray[np.int32], numbers: list[int]) -> npt.NDArray[np.int32]:
    """Return the track of each thread; tracks are numbered in the order of the threads' numbers in the file."""
    if numbers == list(range(len(numbers))):
        return threads
    order = np.argsort(numbers).astype(np.int32)
    return order[np.searchsorted(np.array(numbers)[order], threads)]


def _add_rates(part: PartBuilder, content: RecorderContent, clock: RecorderTicks) -> None:
    """Add which fraction of the operators was recorded when; files of a sample say it."""
    if not content.rates:
        return
    track = part.tracks.number(TrackRow("counter", "cpu", SAMPLED, content.facts.process))
    monotonic = clock.monotonic(np.array([ticks for ticks, _ in content.rates], np.uint64))
    kept = ~clock.damaged(monotonic)
    values = np.array([rate for _, rate in content.rates])[kept]
    rates = pl.DataFrame({"ts": clock.epochs(monotonic[kept]), "value": values})
    part.add("counters", rates.with_columns(track=track, name=pl.lit(SAMPLED), unit=pl.lit("")))


def _add_allocations(
    part: PartBuilder, memory: MemoryReports, track: npt.NDArray[np.int32], clock: RecorderTicks
) -> None:
    """Add memory taken and freed, each with the track of its thread."""
    monotonic = clock.monotonic(memory.ticks)
    kept = ~clock.damaged(monotonic)
    address, size, allocated, reserved, device = (memory.values[kept, column] for column in range(5))
    found, inverse = np.unique(device, return_inverse=True)
    part.add(
        "allocations",
        {
            "ts": clock.epochs(monotonic[kept]),
            "device": coded([device_name(number >> 8, (number & 255) - 1) for number in found.tolist()], inverse),
            "address": address,
            "bytes": size,
            "allocated": allocated,
            "reserved": reserved,
            "track": track[kept],
        },
    )

"""Operators and memory of a recorder's file → tables of the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.common import torch_events as kineto_kinds
from stepscope.read.common.dense import first_places
from stepscope.read.recorder import recorder_flops
from stepscope.read.recorder.operator_inputs import Texts, texts_of
from stepscope.read.recorder.recorder_blocks import Content, Integers, Thread
from stepscope.read.recorder.recorder_clock import Ticks
from stepscope.read.recorder.recorder_words import Memory, Operators, State
from stepscope.trace.losses import CATALOGUE, LossLedger
from stepscope.trace.recorder_layout import BACKWARD_SCOPE, PYTHON_SCOPE, USER_SCOPE
from stepscope.trace.schema import KINDS, SAMPLE, SAMPLED
from stepscope.trace.tables import conform, dtype, empty

_SCOPES = 16
#: What Kineto calls operators of each scope.
_CATEGORIES = {USER_SCOPE: "user_annotation", PYTHON_SCOPE: "python_function"}
_UNKNOWN = "unknown operator"
_EVALUATION = "autograd::engine::evaluate_function: "
#: ``c10::DeviceType`` by number.
_DEVICE_TYPES: Mapping[int, str] = {
    0: "cpu", 1: "cuda", 6: "hip", 9: "xla", 12: "xpu", 13: "mps", 14: "meta", 15: "hpu", 18: "ipu", 19: "mtia",
    20: "privateuseone",
}  # fmt: skip


def build(content: Content, operators: Operators, memory: Memory, ledger: LossLedger) -> dict[str, pl.DataFrame]:
    """Make the tables of one file; ``arrows`` and columns that only the assembly knows are as the Kineto reader's."""
    clock = Ticks(content.moments, ticks_are_ns=content.facts.clock == "monotonic")
    ledger.add("clock_set", clock.jumps)
    ledger.add("clock_rate_unknown", int(not clock.rate_known and len(operators.begin) > 0))
    numbers = list(content.threads)
    spans = _Spans(operators, clock, memory, numbers, ledger)
    return {
        "spans": spans.frame(),
        "operators": spans.details(with_flops=content.facts.options.get("with_flops") is True),
        "arrows": spans.arrows(content.threads),
        "steps": spans.steps(),
        "tracks": _tracks(content),
        "counters": _rates(content, clock),
        "allocations": _allocations(memory, spans.memory_times, clock, numbers),
        "metadata": _metadata(content, clock),
        "losses": _losses(content),
    }


class _Spans:
    """The operators that are spans: rows of them, with times, kinds and tracks."""

    def __init__(self, found: Operators, clock: Ticks, memory: Memory, numbers: list[int], ledger: LossLedger) -> None:
        self._found = found
        self._ledger = ledger
        self.memory_times = clock.monotonic(memory.ticks)
        begin, end = clock.monotonic(found.begin), clock.monotonic(found.end)
        kept = self._ended(begin, end, clock)
        self._rows = None if kept.all() else np.flatnonzero(kept)
        begin = self._of(begin)
        self.ts = clock.epochs(begin)
        self.dur = self._of(end) - begin
        self._name, self._scope, self._sequence = self._of(found.name), self._of(found.scope), self._of(found.sequence)
        self._forward, self._inputs = self._of(found.forward), self._of(found.inputs)
        self._thread = _places(self._of(found.thread), numbers)
        self._names = self._texts(found.names)
        self._kind = self._kinds()
        self._complete_evaluations()

    def _of(self, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return column if self._rows is None else column[self._rows]

    def _ended(self, begin: Integers, end: Integers, clock: Ticks) -> npt.NDArray[np.bool_]:
        """Return which operators have times; those that are open when the recording stops end there."""
        state = self._found.state
        lost, open_ = state == State.LOST, state == State.OPEN
        self._ledger.add("event_unmatched_begin", int(lost.sum()))
        bad = clock.damaged(begin)
        bad |= clock.damaged(end) & (state == State.ENDED)
        bad &= ~lost
        known = ~bad & ~lost
        if open_.any():
            last = [clock.last, *(times.max() for times in (begin[known], end[known & ~open_]) if len(times))]
            end[open_] = max(last)
        negative = known & (end < begin)
        self._ledger.add("event_bad_time", int(bad.sum()))
        self._ledger.add("event_negative_duration", int(negative.sum()))
        self._ledger.add("span_not_closed", int((known & open_).sum()))
        kept: npt.NDArray[np.bool_] = known & ~negative
        return kept

    def _texts(self, contents: list[bytes]) -> list[str]:
        """Return names; the first is that of operators whose definition is lost."""
        texts = [content.decode("utf-8", "replace") for content in contents]
        undecoded = sum(
            "�" in text and "�".encode() not in content for text, content in zip(texts, contents, strict=True)
        )
        self._ledger.add("text_not_utf8", undecoded)
        self._ledger.add("operator_name_missing", int((self._name == 0).sum()))
        return [_UNKNOWN, *texts[1:]]

    def _kinds(self) -> npt.NDArray[np.uint8]:
        """Return the number of the kind of each span, from its scope and name, as the Kineto reader decides."""
        classes = np.array(kineto_kinds.name_classes(self._names), np.uint8)
        count = kineto_kinds.NAME_WAIT + 1
        categories = [_CATEGORIES.get(scope, "cpu_op") for scope in range(_SCOPES)]
        table = np.array([[kineto_kinds.kind_of(name, of) for of in range(count)] for name in categories], np.uint8)
        kinds: npt.NDArray[np.uint8] = table.ravel()[self._scope * np.uint8(count) + classes[self._name]]
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
        # Nodes without a number have a forward thread, too; Kineto does not tell it.
        self._sequence, self._forward = self._sequence.copy(), np.where(self._sequence < 0, 0, self._forward)
        self._sequence[rows], self._forward[rows] = self._sequence[called], self._forward[called]

    def frame(self) -> pl.DataFrame:
        """Return the table ``spans``, without parents, steps and phases; and what links are found by."""
        count = len(self.ts)
        return pl.DataFrame(
            {
                "id": np.arange(count),
                "track": self._thread,
                "ts": self.ts,
                "dur": self.dur,
                "name": pl.Series(self._names, dtype=pl.Categorical()).gather(self._name),
                "kind": pl.Series(list(KINDS), dtype=dtype("enum:kind")).gather(self._kind),
                "depth": np.zeros(count, np.int32),
                "sequence": _nullable(self._sequence, -1),
                "forward_thread": _nullable(self._forward, 0),
            }
        )

    def details(self, *, with_flops: bool) -> pl.DataFrame:
        """Return the table ``operators``, with floating-point operations where they were asked for."""
        kinds = [kineto_kinds.KIND_CODE[name] for name in ("operator", "collective")]
        chosen = np.zeros(len(KINDS), np.bool_)
        chosen[kinds] = True
        chosen = chosen[self._kind]
        rows = np.flatnonzero(chosen)
        whole = len(rows) == len(chosen)
        inputs, scope, forward = (
            column if whole else column[rows] for column in (self._inputs, self._scope, self._forward)
        )
        texts = self._input_texts()
        columns = {
            name: pl.Series(texts[name], dtype=pl.Categorical()).gather(inputs)
            if len(self._found.input_texts) > 1
            else pl.Series([None], dtype=pl.Categorical()).new_from_index(0, len(rows))
            for name in Texts._fields
        }
        details = {"span": rows, **columns, "scope": scope.astype(np.int64), "forward_thread": _nullable(forward, 0)}
        if with_flops:
            details["flops"] = self._flops(rows)
        return conform("operators", pl.DataFrame(details))

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
        return {name: [None, *(getattr(texts, name) for texts, _ in parsed)] for name in Texts._fields}

    def arrows(self, threads: Mapping[int, Thread]) -> pl.DataFrame:
        """Return an arrow from each forward operator to its backward, as Kineto draws them.

        Autograd counts on each thread by itself. Of several operators with one number the last on the forward side made
        the node, and the first on the backward side is its evaluation.
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

    def steps(self) -> pl.DataFrame:
        """Return the table ``steps``: the marks that the program set by calling ``step()``."""
        rows = np.flatnonzero(self._kind == kineto_kinds.KIND_CODE["step"])
        numbers = [int(self._names[name].rpartition("#")[2]) for name in self._name[rows].tolist()]
        return pl.DataFrame(
            {
                "number": pl.Series([number if number < 1 << 31 else None for number in numbers], dtype=pl.Int32),
                "ts": self.ts[rows],
                "dur": self.dur[rows],
                "source": pl.Series(["declared"] * len(rows), dtype=dtype("enum:step_source")),
            }
        ).drop_nulls("number")


def _places(threads: npt.NDArray[np.int32], numbers: list[int]) -> npt.NDArray[np.int32]:
    """Return the track of each entry: the place of its thread among the numbers."""
    if numbers == list(range(len(numbers))):
        return threads
    order = np.argsort(numbers).astype(np.int32)
    return order[np.searchsorted(np.array(numbers)[order], threads)]


def _nullable(values: Integers, absent: int) -> pl.Series:
    """Return integers with null where they are absent."""
    missing = values == absent
    if missing.all():
        return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(values))
    series = pl.Series(values)
    return series.set(pl.Series(missing), None) if missing.any() else series


def _tracks(content: Content) -> pl.DataFrame:
    facts = content.facts
    rows: list[tuple[int, str, int | None, int | None, str]] = [
        (
            place,
            "thread",
            facts.process,
            thread.native,
            f"thread {thread.native}" + (f" ({thread.name})" if thread.name else ""),
        )
        for place, thread in enumerate(content.threads.values())
    ]
    rows += [(len(rows), "counter", facts.process, None, SAMPLED)] if content.rates else []
    schema: dict[str, Any] = {
        "id": pl.Int32,
        "kind": dtype("enum:track_kind"),
        "process": pl.Int64,
        "thread": pl.Int64,
        "name": pl.String,
    }
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(
        rank=pl.lit(0, pl.Int32),
        host=pl.lit(facts.host),
        device=pl.lit("cpu"),
        stream=pl.lit(None, pl.Int64),
        order=pl.col("id"),
    )


def _rates(content: Content, clock: Ticks) -> pl.DataFrame:
    """Return which fraction of the operators was recorded when, of a sample, on the lane behind the threads."""
    if not content.rates:
        return empty("counters")
    monotonic = clock.monotonic(np.array([ticks for ticks, _ in content.rates], np.uint64))
    kept = ~clock.damaged(monotonic)
    values = np.array([rate for _, rate in content.rates])[kept]
    rows = pl.DataFrame({"ts": clock.epochs(monotonic[kept]), "value": values}).with_columns(
        track=pl.lit(len(content.threads)), name=pl.lit(SAMPLED), unit=pl.lit("")
    )
    return conform("counters", rows)


def _allocations(memory: Memory, monotonic: Integers, clock: Ticks, numbers: list[int]) -> pl.DataFrame:
    """Return memory taken and freed, each with the track of its thread."""
    kept = ~clock.damaged(monotonic)
    address, size, allocated, reserved, device = (memory.values[kept, column] for column in range(5))
    found, inverse = np.unique(device, return_inverse=True)
    return pl.DataFrame(
        {
            "ts": clock.epochs(monotonic[kept]),
            "device": pl.Series([_device(number) for number in found.tolist()], dtype=pl.String).gather(inverse),
            "address": address,
            "bytes": size,
            "allocated": allocated,
            "reserved": reserved,
            "track": _places(memory.thread[kept], numbers),
        }
    )


def _device(number: int) -> str:
    kind, index = number >> 8, (number & 255) - 1
    name = _DEVICE_TYPES.get(kind, f"device{kind}")
    return name if index < 0 or name == "cpu" else f"{name}:{index}"


def _metadata(content: Content, clock: Ticks) -> pl.DataFrame:
    facts = content.facts
    values: dict[str, object] = {
        "torch": facts.torch,
        "recorder_clock": {"clock": facts.clock, "error_ns": clock.error_ns},
        **({SAMPLE: facts.sample} if facts.sample < 1 else {}),
    }
    rows = [(key, msgspec.json.encode(value).decode()) for key, value in values.items()] if facts.clock else []
    return pl.DataFrame(rows, schema={"key": pl.String, "value": pl.String}, orient="row")


def _losses(content: Content) -> pl.DataFrame:
    """Return what was lost while recording; operators that were dropped are counted in the file itself, too."""
    counts = dict(content.facts.losses)
    dropped = max(counts.get("operators_dropped", 0), content.dropped)
    counts |= {"operators_dropped": dropped} if dropped else {}
    rows = [
        (what, count, *CATALOGUE.get(what, ("info", "")), "torch_native") for what, count in counts.items() if count
    ]
    schema = ["what", "count", "severity", "advice", "source"]
    return conform("losses", pl.DataFrame(rows, schema=schema, orient="row")) if rows else empty("losses")

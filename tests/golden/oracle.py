"""An independent, slow and obvious computation of the results, straight from the JSON of a trace.

Plain Python over lists of events, times as integers by way of ``Decimal``; nothing of stepscope, Polars or numpy. The
definitions are those of ``docs/definitions.md``, written here a second time and differently: a walk over single moments
instead of set operations, ancestors by looking at every open event instead of links between rows.
"""

from __future__ import annotations

import gzip
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

DEVICE_CATEGORIES = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset", "mtia_ccp_events"}
OPERATOR_CATEGORIES = {"cpu_op", "Operator"}
CALL_CATEGORIES = {"cuda_runtime": "Runtime", "Runtime": "Runtime", "cuda_driver": "Driver", "mtia_runtime": "Runtime"}
COLLECTIVE_PREFIXES = ("nccl:", "rccl:", "gloo:", "mpi:", "ucc:", "hccl:")
PARTS = ("computing", "communication", "copy", "data wait", "sync", "host only", "idle")
#: Calls that return when the device is done, in the captures here.
_ASYNC = ("MemcpyAsync", "MemcpyDtoDAsync")
WAITING = ("cudaFree", "hipFree", "cudaMemcpy", "hipMemcpyWithStream", "synchronize", "synchronizeStream")


@dataclass
class Event:
    """A complete event; times in ns since the epoch, place as the file names it."""

    name: str
    category: str
    place: tuple[str, str]
    start: int
    end: int
    args: dict[str, Any]
    kind: str = ""

    @property
    def duration(self) -> int:
        return self.end - self.start


@dataclass
class Trace:
    """The events of a file, classified."""

    device: list[Event] = field(default_factory=list)
    threads: dict[tuple[str, str], list[Event]] = field(default_factory=lambda: defaultdict(list))
    steps: list[Event] = field(default_factory=list)
    memory: list[tuple[int, str, int | None, int]] = field(default_factory=list)

    @property
    def host(self) -> Iterator[Event]:
        for events in self.threads.values():
            yield from events


def load(path: Path) -> Trace:
    """Read a trace; complete events with a duration of zero or more count, everything else does not."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    document = json.loads(text, parse_float=Decimal)
    base = int(document.get("baseTimeNanoseconds", 0))
    trace = Trace()
    for raw in document["traceEvents"]:
        if raw.get("ph") == "X" and raw.get("dur") is not None and raw["dur"] >= 0:
            _place(trace, _event(raw, base))
        elif raw.get("name") == "[memory]":
            trace.memory.append(_memory(raw, base))
    return trace


def _memory(raw: dict[str, Any], base: int) -> tuple[int, str, int | None, int]:
    """Return time, device, address (None in files of 2021) and bytes of a memory event."""
    args = raw["args"]
    device = f"{args['Device Type']}:{args['Device Id']}"
    return base + int(Decimal(raw["ts"]) * 1000), device, args.get("Addr"), int(args["Bytes"])


def _event(raw: dict[str, Any], base: int) -> Event:
    start = base + int(Decimal(raw["ts"]) * 1000)
    end = start + int(Decimal(raw["dur"]) * 1000)
    place = (str(raw["pid"]), str(raw["tid"]))
    return Event(str(raw["name"]), str(raw.get("cat")), place, start, end, raw.get("args") or {})


def _place(trace: Trace, event: Event) -> None:
    if event.category in DEVICE_CATEGORIES:
        event.kind = _device_kind(event)
        if event.kind != "sync":
            trace.device.append(event)
    elif (kind := _host_kind(event)) is not None:
        event.kind = kind
        trace.threads[event.place].append(event)
        if kind == "step":
            trace.steps.append(event)


def _device_kind(event: Event) -> str:
    name = event.name.lower()
    if event.category in {"gpu_memcpy", "Memcpy"} or event.name == "dma_request":
        return "memcpy"
    if event.category in {"gpu_memset", "Memset"}:
        return "memset"
    if event.name in {"event_wait", "event_record"}:
        return "sync"
    return "collective" if any(word in name for word in ("nccl", "rccl", "multimem_all_reduce")) else "kernel"


def _host_kind(event: Event) -> str | None:
    """Return the kind of a host event; None for what is no host event, marks on device streams among it."""
    name, category = event.name, event.category
    if category in OPERATOR_CATEGORIES | {"user_annotation"}:
        if name.startswith("ProfilerStep#"):
            return "step"
        if name.startswith("enumerate(DataLoader)#"):
            return "data"
        if name == "record_param_comms" or name.startswith(COLLECTIVE_PREFIXES):
            return "collective"
        return "annotation" if category == "user_annotation" else "operator"
    if category in CALL_CATEGORIES:
        return "call"
    return {"python_function": "python", "overhead": "overhead"}.get(category)


# Time of a step


def windows(trace: Trace) -> list[tuple[int, int, int]]:
    """Return number, start and end of each step in order; one window over everything where there are none."""
    found = sorted((int(step.name.split("#")[1]), step.start, step.end) for step in trace.steps)
    if found:
        return found
    everything = [*trace.device, *trace.host]
    return [(0, min(event.start for event in everything), max(event.end for event in everything))]


@dataclass
class Measure:
    """A window of time: per part its disjoint share and the time it covers, in ns; when the first work begins."""

    split: dict[str, int]
    covered: dict[str, int]
    first_work: int


def measure(trace: Trace, start: int, end: int) -> Measure:
    """Walk through the window: every moment goes to the first part that has something going on."""
    split, covered = dict.fromkeys(PARTS, 0), dict.fromkeys(PARTS, 0)
    first_work = end
    for begin, stop, active in _moments(_layers(trace, start, end)):
        split[next(part for part in PARTS if part in active)] += stop - begin
        for part in active:
            covered[part] += stop - begin
        if active & {"computing", "communication", "copy"}:
            first_work = min(first_work, begin)
    split["idle"] = end - start - sum(split.values())
    return Measure(split, covered, first_work)


def _layers(trace: Trace, start: int, end: int) -> list[tuple[int, int, str]]:
    """Return the intervals of every part, clipped to the window."""
    intervals = [(event.start, event.end, _device_part(event)) for event in trace.device]
    for events in trace.threads.values():
        intervals += [(event.start, event.end, "data wait") for event in events if event.kind == "data"]
        busy = {"operator", "collective", "call", "python", "overhead"}
        intervals += [(event.start, event.end, "host only") for event in events if event.kind in busy]
        if not trace.device:
            intervals += _thread_work(events)
    if trace.device:
        intervals += _waits_for_device(trace)
    clipped = [(max(start, begin), min(end, stop), part) for begin, stop, part in intervals]
    return [(begin, stop, part) for begin, stop, part in clipped if stop > begin]


def _waits_for_device(trace: Trace) -> Iterator[tuple[int, int, str]]:
    """Return the moments in which a thread waits for the device, and no thread prepares work without waiting itself."""
    # Nothing waits for a copy within the device, or from or to pinned memory.
    free = ("DtoD", "Device -> Device", "DeviceToDevice", "Pinned")
    copied = {
        event.args.get("correlation"): event.end - event.duration // 5
        for event in trace.device
        if event.kind == "memcpy" and not any(part in event.name for part in free)
    }
    calls = [event for events in trace.threads.values() for event in events if event.kind == "call"]
    # Where no call says that it waits or copies, the operator that reads a number waits.
    silent = not any(call.name in WAITING or call.name.endswith(("Synchronize", *_ASYNC)) for call in calls)
    labelled = []
    for thread, events in enumerate(trace.threads.values()):
        for event in events:
            if event.kind in {"operator", "collective", "call"}:
                reads = silent and event.name == "aten::_local_scalar_dense"
                what = "waits" if reads or (event.kind == "call" and _waits(event, copied)) else "works"
                labelled.append((event.start, event.end, f"{what} {thread}"))
    for begin, stop, active in _moments(labelled):
        waiting, working = ({label.split()[1] for label in active if what in label} for what in ("waits", "works"))
        if waiting and working <= waiting:
            yield begin, stop, "sync"


def _waits(call: Event, copied: dict[Any, int]) -> bool:
    """Return whether a call waits: by its name, or because four fifths of its copy run before it ends."""
    if call.name.endswith(_ASYNC):
        correlation = call.args.get("correlation")
        return correlation in copied and copied[correlation] <= call.end
    return call.name in WAITING or call.name.endswith("Synchronize")


def _device_part(event: Event) -> str:
    return {"collective": "communication", "memcpy": "copy"}.get(event.kind, "computing")


def _thread_work(events: list[Event]) -> Iterator[tuple[int, int, str]]:
    """Return the work of one thread: its operators, less waits for data and communication; its communication."""
    marked = [(event.start, event.end, _thread_label(event)) for event in events if event.end > event.start]
    for begin, stop, active in _moments(marked):
        if "collective" in active:
            yield begin, stop, "communication"
        elif "operator" in active and "data" not in active:
            yield begin, stop, "computing"


def _thread_label(event: Event) -> str:
    """Return the kind of a host event, where a call of torch.distributed is communication."""
    return "collective" if event.kind == "operator" and event.name.startswith("c10d::") else event.kind


def _moments(intervals: Iterable[tuple[int, int, str]]) -> Iterator[tuple[int, int, set[str]]]:
    """Return consecutive stretches of time in which nothing begins or ends, with what is going on in each."""
    edges: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for begin, stop, label in intervals:
        edges[begin].append((label, 1))
        edges[stop].append((label, -1))
    running: dict[str, int] = defaultdict(int)
    times = sorted(edges)
    for now, later in itertools.pairwise(times):
        for label, change in edges[now]:
            running[label] += change
        active = {label for label, count in running.items() if count}
        if active:
            yield now, later, active


# Sums by name


def totals(pairs: Iterable[tuple[tuple[str, ...], int]]) -> dict[tuple[str, ...], tuple[int, int, int, int]]:
    """Return count, sum, least and most per key."""
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for key, time in pairs:
        found[key].append(time)
    return {key: (len(times), sum(times), min(times), max(times)) for key, times in found.items()}


def device_totals(trace: Trace) -> dict[tuple[str, ...], tuple[int, int, int, int]]:
    """Return count, sum, least and most of the durations per name and kind of device work."""
    return totals(((event.name, event.kind), event.duration) for event in trace.device)


def call_totals(trace: Trace) -> dict[tuple[str, ...], tuple[int, int, int, int]]:
    """Return count, sum, least and most of the durations per level and name of runtime and driver calls."""
    calls = [event for event in trace.host if event.kind == "call"]
    return totals(((CALL_CATEGORIES[event.category], event.name), event.duration) for event in calls)


def operator_totals(trace: Trace) -> dict[tuple[str, ...], tuple[int, int]]:
    """Return count and sum of the durations per name and kind of host operators and communication calls."""
    chosen = [event for event in trace.host if event.kind in {"operator", "collective"}]
    sums = totals(((event.name, event.kind), event.duration) for event in chosen)
    return {key: (count, total) for key, (count, total, _, _) in sums.items()}


def outer_totals(trace: Trace) -> int:
    """Return the sum of the self times of all operators: the ns that each thread spends in any operator, all added."""
    total = 0
    for events in trace.threads.values():
        chosen = [event for event in events if event.kind in {"operator", "collective"}]
        intervals = [(event.start, event.end, "any") for event in chosen if event.end > event.start]
        total += sum(stop - begin for begin, stop, _ in _moments(intervals))
    return total


def device_range(trace: Trace) -> tuple[int, int]:
    """Return the start of the first and the end of the last device work."""
    return min(event.start for event in trace.device), max(event.end for event in trace.device)


# Every piece of device work


def pieces(trace: Trace) -> list[tuple[int, int, str, str, int | None]]:
    """Return start, duration, name, kind and step of each piece of device work."""
    steps = windows(trace) if trace.steps else []
    found = []
    for event in trace.device:
        numbers = [number for number, start, end in steps if start <= event.start < end]
        found.append((event.start, event.duration, event.name, event.kind, numbers[0] if numbers else None))
    return found


def waits(trace: Trace) -> list[tuple[int, int]]:
    """Return start of each piece of device work and how long its stream had nothing before it, in order."""
    found = []
    latest: dict[tuple[str, str], int] = {}
    for event in sorted(trace.device, key=lambda event: event.start):
        before = latest.get(event.place, event.start)
        found.append((event.start, max(0, event.start - before)))
        latest[event.place] = max(before, event.end)
    return sorted(found)


# Memory


def blocks(trace: Trace) -> list[tuple[int, int, int | None]]:
    """Return when each block was taken, its bytes, and how long it was held (None: to the end), in order of time."""
    found: list[tuple[int, int, int | None]] = []
    held: dict[tuple[Any, ...], int] = {}
    for at, device, address, size in sorted(trace.memory, key=lambda event: event[0]):
        taken = held.pop((device, address), None) if address is not None else None
        if size < 0 and taken is not None:
            begin, bytes_, _ = found[taken]
            found[taken] = (begin, bytes_, at - begin)
        elif size > 0:
            held[device, address] = len(found)
            found.append((at, size, None))
    return found


# Communication


def elapsed_by_step(trace: Trace) -> dict[int, tuple[int, int]]:
    """Return count and sum of the durations of the device's communication that begins in each step; -1 is outside."""
    steps = windows(trace) if trace.steps else []
    found: dict[int, tuple[int, int]] = {}
    for event in trace.device:
        if event.kind == "collective":
            inside = [number for number, start, end in steps if start <= event.start < end]
            number = inside[0] if inside else -1 if steps else 0
            count, total = found.get(number, (0, 0))
            found[number] = (count + 1, total + event.duration)
    return found


# From kernels to operators


def device_time_by_operator(trace: Trace) -> dict[str, int]:
    """Return per operator name the ns of device work launched directly in it: by correlation, then by place in time."""
    calls: dict[Any, Event] = {}
    for event in trace.host:
        correlation = event.args.get("correlation")
        if event.kind == "call" and correlation:
            calls.setdefault(correlation, event)
    innermost = _innermost(trace, list(calls.values()))
    sums: dict[str, int] = defaultdict(int)
    for event in trace.device:
        call = calls.get(event.args.get("correlation"))
        operator = innermost.get(id(call)) if call else None
        if operator:
            sums[operator.name] += event.duration
    return dict(sums)


def _innermost(trace: Trace, calls: list[Event]) -> dict[int, Event]:
    """Return per call (by identity) the shortest operator of its thread that contains it."""
    found: dict[int, Event] = {}
    wanted = defaultdict(list)
    for call in calls:
        wanted[call.place].append(call)
    for place, mine in wanted.items():
        kinds = {"operator", "collective"}
        operators = sorted((e for e in trace.threads[place] if e.kind in kinds), key=lambda e: (e.start, -e.end))
        open_, next_ = [], 0
        for call in sorted(mine, key=lambda e: e.start):
            while next_ < len(operators) and operators[next_].start <= call.start:
                open_.append(operators[next_])
                next_ += 1
            open_ = [operator for operator in open_ if operator.end >= call.start]
            around = [operator for operator in open_ if operator.end >= call.end]
            if around:
                found[id(call)] = min(reversed(around), key=lambda e: e.duration)
    return found

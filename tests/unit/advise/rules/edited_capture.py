"""A real capture of a GPU with something planted in it: the host and the device run again, later where they must.

The capture is one of Kineto with one device, whose host launches everything on one stream. What is planted is a call of
the host at an instant of the capture. All that follows moves: a kernel begins when its launch and the work before it on
its stream allow, and a call that waited for the device waits until it has come as far as before.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

#: µs from a launch to its kernel at most, and between two kernels, of a device that waits for nothing else.
_LATENCY, _BETWEEN = 10.0, 2.0
#: A launch that takes longer, µs, waits for room in the queue.
_BLOCKED = 200.0
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_STREAM = 7

Event = dict[str, Any]


class EditedCapture:
    """A capture of Kineto that is run again with what is planted.

    Args:
        path: The capture, compressed.
    """

    def __init__(self, path: Path) -> None:
        self.document = json.loads(gzip.decompress(path.read_bytes()))
        events = self.document["traceEvents"]
        spans = [event for event in events if event.get("ph") == "X" and event.get("cat") != "Trace"]
        self.work = sorted((one for one in spans if one["cat"] in _ON_DEVICE), key=lambda one: one["ts"])
        self.host = [one for one in spans if one["cat"] not in (*_ON_DEVICE, "gpu_user_annotation")]
        self._others = [one for one in events if one.get("ph") == "M"]
        self._planted: list[tuple[float, Callable[[float], float]]] = []
        self._new: list[Event] = []
        self._free: dict[int, float] = defaultdict(float)
        self._thread = next(one for one in self.host if one["name"].startswith("ProfilerStep#"))
        self._number = 90_000_000

    def named(self, start: str) -> list[Event]:
        """Return the host's spans whose names begin so, in order."""
        found = (one for one in self.host if one["name"].startswith(start))
        return sorted(found, key=lambda one: float(one["ts"]))

    @property
    def launches(self) -> list[Event]:
        """The launches of kernels on the training thread and that of the backward, in order."""
        return self.named("cudaLaunchKernel")

    def plant(self, at: Iterable[float], call: Callable[[float], float]) -> None:
        """Plant a call at instants of the capture: given the new time at which it begins, it returns when it ends."""
        self._planted += [(instant, call) for instant in at]

    def call(self, name: str, begin: float, end: float, category: str = "cuda_runtime", **args: Any) -> int:
        """Add a span of the training thread; return its correlation."""
        self._number += 1
        place = {"pid": self._thread["pid"], "tid": self._thread["tid"], "ts": begin, "dur": end - begin}
        numbers = {"correlation": self._number} if category == "cuda_runtime" else {"External id": self._number}
        self._new.append({"ph": "X", "cat": category, "name": name, **place, "args": {**numbers, **args}})
        return self._number

    def reserve(self, size: int) -> None:
        """Let torch hold so many bytes of the device at the end."""
        args = {"Addr": 1 << 40, "Bytes": 512, "Device Type": 1, "Device Id": 0}
        totals = {"Total Allocated": size // 2, "Total Reserved": size}
        place = {"pid": self._thread["pid"], "tid": self._thread["tid"], "ts": self._thread["ts"]}
        event = {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", **place}
        self._others.append({**event, "args": {**args, **totals}})

    def last_until(self, call: int, end: float) -> None:
        """Let a call that was added last until an instant."""
        [span] = (one for one in self._new if one["args"].get("correlation") == call and one["cat"] == "cuda_runtime")
        span["dur"] = end - span["ts"]

    def launched(self, call: int, at: float, name: str, dur: float, **more: Any) -> float:
        """Add work of the device that a call launched; return when it ends."""
        stream = more.pop("stream", _STREAM)
        begin = max(at + _LATENCY, self._free[stream] + _BETWEEN)
        self._free[stream] = begin + dur
        args = {"device": 0, "context": 1, "stream": stream, "correlation": call, **more.pop("args", {})}
        where = {"pid": 0, "tid": stream, "ts": begin, "dur": dur}
        self._new.append({"ph": "X", "cat": more.pop("category", "kernel"), "name": name, **where, "args": args})
        return begin + dur

    def drained(self, at: float) -> float:
        """Return when the device has done all that was launched until now."""
        return max(at, *self._free.values()) if self._free else at

    def write(self, path: Path) -> float:
        """Run it again and write the result; return when the last work of the device ends, in µs from the first."""
        times, shifts = self._run()
        spans = [*self._moved(times, shifts), *self.work, *self._new]
        document = {**self.document, "traceEvents": [*self._others, *spans]}
        path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
        begin = min(float(one["ts"]) for one in spans)
        return max(float(one["ts"] + one["dur"]) for one in spans if one["cat"] in _ON_DEVICE) - begin

    def _run(self) -> tuple[list[float], list[float]]:
        """Walk through the host's calls in order; move the device's work, and return the host's delay by instant."""
        by_call = {one["args"]["correlation"]: one for one in self.work}
        before = [float(one["ts"]) for one in self.work]
        points: list[tuple[float, int, Any]] = [(instant, 0, call) for instant, call in self._planted]
        for one in self.host:
            number = one["args"].get("correlation") if one["cat"] == "cuda_runtime" else None
            if number in by_call:
                points.append((one["ts"], 1, by_call[number]))
            if one["cat"] == "cuda_runtime" and one["dur"] > _BLOCKED:
                points.append((one["ts"] + one["dur"], 2, one))
        points.sort(key=lambda point: point[:2])
        delays: dict[int, float] = {}
        times, shifts, shift = [float("-inf")], [0.0], 0.0
        for at, kind, what in points:
            if kind == 0:
                shift = what(at + shift) - at
            elif kind == 1:
                soonest = at + shift + min(what["ts"] - at, _LATENCY)
                begin = max(soonest, self._free[_STREAM] + _BETWEEN)
                delays[id(what)] = begin - what["ts"]
                what["ts"], self._free[_STREAM] = begin, begin + what["dur"]
                continue
            else:  # it returns when the device has come as far as before
                last = bisect_right(before, at) - 1
                come = delays.get(id(self.work[last]), 0.0) if last >= 0 else 0.0
                shift = max(what["ts"] + shift + 5.0, at + come) - at
            times.append(at)
            shifts.append(shift)
        return times, shifts

    def _moved(self, times: list[float], shifts: list[float]) -> Iterable[Event]:
        for one in self.host:
            begin, end = (
                instant + shifts[bisect_right(times, instant) - 1] for instant in (one["ts"], one["ts"] + one["dur"])
            )
            yield {**one, "ts": begin, "dur": max(end - begin, 0.0)}

"""The facts about a recording: options, versions, machine, process groups, clocks."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from stepscope.read.ascend.ascend_files import document
from stepscope.read.ascend.text.op_range import CpuCounter
from stepscope.read.common.plain_text import printable
from stepscope.read.common.source import Capture, open_trace
from stepscope.trace.losses import LossLedger

_US, _MOST = 1000, 1 << 62
_CLOCK_LINE = re.compile(r"(?m)^\s*(cntvct|clock_monotonic_raw)\s*[:=]\s*(\d{1,18})\s*$")
#: Keys of files of the device's collector that tell the user nothing.
_INTERNAL = frozenset({"jobInfo", "netCard", "netCardNums", "DeviceInfo", "devices", "cycleToTime", "filesize"})


@dataclass
class AscendFacts:
    """Facts about the recording.

    Attributes:
        said: Name of a fact → its value.
        host: Host name; empty if the files do not give it.
        process: The process; None if they do not give it.
        device: Number of the device; None if they do not give it.
        shift: ns from the clock of old timelines, which counts from the start of the machine, to the epoch; None if
            the files do not give it.
        mhz: Steps of the processor's counter a µs.
        counter: Clock of MindSpore's raw records; None if the files do not give it.
        groups: Name of a process group on the wire → its name and ranks.
    """

    said: dict[str, Any] = field(default_factory=dict)
    host: str = ""
    process: int | None = None
    device: int | None = None
    shift: int | None = None
    mhz: float = 100.0
    counter: CpuCounter | None = None
    groups: dict[str, dict[str, Any]] = field(default_factory=dict)

    def frame(self) -> pl.DataFrame:
        """Return the frame ``facts``."""
        rows = [(printable(key), json.dumps(value)) for key, value in self.said.items()]
        return pl.DataFrame(rows, schema={"key": pl.String, "value": pl.String}, orient="row")


def read(capture: Capture, ledger: LossLedger) -> AscendFacts:
    """Return the facts about a recording; damaged files are counted.

    Raises:
        InputError: A file cannot be read.
    """
    facts = AscendFacts()
    documents = capture.of("documents")
    for path in (*capture.of("info", "metadata", "device"), *documents):
        found = document(path)
        ledger.add("metadata_damaged", int(not found and path.stat().st_size > 0))
        if path in capture.of("device"):
            _add_device(facts, found)
        else:
            facts.said.update({path.name: found} if path in documents else found)
    facts.counter = _counter(capture, facts)
    inner = facts.said.get("ms_profiler_info")
    if facts.device is None and isinstance(inner, dict):
        facts.device = _whole(inner.get("device_id"))
    groups = facts.said.get("parallel_group_info")
    if isinstance(groups, dict):
        facts.groups = {str(key): value for key, value in groups.items() if isinstance(value, dict)}
    return facts


def _add_device(facts: AscendFacts, found: dict[str, Any]) -> None:
    facts.said.update({key: value for key, value in found.items() if key not in _INTERNAL})
    host = found.get("hostname")
    facts.host = host if isinstance(host, str) and not facts.host else facts.host
    facts.process = _whole(found.get("pid")) if facts.process is None else facts.process
    devices = found.get("DeviceInfo")
    if facts.device is None and isinstance(devices, list) and devices and isinstance(devices[0], dict):
        facts.device = _whole(devices[0].get("id"))
    processors = found.get("CPU")
    if isinstance(processors, list) and processors and isinstance(processors[0], dict):
        facts.mhz = _mhz(processors[0].get("Frequency")) or facts.mhz
    began, raw = _whole(found.get("collectionTimeBegin")), _whole(found.get("clockMonotonicRaw"))
    if facts.shift is None and began is not None and raw is not None:
        facts.shift = began * _US - raw


def _counter(capture: Capture, facts: AscendFacts) -> CpuCounter | None:
    """Return the clock of MindSpore's raw records: ``host_start.log`` gives a value of the counter and its time."""
    said: dict[str, int] = {}
    for path in capture.of("clock"):
        with open_trace(path) as file:
            text = file.read(1 << 20).decode("utf-8", "replace")
        said.update({key: int(value) for key, value in _CLOCK_LINE.findall(text)})
    start, raw = said.get("cntvct"), said.get("clock_monotonic_raw")
    if facts.shift is None or start is None or raw is None:
        return None
    return CpuCounter(start, raw + facts.shift, facts.mhz)


def _whole(value: object) -> int | None:
    """Return a number that is not negative, also one written as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    return value if type(value) is int and 0 <= value < _MOST // _US else None


def _mhz(value: object) -> float | None:
    try:
        number = float(value) if isinstance(value, str | int | float) else 0.0
    except ValueError:
        return None
    return number if 0.001 < number < 1e6 else None

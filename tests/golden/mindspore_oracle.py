"""What MindSpore's files say, read line by line in plain Python: nothing here is shared with the reader."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

_EVENT = re.compile(
    r"(module|stage):(.*?), event:(.*?), op:(.*), start_time:(\d+), end_time:(\d+), "
    r"dur_time:,\d+,ns, tid:(\d+), pid:(\d+)"
)


@dataclass
class Recording:
    """Everything that the files of one directory say.

    Attributes:
        calls: Full name, start and end in ns, of every operator call.
        counted: Full name → calls and total ms, as MindSpore counted them itself.
        shapes: Short name → the shapes of its calls in order, as written.
        events: (name, thread, start, end) of the host's events, ``flow`` ones left out.
        arrows: How many ``flow`` ones there are.
        memory: (time, allocated, reserved, active).
        process: Process that MindSpore's own table names.
    """

    calls: list[tuple[str, int, int]] = field(default_factory=list)
    counted: dict[str, tuple[int, float]] = field(default_factory=dict)
    shapes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    events: list[tuple[str, int, int, int]] = field(default_factory=list)
    arrows: int = 0
    memory: list[tuple[int, ...]] = field(default_factory=list)
    process: int | None = None

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return calls and total ns by full name."""
        counts: Counter[str] = Counter()
        times: Counter[str] = Counter()
        for name, start, end in self.calls:
            counts[name] += 1
            times[name] += end - start
        return {name: (counts[name], times[name]) for name in counts}

    def busy(self) -> int:
        """Return the ns during which at least one operator runs."""
        total, until = 0, 0
        for _, start, end in sorted(self.calls, key=lambda call: call[1]):
            total += max(0, end - max(start, until))
            until = max(until, end)
        return total


def record(directory: Path) -> Recording:
    """Read all files in and below a directory."""
    found = Recording()
    for path in sorted(directory.rglob("*")):
        if path.name.startswith("cpu_op_execute_timestamp"):
            _calls(path, found)
        elif path.name.startswith("cpu_op_detail_info"):
            _counted(path, found)
        elif path.name.startswith("cpu_framework"):
            _shapes(path, found)
        elif path.name.startswith("RuntimeProfilerDetail"):
            _events(path, found)
        elif path.name.startswith("cpu_ms_memory_record"):
            found.memory += [tuple(map(int, line.split(","))) for line in path.read_text().splitlines()[1:]]
    found.calls.sort(key=lambda call: call[1])
    return found


def _calls(path: Path, found: Recording) -> None:
    for line in path.read_text().splitlines():
        name, _, calls = line.rsplit(";", 2)
        for call in calls.split():
            start, ms, thread = call.split(",")
            assert thread == "0"
            found.calls.append((name, int(start), int(start) + int(Decimal(ms) * 1_000_000)))


def _counted(path: Path, found: Recording) -> None:
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            calls, ms = found.counted.get(row["full_op_name"], (0, 0.0))
            total = ms + float(row["op_total_time(ms)"])
            found.counted[row["full_op_name"]] = (calls + int(row["op_occurrences"]), total)
            found.process = int(row["pid"])


def _shapes(path: Path, found: Recording) -> None:
    for line in path.read_text().splitlines():
        _, name, _, *inputs = line.rstrip(";").split(";")
        if name:
            found.shapes[name].append(str([re.sub(r"input_\d+:", "", one) for one in inputs if one]))


def _events(path: Path, found: Recording) -> None:
    for line in path.read_text().splitlines():
        match = _EVENT.fullmatch(line)
        if match is None:
            assert not line or line.startswith("[Step:"), line
            continue
        _, module, event, op, start, end, thread, _ = match.groups()
        if op == "flow" and int(end) < int(start):
            found.arrows += 1
            continue
        name = next(text for text in (event, op, module) if text not in ("", "Default"))
        found.events.append((name, int(thread), int(start), int(end)))

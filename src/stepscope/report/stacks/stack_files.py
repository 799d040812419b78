"""The stacks of a rank as JSON and text: speedscope's profile, Firefox Profiler's, and collapsed stacks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.report.files.json_results import dumps
from stepscope.report.protocol import Source
from stepscope.report.safe_text import printable
from stepscope.report.stacks.weighted_stacks import Place, StackThread, StackTree, WeightedStacks, weighted_stacks
from stepscope.report.whole_files import write_whole

#: The only category of Firefox Profiler that we use; it must be grey.
_CATEGORY = {"name": "Other", "color": "grey", "subcategories": ["Other"]}


@dataclass(frozen=True)
class Speedscope:
    """``profile.speedscope.json``: a profile each thread and stream, for https://www.speedscope.app; times in ns."""

    name: str = "speedscope"

    def write(self, source: Source, directory: Path) -> list[Path]:
        """Write the file; see :class:`stepscope.report.protocol.Format`."""
        from stepscope import __version__

        stacks = weighted_stacks(source)
        frames = [
            {"name": function, **({"file": file} if file else {}), **({"line": line} if line else {})}
            for file, line, function in stacks.tree.frames
        ]
        document = {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "shared": {"frames": frames},
            "profiles": [_profile(thread, stacks) for thread in stacks.threads],
            "name": source.label or "stepscope",
            "exporter": f"stepscope@{__version__}",
        }
        path = directory / "profile.speedscope.json"
        write_whole(path, (dumps(document) + "\n").encode())
        return [path]


def _profile(thread: StackThread, stacks: WeightedStacks) -> dict[str, Any]:
    """Return one thread; where it had no stack, an empty one keeps the others at their times."""
    samples: list[list[int]] = []
    weights: list[int] = []
    begin = now = stacks.begin
    for row in thread.rows:
        if row.ts > now:
            samples.append([])
            weights.append(row.ts - now)
        samples.append(stacks.tree.path(row.node)[::-1])
        weights.append(row.dur)
        now = max(now, row.ts) + row.dur
    unit = {"type": "sampled", "name": thread.name, "unit": "nanoseconds"}
    return {**unit, "startValue": 0, "endValue": now - begin, "samples": samples, "weights": weights}


@dataclass(frozen=True)
class CollapsedStacks:
    """``stacks.collapsed.txt``: a line each stack, ``thread;outer;inner 1234`` in µs, for flame graph scripts."""

    name: str = "collapsed"

    def write(self, source: Source, directory: Path) -> list[Path]:
        """Write the file; see :class:`stepscope.report.protocol.Format`."""
        stacks = weighted_stacks(source)
        total: dict[tuple[str, int | None], int] = defaultdict(int)
        for thread in stacks.threads:
            for row in thread.rows:
                total[thread.name, row.node] += row.dur
        lines = sorted(f"{text} {round(dur / 1000)}" for text, dur in _lines(total, stacks.tree))
        path = directory / "stacks.collapsed.txt"
        write_whole(path, ("\n".join(lines or ["(no stacks) 0"]) + "\n").encode())
        return [path]


def _lines(total: dict[tuple[str, int | None], int], tree: StackTree) -> Iterator[tuple[str, int]]:
    for (name, node), dur in total.items():
        frames = [_shown(tree.frames[frame]) for frame in reversed(tree.path(node))]
        yield ";".join(printable(part).replace(";", ":") or "?" for part in (name, *frames)), dur


def _shown(place: Place) -> str:
    file, line, function = place
    return function if file is None else f"{function} ({file}:{line})" if line else f"{function} ({file})"


@dataclass(frozen=True)
class Firefox:
    """``profile.firefox.json``: the processed format, version 48, for https://profiler.firefox.com; times in ms."""

    name: str = "firefox"

    def write(self, source: Source, directory: Path) -> list[Path]:
        """Write the file; see :class:`stepscope.report.protocol.Format`."""
        stacks = weighted_stacks(source)
        document = {
            "meta": {
                "interval": 1,
                "startTime": stacks.begin / 1e6,
                "processType": 0,
                "categories": [_CATEGORY],
                "product": source.label or "stepscope",
                "stackwalk": 0,
                "debug": False,
                "version": 29,
                "preprocessedProfileVersion": 48,
                "symbolicated": True,
                "markerSchema": [],
                "usesOnlyOneStackType": True,
                "doesNotUseFrameImplementation": True,
                "sourceCodeIsNotOnSearchfox": True,
            },
            "libs": [],
            "threads": [_thread(thread, stacks) for thread in stacks.threads],
        }
        path = directory / "profile.firefox.json"
        write_whole(path, (dumps(document) + "\n").encode())
        return [path]


def _thread(thread: StackThread, stacks: WeightedStacks) -> dict[str, Any]:
    """Return one thread; it has its own tables, of the frames and stacks that occur in it."""
    nodes: dict[int, int] = {}
    for row in thread.rows:
        node, chain = row.node, []
        while node is not None and node not in nodes:
            chain.append(node)
            node = stacks.tree.nodes[node][0]
        for one in reversed(chain):
            nodes[one] = len(nodes)
    frames = {frame: place for place, frame in enumerate(dict.fromkeys(stacks.tree.nodes[node][1] for node in nodes))}
    texts: dict[str, int] = {}
    places = [stacks.tree.frames[frame] for frame in frames]
    functions = [texts.setdefault(function, len(texts)) for _, _, function in places]
    files = [texts.setdefault(file, len(texts)) if file else None for file, _, _ in places]
    callers = [stacks.tree.nodes[node][0] for node in nodes]
    return {
        "processType": "default", "processStartupTime": 0, "processShutdownTime": None, "registerTime": 0,
        "unregisterTime": None, "pausedRanges": [], "name": thread.name, "isMainThread": thread.main,
        "pid": str(thread.process), "tid": thread.number,
        "samples": _column(
            len(thread.rows), stack=[None if row.node is None else nodes[row.node] for row in thread.rows],
            time=[(row.ts - stacks.begin) / 1e6 for row in thread.rows],
            weight=[row.dur / 1e6 for row in thread.rows],
        ) | {"weightType": "tracing-ms"},
        "markers": _column(0, data=[], name=[], startTime=[], endTime=[], phase=[], category=[]),
        "stackTable": _column(
            len(nodes), frame=[frames[stacks.tree.nodes[node][1]] for node in nodes],
            prefix=[None if caller is None else nodes[caller] for caller in callers], category=0, subcategory=0,
        ),
        "frameTable": _column(
            len(frames), address=-1, inlineDepth=0, category=0, subcategory=0, func=list(range(len(frames))),
            nativeSymbol=None, innerWindowID=0, implementation=None, line=[line for _, line, _ in places], column=None,
        ),
        "funcTable": _column(
            len(frames), isJS=False, relevantForJS=False, name=functions, resource=-1, fileName=files,
            lineNumber=None, columnNumber=None,
        ),
        "resourceTable": _column(0, lib=[], name=[], host=[], type=[]),
        "nativeSymbols": _column(0, libIndex=[], address=[], name=[], functionSize=[]),
        "stringArray": list(texts),
    }  # fmt: skip


def _column(length: int, **columns: object) -> dict[str, Any]:
    """Return a table of Firefox Profiler: its length, and columns; a single value stands in every row."""
    return {
        "length": length,
        **{name: values if isinstance(values, list) else [values] * length for name, values in columns.items()},
    }

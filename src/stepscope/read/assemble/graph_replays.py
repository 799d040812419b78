"""Graphs of kernels (CUDA, HIP): which call of the capture stands for a kernel of a replay.

A replay is one call that launches all nodes; their operators ran when the graph was captured. The capture may be in
another file of the rank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.assemble.timeline import RankTimeline
from stepscope.read.common.nesting import Integers, looked_up
from stepscope.trace.losses import LossLedger

_REPLAY = re.compile(r"(?:cuda|cu|hip)GraphLaunch(?:_\w+)?")
_BEGIN, _END = re.compile(r"(?:cuda|cu|hip)StreamBeginCapture\w*"), re.compile(r"(?:cuda|cu|hip)StreamEndCapture\w*")
_LAUNCH = re.compile(r"(?:cuda|cu|hip)(?:Ext)?(?:Module)?Launch(?:Cooperative)?Kernel\w*")


@dataclass(frozen=True)
class GraphReplays:
    """The kernels of replays.

    Attributes:
        replay: The call that replayed each kernel; −1 for all other spans.
        captured: The call that launched it when the graph was captured; −1 if that is not in the files.
        graph: Number of each kernel's graph in the rank, from 1; 0 for all other spans.
    """

    replay: Integers
    captured: Integers
    graph: Integers


def replays(timeline: RankTimeline, launch: Integers, kernels: pl.DataFrame, ledger: LossLedger) -> GraphReplays:
    """Match the kernels of each replay with the launches of a capture, both in the order of the graph's nodes.

    The kernels must be the same by name where the calls say which kernel they launch, as those of HIP do; else there
    must be as many, and no other capture with as many.
    """
    calls = timeline.of_kinds("runtime", "driver")
    replaying = _named(timeline, calls, _REPLAY)
    replay = np.where(timeline.on_device & (looked_up(replaying.astype(np.int64), launch) > 0), launch, -1)
    captured, graph = np.full(len(timeline), -1, np.int64), np.zeros(len(timeline), np.int64)
    spans = np.flatnonzero((replay >= 0) & timeline.of_kinds("kernel", "collective"))
    if not len(spans):
        return GraphReplays(timeline.nowhere, timeline.nowhere, graph)
    spans = spans[np.lexsort((timeline.ts[spans], _nodes(timeline, kernels)[spans], replay[spans]))]
    captures = _captures(timeline, calls, launch)
    known: dict[tuple[str, ...], int] = {}
    for kernels_of_one in np.split(spans, np.flatnonzero(np.diff(replay[spans])) + 1):
        names = timeline.names(kernels_of_one)
        graph[kernels_of_one] = known.setdefault(tuple(names), len(known) + 1)
        captured[kernels_of_one] = _matched(names, captures)
    ledger.add("graph_capture_missing", int((captured[spans] < 0).sum()))
    return GraphReplays(replay, captured, graph)


def only_captures(timeline: RankTimeline) -> set[int]:
    """Return the parts in which graphs were captured and none replayed, if another part replays one.

    They say which operators the kernels of the replays belong to; what was asked of the program is in the other part.
    """
    if not timeline.part.any():  # one file is its own
        return set()
    calls = timeline.of_kinds("runtime", "driver")
    capturing, replaying = (
        set(timeline.part[_named(timeline, calls, pattern)].tolist()) for pattern in (_BEGIN, _REPLAY)
    )
    return capturing - replaying if replaying else set()


def _named(timeline: RankTimeline, chosen: npt.NDArray[np.bool_], pattern: re.Pattern[str]) -> npt.NDArray[np.bool_]:
    """Return which of the chosen spans have a name that matches."""
    codes = [code for code, name in timeline.distinct(chosen).items() if pattern.fullmatch(name)]
    return chosen & np.isin(timeline.codes, codes) if codes else np.zeros(len(timeline), np.bool_)


def _nodes(timeline: RankTimeline, kernels: pl.DataFrame) -> Integers:
    """Return the number of each span's node; 0 where the source says none."""
    result = np.zeros(len(timeline), np.int64)
    result[kernels["span"].to_numpy()] = kernels["graph_node"].fill_null(0).to_numpy()
    return result


def _captures(
    timeline: RankTimeline, calls: npt.NDArray[np.bool_], launch: Integers
) -> list[tuple[Integers, list[str]]]:
    """Return for each capture the calls that launched its kernels, in order of time, and the kernels' names or ''.

    Any thread may launch during a capture. Such a launch is recorded into the graph and not executed, so its call has
    no device work.
    """
    begins, ends = (np.flatnonzero(_named(timeline, calls, pattern)) for pattern in (_BEGIN, _END))
    launching = _named(timeline, calls, _LAUNCH)
    launching[launch[launch >= 0]] = False
    # A runtime's call contains that of the driver.
    launching &= looked_up(launching.astype(np.int64), timeline.parent) <= 0
    launches = np.flatnonzero(launching)
    launches = launches[np.argsort(timeline.ts[launches], kind="stable")]
    kernel = timeline.given("launches")
    found = []
    for begin in begins.tolist():
        same = ends[(timeline.track[ends] == timeline.track[begin]) & (timeline.ts[ends] > timeline.ts[begin])]
        if len(same):
            end = same[np.argmin(timeline.ts[same])]
            inside = launches[(timeline.ts[launches] > timeline.ts[begin]) & (timeline.ts[launches] < timeline.ts[end])]
            inside = inside[timeline.part[inside] == timeline.part[begin]]
            names = (
                [""] * len(inside) if kernel is None else kernel.gather(inside).cast(pl.String).fill_null("").to_list()
            )
            found.append((inside, names))
    return found


def _matched(names: list[str], captures: list[tuple[Integers, list[str]]]) -> Integers:
    """Return the call of each kernel of a replay; −1 for all if no capture is that of the graph."""
    nowhere = np.full(len(names), -1, np.int64)
    by_name = sorted(range(len(names)), key=lambda place: names[place])
    alike = []
    for calls, launched in captures:
        if len(calls) != len(names):
            continue
        if not all(launched):
            alike.append(calls)
            continue
        # Streams run side by side: the n-th kernel of a name is the n-th launch of that name.
        order = sorted(range(len(launched)), key=lambda place: launched[place])
        if [names[place] for place in by_name] == [launched[place] for place in order]:
            nowhere[by_name] = calls[order]
            return nowhere
    return alike[0] if len(alike) == 1 else nowhere

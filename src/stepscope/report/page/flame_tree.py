"""Spans by what they lie in: the calls of equal names and surroundings, added up over the recorded steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.report.page.lane_spans import KIND_NAMES, Array, LaneSpans
from stepscope.report.page.span_flows import LAUNCH, SpanFlows

_STEP = KIND_NAMES.index("step")
#: Nodes that a page holds; those with least time are left out first, their time stays that of the node around them.
MOST_NODES = 20_000


def flame_tree(spans: LaneSpans, ranges: Sequence[tuple[int, int]] = ()) -> tuple[dict[str, Any] | None, int]:
    """Return the tree, and how many nodes were left out of it.

    A node has ``name`` (index of ``spans.names``, −1 for the root), ``kind``, ``value`` and ``self`` in ns, ``count``,
    ``at`` (how long after the start of a range its first call begins, at the earliest; ns) and ``children``, widest
    first. The outermost spans of threads and streams are children of the root, side by side; steps, and the lanes of
    annotations, which say again what a thread said, are left out.

    Args:
        spans: The timeline.
        ranges: Times to add up, ns since the origin: spans that start in one of them; all if there are none.
    """
    path = _paths(spans)
    named = np.flatnonzero(spans.kind != _STEP)
    lane = np.repeat(np.arange(len(spans.lanes)), np.diff(spans.edges))
    works = np.array([one.kind in ("thread", "stream") for one in spans.lanes], np.bool_)
    inside, since = _in_ranges(spans, ranges)
    keep = works[lane] & (spans.kind != _STEP) & inside
    if not keep.any():
        return None, 0
    size = int(path[named].max()) + 1
    at = np.full(size, np.iinfo(np.int64).max)
    np.minimum.at(at, path[keep], since[keep])
    value = np.bincount(path[keep], spans.dur[keep], size)
    count = np.bincount(path[keep], minlength=size)
    first, around = _nodes(spans, path, named, size)
    return _tree(spans, _Sums(first, around, value, count, at))


def launched_tree(spans: LaneSpans, flows: SpanFlows, ranges: Sequence[tuple[int, int]] = ()) -> dict[str, Any] | None:
    """Return the tree of device work below what launched it; its times are those of the device. None without launches.

    Args:
        spans: The timeline.
        flows: Its arrows.
        ranges: Times to add up, ns since the origin: work that is launched in one of them; all if there are none.
    """
    launches = np.flatnonzero(flows.kind == LAUNCH)
    begin, work = flows.begin[launches], flows.end[launches]
    _, only = np.unique(work, return_index=True)  # work that several arrows lead to is counted once
    begin, work = begin[only], work[only]
    inside, since = _in_ranges(spans, ranges)
    begin, work = begin[inside[begin]], work[inside[begin]]
    if not len(begin):
        return None
    path = _paths(spans)
    named = np.flatnonzero(spans.kind != _STEP)
    size = int(path[named].max()) + 1
    first, around = _nodes(spans, path, named, size)
    # A leaf is the work of one name, launched at one place; what lies around it has the time of all leaves in it.
    key = path[begin] * len(spans.names) + spans.name[work].astype(np.int64)
    key, leaf = np.unique(key, return_inverse=True)
    one = np.zeros(len(key), np.int64)
    one[leaf] = np.arange(len(leaf))
    first, around = np.r_[first, work[one]], np.r_[around, path[begin[one]]]
    value, count = np.zeros(size + len(key)), np.zeros(size + len(key), np.int64)
    at = np.full(size + len(key), np.iinfo(np.int64).max)
    node = size + leaf
    while (up := node >= 0).any():
        node, dur, time = node[up], spans.dur[work[up]], since[begin[up]]
        np.add.at(value, node, dur)
        np.add.at(count, node, 1)
        np.minimum.at(at, node, time)
        begin, work, node = begin[up], work[up], around[node]
    return _tree(spans, _Sums(first, around, value, count, at))[0]


@dataclass(frozen=True, eq=False)
class _Sums:
    """Nodes by their number: a place that has its name, the node around it (−1: none), time, calls, first call; ns."""

    first: Array
    around: Array
    value: npt.NDArray[np.number[Any]]
    count: Array
    at: Array


def _in_ranges(spans: LaneSpans, ranges: Sequence[tuple[int, int]]) -> tuple[npt.NDArray[np.bool_], Array]:
    """Return which spans start in one of the ranges, and how long after its start; without any, all of them."""
    if not ranges:
        return np.ones(len(spans.start), np.bool_), spans.start
    begin, end = (np.array(times, np.int64) for times in zip(*sorted(ranges), strict=True))
    step = np.searchsorted(begin, spans.start, side="right") - 1
    inside = (step >= 0) & (spans.start < end[np.maximum(step, 0)])
    return inside, spans.start - begin[np.maximum(step, 0)]


def _nodes(spans: LaneSpans, path: Array, named: Array, size: int) -> tuple[Array, Array]:
    """Return of each path a place that has it, and the path around it."""
    first = np.zeros(size, np.int64)
    first[path[named[::-1]]] = named[::-1]
    around = np.full(size, -1, np.int64)
    parent = _parents(spans)[named]
    around[path[named]] = np.where(parent >= 0, path[np.maximum(parent, 0)], -1)
    return first, around


def _tree(spans: LaneSpans, sums: _Sums) -> tuple[dict[str, Any], int]:
    """Return the nodes with most time as a tree, and how many were left out."""
    widest = np.argsort(-sums.value, kind="stable")
    chosen = [int(node) for node in widest[:MOST_NODES] if sums.value[node] > 0 or sums.count[node]]
    root: dict[str, Any] = {"name": -1, "kind": 0, "value": 0, "self": 0, "count": 0, "at": 0, "children": []}
    nodes = {-1: root}
    for node in chosen:
        place = int(sums.first[node])
        nodes[node] = {
            "name": int(spans.name[place]),
            "kind": int(spans.kind[place]),
            "value": int(sums.value[node]),
            "self": int(sums.value[node]),
            "count": int(sums.count[node]),
            "at": int(sums.at[node]),
            "children": [],
        }
    for node in chosen:
        above = int(sums.around[node])
        while above not in nodes:
            above = int(sums.around[above])
        nodes[above]["children"].append(nodes[node])
        nodes[above]["self"] -= nodes[node]["value"]
    root["value"], root["self"] = sum(child["value"] for child in root["children"]), 0
    return root, int((sums.count > 0).sum()) - len(chosen)


def sampled_tree(rows: pl.DataFrame) -> dict[str, Any] | None:
    """Return the tree of sampled Python stacks: ``root``, a node as of :func:`flame_tree`, and ``names``; None of none.

    Args:
        rows: The result ``flame``.
    """
    if rows.is_empty():
        return None
    names: dict[str, int] = {}
    nodes: dict[int | None, dict[str, Any]] = {}
    root = nodes[None] = {"name": -1, "kind": 0, "value": 0, "self": 0, "count": 0, "at": 0, "children": []}
    columns = ("Node", "Parent", "Thread", "Function", "File", "Line", "Samples", "Self(us)", "Total(us)")
    widest = rows.sort("Total(us)", descending=True).head(MOST_NODES)["Node"].implode()
    kept = rows.filter(pl.col("Node").is_in(widest))  # a node takes no less time than those in it
    for node, parent, thread, function, file, line, samples, own, total in kept.select(columns).iter_rows():
        text = f"{function} ({file}:{line})" if file else function or thread
        nodes[node] = {
            "name": names.setdefault(text, len(names)),
            "kind": KIND_NAMES.index("python"),
            "value": round(1e3 * total),
            "self": round(1e3 * own),
            "count": samples,
            "at": 0,
            "children": [],
        }
        nodes[parent]["children"].append(nodes[node])
    root["value"] = sum(child["value"] for child in root["children"])
    return {"root": root, "names": list(names)}


def _parents(spans: LaneSpans) -> Array:
    """Return for each span the place of the span around it, on the lane one up of its track; −1 for the outermost."""
    place = {(lane.track, lane.crossing, lane.depth): index for index, lane in enumerate(spans.lanes)}
    parent = np.full(len(spans.start), -1, np.int64)
    for (track, crossing, depth), lane in place.items():
        mine = slice(int(spans.edges[lane]), int(spans.edges[lane + 1]))
        above = next((place[found] for up in range(depth) if (found := (track, crossing, depth - 1 - up)) in place), -1)
        if above < 0:
            continue
        low, high = int(spans.edges[above]), int(spans.edges[above + 1])
        around = low + np.searchsorted(spans.start[low:high], spans.start[mine], side="right") - 1
        inside = (around >= low) & (spans.start[mine] < (spans.start + spans.dur)[np.maximum(around, low)])
        parent[mine] = np.where(inside, around, -1)
    return parent


def _paths(spans: LaneSpans) -> Array:
    """Number the spans so that those of equal names in equal surroundings share a number.

    Each step has a name of its own, so steps do not count as surroundings: a step has the number of what it lies in.
    """
    parent = _parents(spans)
    path = np.full(len(spans.start), -1, np.int64)
    lane = np.repeat(np.arange(len(spans.lanes)), np.diff(spans.edges))
    depth = np.array([one.depth for one in spans.lanes], np.int64)[lane]
    known = 0
    for level in range(int(depth.max(initial=-1)) + 1):
        rows = np.flatnonzero(depth == level)
        above = np.where(parent[rows] >= 0, path[np.maximum(parent[rows], 0)], -1)
        # Spans of different names or kinds never share a number; as one integer, they are sorted many times faster.
        key = ((above + 1) * len(spans.names) + spans.name[rows].astype(np.int64)) * len(KIND_NAMES) + spans.kind[rows]
        _, numbers = np.unique(key, return_inverse=True)
        path[rows] = np.where(spans.kind[rows] == _STEP, above, known + numbers)
        known += int(numbers.max(initial=-1)) + 1
    return path

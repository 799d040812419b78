"""The timeline that one file holds: the spans of all ranks, their overlays and arrows, as many as it has room for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.errors import InputError
from stepscope.report.page.content import Shown, median_step
from stepscope.report.page.lane_spans import Array, LaneSpans, lane_spans
from stepscope.report.page.overlays import overlay_spans
from stepscope.report.page.rank_timelines import lanes_shown
from stepscope.report.page.span_flows import span_flows
from stepscope.report.page.span_modules import span_modules
from stepscope.run import RankRun
from stepscope.trace.tables import columns_of

#: Spans of a timeline in one file; of more, those of the median and the slowest step, and of these the longest.
MOST_SPANS = 250_000
#: Spans of a rank up to which all is computed and read; of more, what the overview needs.
MOST_ANALYSED = 2_000_000
#: So many times the median step is slow.
_FAR_SLOWER = 1.5
#: Pieces of overlays, and arrows.
_MOST_PIECES, _MOST_ARROWS = 100_000, 100_000
#: Ranks whose spans are in one file.
MOST_RANKS = 64


class FileTimeline:
    """Collects the spans of the ranks of a run. Every rank has an equal share of the room.

    Args:
        shown: The rank that the page shows first.
        head: The content of the page; its timeline and its names are completed.
        spans: The timeline of that rank.
    """

    def __init__(self, shown: Shown, head: dict[str, Any], spans: LaneSpans) -> None:
        self._shown = shown
        self._timeline = head["timeline"]
        self._names = head["names"]
        self._codes = {name: code for code, name in enumerate(self._names)}
        self._parts: list[LaneSpans] = []
        self._arrows: list[npt.NDArray[np.int64]] = []
        #: The modules of all ranks, and of each span 1 + the place of its own, 0 where it is not known.
        self._modules: dict[str, int] = {}
        self._of_module: list[Array] = []
        self._count = self._spans = 0
        self._windows = typical_steps(self._timeline["steps"]) or [(0, self._timeline["total"])]
        self._cut = head["cut"]
        ranks = {rank.rank: rank for rank in shown.run.ranks}
        chosen = _nearest([row["rank"] for row in self._timeline["ranks"]], shown.rank.rank)
        self._share = max(1, len(chosen))
        self._timeline["of"] = 0
        for row in self._timeline["ranks"]:
            number = row["rank"]
            if number == shown.rank.rank:
                self._add(row, shown.rank, spans)
            elif number not in chosen:
                row["absent"] = f"this file holds {MOST_RANKS} ranks; `stepscope view` shows all"
            else:
                self._add_other(row, ranks[number])
        windows = self._windows if self._cut else [(0, self._timeline["total"])]
        begin, end = windows[0][0], windows[-1][1]
        self._timeline.update(begin=begin, end=end, windows=windows, spans=self._spans, modules=list(self._modules))

    def _add_other(self, row: dict[str, Any], rank: RankRun) -> None:
        """Add a rank beside the one that the page shows; one that cannot be read says why."""
        try:
            spans = lane_spans(rank.shown, typical_times(rank))
            row["read"] = self._shown.clocks.read(rank.rank, rank.shown, spans.origin, spans.lanes)
            self._add(row, rank, spans)
        except InputError as error:
            row["absent"] = error.message
        finally:
            rank.release()

    def _add(self, row: dict[str, Any], rank: RankRun, spans: LaneSpans) -> None:
        read = row["read"]
        kept = spans
        if len(spans.start) > MOST_SPANS // self._share:
            self._cut = True
            kept = spans.longest(self._own_windows(read), MOST_SPANS // self._share)
        self._timeline["of"] += number_of_spans(rank)
        first = self._count
        read["over"] = len(read["lanes"])
        parts = [kept]
        if is_large(rank):
            held = typical_times(rank) or [(0, self._timeline["total"])]
            read |= {"withoutOverlays": True, "busyOf": sum(end - begin for begin, end in held)}
        else:
            over = overlay_spans(rank.shown, spans.lanes, spans.origin, spans.total)
            windows = self._own_windows(read) if self._cut else [(0, spans.total)]
            parts.append(over.longest(windows, _MOST_PIECES // self._share))
            read["lanes"] += lanes_shown(over.lanes)
        self._spans += len(kept.start)
        for part in parts:
            self._parts.append(part)
            self._of_module.append(self._modules_of(rank, part))
            self._count += len(part.start)
        arrows = span_flows(rank.shown, kept.row)
        columns = np.stack([arrows.begin + first, arrows.end + first, arrows.kind])
        self._arrows.append(columns[:, : _MOST_ARROWS // self._share])

    def _own_windows(self, read: dict[str, Any]) -> list[tuple[int, int]]:
        """Return the windows of the file by the clock of a rank."""
        slope = 1 + read["drift"]
        return [
            (round((begin - read["shift"]) / slope), round((end - read["shift"]) / slope))
            for begin, end in self._windows
        ]

    def columns(self) -> list[tuple[str, npt.NDArray[Any]]]:
        """Return the columns of all spans, rank after rank, and those of the arrows."""
        edges = np.cumsum([0, *(len(part.lanes) for part in self._parts)])
        lane, first = [], []
        for part, before in zip(self._parts, edges, strict=False):
            own = np.repeat(np.arange(len(part.lanes)), np.diff(part.edges))
            lane.append(own + before)
            first.append(np.r_[True, own[1:] != own[:-1]][: len(own)])
        begins = np.concatenate(first)
        starts = np.concatenate([part.start for part in self._parts])
        start = np.diff(starts, prepend=0)
        start[begins] = starts[begins]
        joined = {
            name: np.concatenate([getattr(part, name) for part in self._parts]) for name in ("dur", "kind", "row")
        }
        arrows = np.concatenate(self._arrows, axis=1)
        return [
            ("lane", np.concatenate(lane).astype("<u4")),
            ("start", start.astype("<i8")),
            ("dur", joined["dur"].astype("<i8")),
            ("name", np.concatenate([self._coded(part) for part in self._parts]).astype("<u4")),
            ("kind", joined["kind"].astype("u1")),
            ("row", (joined["row"] + 1).astype("<u4")),
            ("module", np.concatenate(self._of_module).astype("<u4")),
            ("begin", np.diff(arrows[0], prepend=0).astype("<u4")),
            ("end", arrows[1].astype("<u4")),
            ("arrow", arrows[2].astype("u1")),
        ]

    def _modules_of(self, rank: RankRun, part: LaneSpans) -> Array:
        """Return the module of each span as a number of the page's modules; of a large rank none is known."""
        if is_large(rank):
            return np.zeros(len(part.row), np.int64)
        found = span_modules(rank.shown, part.row)
        codes = [0, *(1 + self._modules.setdefault(text, len(self._modules)) for text in found.texts)]
        return np.array(codes)[found.number]

    def _coded(self, part: LaneSpans) -> Array:
        """Return the name of each span as a number of the page's names."""
        codes = np.array([self._codes.setdefault(name, len(self._codes)) for name in part.names], np.int64)
        self._names += list(self._codes)[len(self._names) :]
        return codes[part.name] if len(codes) else np.zeros(0, np.int64)


def _nearest(numbers: list[int], first: int) -> set[int]:
    """Return the ranks whose spans go into the file: those next to the one that the page shows."""
    place = numbers.index(first)
    low = max(0, min(place - MOST_RANKS // 2, len(numbers) - MOST_RANKS))
    return set(numbers[low : low + MOST_RANKS])


def number_of_spans(rank: RankRun) -> int:
    """Return how many spans a rank has."""
    return len(columns_of(rank.shown, "spans", "id"))


def is_large(rank: RankRun) -> bool:
    """Return whether a rank has more spans than one file is made of in seconds."""
    return number_of_spans(rank) > MOST_ANALYSED


def typical_times(rank: RankRun) -> list[tuple[int, int]]:
    """Return of a large rank the times of :func:`typical_steps`, ns since the Unix epoch; else none, which is all."""
    if not is_large(rank):
        return []
    rows = columns_of(rank.shown, "steps", "ts", "dur").sort("ts").iter_rows()
    return typical_steps([{"start": start, "dur": dur} for start, dur in rows])


def typical_steps(steps: list[dict[str, int]]) -> list[tuple[int, int]]:
    """Return start and end of the median step, and of the slowest where that is far slower; of no steps nothing."""
    if not steps:
        return []
    begin, end = median_step(steps)
    slowest = max(steps, key=lambda step: step["dur"])
    far = slowest["dur"] > _FAR_SLOWER * (end - begin)
    return sorted({(begin, end), *([(slowest["start"], slowest["start"] + slowest["dur"])] if far else [])})

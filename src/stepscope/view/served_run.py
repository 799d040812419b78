"""The timelines behind the page: pyramids of each rank, opened or built when they are first asked for."""

from __future__ import annotations

import hashlib
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from threading import RLock, Thread
from typing import Any, NamedTuple

import msgspec
import numpy as np

from stepscope.analyse.quantities import duration_text
from stepscope.errors import StepscopeError, UsageError
from stepscope.report.page.content import VERSION, Shown, content_head, content_part, result_columns
from stepscope.report.page.lane_spans import LaneSpans, lane_spans
from stepscope.report.page.overlays import SHOWN_KINDS, overlay_spans
from stepscope.report.page.rank_timelines import lanes_shown
from stepscope.report.page.span_flows import LAUNCH, SpanFlows, span_flows
from stepscope.report.page.span_modules import SpanModules, span_modules
from stepscope.report.protocol import Source
from stepscope.report.safe_text import json_bytes
from stepscope.report.timeline.job_timeline import within
from stepscope.report.timeline.perfetto.writer import Pftrace
from stepscope.run import Run
from stepscope.trace.run_directory import write_atomically
from stepscope.trace.schema import FLOW_KINDS
from stepscope.trace.tables import columns_of
from stepscope.view.pyramid import Array, Numbering, Pyramid, build, encode

_MOST_LANES, _MOST_PIXELS, LATEST = 512, 8192, 2**62
_FOLDER, _OVERLAYS, _CONTENT = "timeline", "timeline_overlays", "content.json"
#: What the page begins with, among the parts of its content.
_BEGINNING = "beginning"
#: Ranks whose timelines are open at one time: each has some fifty files in memory, of which a process may have 65,530.
_MOST_RANKS = 64
#: Of a timeline of so many spans, pictures are there before its level of detail.
_MANY_SPANS = 1_000_000
#: Arrows and kernels of one span that are told.
_MOST_FLOWS, _MOST_KERNELS = 500, 50
#: Spans of a window as a file for Perfetto.
_MOST_SLICES = 2_000_000
#: Details of a span: table, and the columns that are shown.
_DETAILS = (
    ("operators", ("shapes", "dtypes", "module", "flops", "concrete")),
    ("kernels", ("grid", "block", "registers", "shared_memory", "occupancy", "bytes", "bandwidth", "stream")),
    ("collectives", ("operation", "group", "group_size", "dtype", "bytes_in", "bytes_out", "sequence")),
    ("tasks", ("type", "core", "input_shapes", "output_shapes")),
)


class Searched(NamedTuple):
    """Spans that are searched: of these names, lanes and kinds (any lane or kind if none is given); times in ns."""

    names: frozenset[int]
    lanes: frozenset[int] = frozenset()
    kinds: frozenset[int] = frozenset()
    least: int = 0
    most: int = LATEST
    module: str = ""


class _KeptContent(msgspec.Struct):
    """The parts of a page that are kept, and what they were made of."""

    made_of: str
    parts: dict[str, dict[str, Any]]


class ServedRank:
    """What the server answers of one rank.

    Args:
        shown: The rank.
        temporary: Directory for what cannot be kept beside the rank's tables.
    """

    def __init__(self, shown: Shown, temporary: Path) -> None:
        self._shown = shown
        self._rank = shown.rank
        self._temporary = temporary
        self._found: dict[Searched, Array] = {}
        self._pyramids: dict[str, Pyramid] = {}
        #: What makes the level of detail of large timelines; it begins when a picture is there.
        self._unfinished: list[Thread] = []
        self._lock = RLock()
        #: Held while something is analysed, which pictures of the timeline do not wait for.
        self._computing = RLock()

    @property
    def pyramid(self) -> Pyramid:
        """The level of detail of the rank."""
        return self._opened(_FOLDER, self._lock, lambda: lane_spans(self._rank.shown))

    @property
    def overlays(self) -> Pyramid:
        """What is drawn over its timeline; its lanes, names and spans are numbered behind those of the timeline."""
        head = self.pyramid.head
        spans = partial(overlay_spans, self._rank.shown, head.lanes, head.origin, head.total)
        return self._opened(_OVERLAYS, self._computing, spans)

    def _opened(self, folder: str, lock: RLock, spans: Callable[[], LaneSpans]) -> Pyramid:
        """Return a pyramid: beside the rank's tables, or in the temporary directory if nothing can be kept there."""
        with lock:  # what is being written must not be read
            if folder not in self._pyramids:
                self._pyramids[folder] = self._made(folder, spans)
            return self._pyramids[folder]

    def _made(self, folder: str, spans: Callable[[], LaneSpans]) -> Pyramid:
        made_of, directory = str(self._rank.made_of), self._rank.directory.path / folder
        kept = Pyramid.of(directory, made_of)
        if kept is not None:
            return kept
        found = spans()
        if len(found.start) < _MANY_SPANS:
            return self._built(found, directory, made_of)
        leaf = Pyramid.leaf(found, made_of)

        def finish() -> None:
            with suppress(OSError):  # pictures go on without levels; or the server has ended
                built = self._built(found, directory, made_of)
                if self._pyramids.get(folder) is leaf:
                    self._pyramids[folder] = built

        self._unfinished.append(Thread(target=finish, daemon=True))
        return leaf

    def _built(self, spans: LaneSpans, directory: Path, made_of: str) -> Pyramid:
        try:
            if not directory.parent.is_dir():  # a capture is read in place, and nothing is written beside it
                raise FileNotFoundError(directory.parent)
            build(spans, directory, made_of)
        except OSError:
            directory = self._temporary / f"rank{self._rank.rank}-{directory.name}"
            build(spans, directory, made_of)
        return Pyramid.built(directory)

    def release(self) -> None:
        """Close what is open; it is opened again when it is asked for."""
        with self._lock:
            self._pyramids.clear()
            self.__dict__.pop("flows", None)
            self._rank.release()

    def lanes(self) -> dict[str, Any]:
        """Return the lanes and steps of the rank, its names, and how its times become those of the timeline."""
        head = self.pyramid.head
        read = self._shown.clocks.read(self._rank.rank, self._rank.shown, head.origin, head.lanes)
        return {**read, "names": head.names}

    def window(self, a: int, b: int) -> Source:
        """Return what a timeline shows of the rank between two times, on the clock of the job."""
        origin, clock = self.pyramid.head.origin, self._shown.clocks.clock(self._rank.rank)
        tables = within(self._rank.shown, origin + a, origin + b)
        label = clock.label(self._rank.rank) if self._shown.job is not None else ""
        return Source(clock.on_job(tables), {}, self._rank.manifest, label)

    def slices(self, a: int, b: int) -> int:
        """Return how many spans touch a range of time."""
        places = (self.pyramid.between(lane, a, b) for lane in range(len(self.pyramid.head.lanes)))
        return sum(high - low for low, high in places)

    def overlay_lanes(self) -> dict[str, Any]:
        """Return the lanes and names of what is drawn over the timeline."""
        head = self.overlays.head
        return {"lanes": lanes_shown(head.lanes), "names": head.names}

    @property
    def content(self) -> dict[str, Any]:
        """What the page begins with, and the parts that are known; those of a run of one rank are kept."""
        with self._lock:
            if _BEGINNING not in self._parts_known:
                self._parts_known[_BEGINNING] = content_head(self._shown, self.pyramid.spans)
                self._keep()
        parts = list(self._parts_known.items())  # another thread may add one
        parts.sort(key=lambda one: one[0] != _BEGINNING)
        return {key: value for _, one in parts for key, value in one.items()}

    def part(self, name: str) -> dict[str, Any]:
        """Return a part of the content, which is computed when it is first asked for.

        Raises:
            UsageError: The page has no part of that name.
        """
        spans = self.pyramid.spans
        with self._computing:
            if name not in self._parts_known:
                self._parts_known[name] = content_part(self._shown, name, spans)
                self._keep()
            return self._parts_known[name]

    @cached_property
    def _parts_known(self) -> dict[str, dict[str, Any]]:
        with suppress(OSError, msgspec.MsgspecError):  # missing or damaged
            kept = msgspec.json.decode(self._kept_at.read_bytes(), type=_KeptContent)
            if kept.made_of == self._content_made_of:
                return kept.parts
        return {}

    def _keep(self) -> None:
        if (made_of := self._content_made_of) is not None and self._kept_at.parent.is_dir():
            with suppress(OSError):  # a run that cannot be written to can still be read
                write_atomically(self._kept_at, json_bytes({"made_of": made_of, "parts": dict(self._parts_known)}))

    @property
    def _kept_at(self) -> Path:
        return self._rank.directory.path / _FOLDER / _CONTENT

    @property
    def _content_made_of(self) -> str | None:
        """What the content is made of: the tables, and what is said of the rank; None if it is not kept."""
        made_of, manifest = self._rank.made_of, self._rank.manifest
        if made_of is None or self._shown.job is not None or manifest.get("status") == "recording":
            return None
        said = json_bytes([VERSION, made_of, str(self._rank.directory.path), manifest])
        return hashlib.sha256(said).hexdigest()

    def result(self, name: str) -> dict[str, Any]:
        """Return the rows of a result.

        Raises:
            UsageError: No result has that name.
        """
        with self._computing:
            return result_columns(self._shown, name, 2_000_000)

    def frame(self, lanes: list[int], a: int, b: int, pixels: int) -> bytes:
        """Return a picture of some lanes as bytes: of the timeline, then of the overlays, each if it has some of them.

        Raises:
            UsageError: The request is not one of the page.
        """
        if not 0 < pixels <= _MOST_PIXELS:
            message = f"A picture has 1 to {_MOST_PIXELS} pixels."
            raise UsageError(message, "")
        pictures = [
            encode(part.pyramid, part.pyramid.picture(part.lanes, a, b, pixels), part.lanes, part.add)
            for part in self._parts(lanes, a, b)
        ]
        while self._unfinished:
            with suppress(IndexError):  # another request took it
                self._unfinished.pop().start()
        return b"".join(pictures)

    def _parts(self, lanes: list[int], a: int, b: int) -> Iterator[_LanesOf]:
        """Yield timeline and overlays, each with those of the lanes that it has.

        Raises:
            UsageError: The timeline does not have these lanes or times.
        """
        head = self.pyramid.head
        own, over = (
            [lane for lane in lanes if lane < len(head.lanes)],
            [lane for lane in lanes if lane >= len(head.lanes)],
        )
        known = len(head.lanes) + (len(self.overlays.head.lanes) if over else 0)
        if len(lanes) > _MOST_LANES or not all(0 <= lane < known for lane in lanes) or not -LATEST < a < b < LATEST:
            message = "This timeline does not have these lanes or times."
            raise UsageError(message, "")
        if own:
            yield _LanesOf(self.pyramid, own, Numbering(self._rank.rank))
        if over:
            yield _LanesOf(self.overlays, [lane - len(head.lanes) for lane in over], self._behind)

    @property
    def _behind(self) -> Numbering:
        """What the numbers of overlays begin with."""
        pyramid = self.pyramid
        return Numbering(self._rank.rank, len(pyramid.head.lanes), len(pyramid.start), len(pyramid.head.names))

    def range(self, lanes: list[int], a: int, b: int) -> list[dict[str, int]]:
        """Return by name number, time, self, least and most of the spans of a range."""
        rows: list[dict[str, int]] = []
        for part in self._parts(lanes, a, b):
            found = part.pyramid.statistics(part.lanes, a, b)
            found["name"] = found["name"] + part.add.name
            columns = {name: values.tolist() for name, values in found.items()}
            rows += [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return rows

    def count(self, wanted: Searched) -> int:
        """Return the number of spans that are searched."""
        return len(self._places(wanted))

    def bins(self, wanted: Searched, a: int, b: int, pixels: int) -> list[int]:
        """Return how many of the spans that are searched start in each of so many equal parts of a range of time.

        Raises:
            UsageError: The request is not one of the page.
        """
        if not 0 < pixels <= _MOST_PIXELS or a >= b:
            message = f"A picture has 1 to {_MOST_PIXELS} pixels."
            raise UsageError(message, "")
        starts = self.pyramid.start[self._places(wanted)]
        place = (starts[(starts >= a) & (starts < b)] - a) // -(-(b - a) // pixels)
        return [int(number) for number in np.bincount(place, minlength=pixels)]

    def find(self, wanted: Searched, time: int, *, back: bool) -> dict[str, int] | None:
        """Return the first span that is searched and starts after a time, or the last before; None at the end."""
        places = self._places(wanted)
        starts = self.pyramid.start[places]
        index = int(np.searchsorted(starts, time, side="left" if back else "right")) - int(back)
        return self.span_at(int(places[index])) if 0 <= index < len(places) else None

    def _places(self, wanted: Searched) -> Array:
        pyramid = self.pyramid
        known = ((wanted.names, len(pyramid.head.names)), (wanted.lanes, len(pyramid.head.lanes)))
        if not all(0 <= number < count for numbers, count in known for number in numbers):
            message = "This timeline does not have these names or lanes."
            raise UsageError(message, "")
        if wanted not in self._found:
            places = pyramid.places(sorted(wanted.names), sorted(wanted.lanes) or range(len(pyramid.head.lanes)))
            dur = pyramid.dur[places]
            keep = (dur >= wanted.least) & (dur <= wanted.most)
            if wanted.kinds:
                keep &= np.isin(pyramid.kind[places], list(wanted.kinds))
            if wanted.module:
                keep &= self.modules.holding(wanted.module)[places]
            self._found = {wanted: places[keep]}
        return self._found[wanted]

    def bits(self, wanted: Searched) -> bytes:
        """Return a bit for each place of the timeline, from the lowest of the first byte on: 1 if it is searched."""
        found = np.zeros(len(self.pyramid.start), np.bool_)
        found[self._places(wanted)] = True
        return np.packbits(found, bitorder="little").tobytes()

    def span_at(self, place: int) -> dict[str, int]:
        """Return the span at a place of the timeline or, behind its last, of the overlays.

        Raises:
            UsageError: There is none.
        """
        pyramid, add = self.pyramid, Numbering()
        if place >= len(pyramid.start):
            pyramid, add = self.overlays, self._behind
        at = place - add.place
        if not 0 <= at < len(pyramid.start):
            message = "This timeline does not have this span."
            raise UsageError(message, "")
        lane = int(np.searchsorted(pyramid.edges, at, side="right")) - 1 + add.lane
        start, dur, name, kind = (
            int(column[at]) for column in (pyramid.start, pyramid.dur, pyramid.name, pyramid.kind)
        )
        return {"place": place, "lane": lane, "start": start, "dur": dur, "name": name + add.name, "kind": kind}

    def neighbour(self, place: int, which: str) -> dict[str, int] | None:
        """Return a span beside another: next, previous, same, same-back, parent or child; None if there is none."""
        span, pyramid = self.span_at(place), self.pyramid
        if which in ("next", "previous"):
            other = place + (1 if which == "next" else -1)
            inside = 0 <= other < len(pyramid.start) + len(self.overlays.start if place >= len(pyramid.start) else ())
            beside = self.span_at(other) if inside else span
            return beside if inside and beside["lane"] == span["lane"] else None
        if place >= len(pyramid.start):
            return None
        if which in ("same", "same-back"):
            return self.find(Searched(frozenset({span["name"]})), span["start"], back=which == "same-back")
        mine = pyramid.head.lanes[span["lane"]]
        wanted = (mine.track, mine.crossing, mine.depth + (1 if which == "child" else -1))
        lanes = (
            index for index, lane in enumerate(pyramid.head.lanes) if (lane.track, lane.crossing, lane.depth) == wanted
        )
        lane = next(lanes, None)
        if lane is None:
            return None
        end = span["start"] + (span["dur"] if which == "child" else 1)
        low, high = pyramid.between(lane, span["start"], end)
        return self.span_at(low) if low < high else None

    def facts(self, place: int) -> dict[str, Any]:
        """Return a span and all that is known of it, as names and texts; its arrows, and the kernels launched in it."""
        span, pyramid = self.span_at(place), self.pyramid
        times = [
            ("kind", SHOWN_KINDS[span["kind"]]),
            ("start", f"{duration_text(span['start'])} after the first"),
            ("duration", f"{duration_text(span['dur'])} ({span['dur']:,} ns)"),
        ]
        if place >= len(pyramid.start):
            lane = self.overlays.head.lanes[span["lane"] - len(pyramid.head.lanes)]
            return {
                "span": span,
                "facts": [*times, ("over", f"{lane.group} · {lane.name}")],
                "flows": [],
                "kernels": None,
            }
        lane, row = pyramid.head.lanes[span["lane"]], int(pyramid.row[place])
        parent = self.neighbour(place, "parent")
        facts = [
            *times,
            ("lane", f"{lane.group} · {lane.name}"),
            *([("inside", pyramid.head.names[parent["name"]])] if parent else []),
            *self._details(row),
            ("row of spans", str(row)),
        ]
        return {"span": span, "facts": facts, "flows": list(self._arrows(place)), "kernels": self._launched(span)}

    @cached_property
    def modules(self) -> SpanModules:
        """The modules of its spans."""
        with self._computing:
            return span_modules(self._rank.shown, np.asarray(self.pyramid.row))

    @cached_property
    def flows(self) -> SpanFlows:
        """The arrows between its spans."""
        return span_flows(self._rank.shown, np.asarray(self.pyramid.row))

    def _arrows(self, place: int) -> Iterator[dict[str, Any]]:
        leaving, arriving = self.flows.of(place)
        for numbers, ends in ((leaving, self.flows.end), (arriving, self.flows.begin)):
            for number in numbers[:_MOST_FLOWS].tolist():
                kind = FLOW_KINDS[int(self.flows.kind[number])]
                yield {"kind": kind, "leaves": ends is self.flows.end, "span": self.span_at(int(ends[number]))}

    def chain(self, place: int) -> list[dict[str, Any]]:
        """Return the arrows from a span onwards, and those that lead to it: the nearest 500."""
        flows = self.flows
        return [
            {
                "kind": FLOW_KINDS[int(flows.kind[number])],
                "from": self.span_at(int(flows.begin[number])),
                "to": self.span_at(int(flows.end[number])),
            }
            for number in flows.chain(place, _MOST_FLOWS).tolist()
        ]

    def _launched(self, span: dict[str, int]) -> dict[str, Any] | None:
        """Return the device work that was launched inside a span of a host thread: number, time, and the longest."""
        pyramid, flows = self.pyramid, self.flows
        mine = pyramid.head.lanes[span["lane"]]
        low, high = span["start"], span["start"] + span["dur"]
        same = [number for number, lane in enumerate(pyramid.head.lanes) if lane.track == mine.track]
        ranges = [
            pyramid.between(lane, low, max(high, low + 1))
            for lane in same
            if pyramid.head.lanes[lane].depth >= mine.depth
        ]
        inside = [np.arange(*np.searchsorted(flows.begin, places)) for places in ranges]
        numbers = np.concatenate(inside) if inside else np.zeros(0, np.int64)
        begin = flows.begin[numbers]
        whole = (pyramid.start[begin] >= low) & (pyramid.start[begin] + pyramid.dur[begin] <= high)
        work = np.unique(flows.end[numbers[whole & (flows.kind[numbers] == LAUNCH)]])
        if not len(work):
            return None
        dur = pyramid.dur[work]
        longest = work[np.argsort(-dur, kind="stable")][:_MOST_KERNELS]
        return {"count": len(work), "total": int(dur.sum()), "longest": [self.span_at(int(one)) for one in longest]}

    def _details(self, row: int) -> list[tuple[str, str]]:
        found = []
        for table, columns in _DETAILS:
            rows = columns_of(self._rank.shown, table, "span", *columns)
            for values in rows.filter(rows["span"] == row).iter_rows(named=True):
                found += [(name, str(value)) for name, value in values.items() if name != "span" and value is not None]
        return found


class _LanesOf(NamedTuple):
    """One of the timelines of a rank: some of its lanes, and how its numbers go on behind those of the others."""

    pyramid: Pyramid
    lanes: Sequence[int]
    add: Numbering


class ServedRun:
    """The timelines of a run's ranks, by number.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="stepscope-")
        self._run = run
        self._used: OrderedDict[int, ServedRank] = OrderedDict()
        self._lock = RLock()

    @cached_property
    def _first(self) -> Shown:
        return Shown.of(self._run)

    @cached_property
    def _ranks(self) -> dict[int, ServedRank]:
        first, folder = self._first, Path(self._temporary.name)
        return {
            rank.rank: ServedRank(Shown(self._run, rank, first.job, first.clocks), folder) for rank in self._run.ranks
        }

    @property
    def said(self) -> dict[str, Any]:
        """What the list of runs says of it, from its manifest: nothing is read or computed."""
        rank = self._run.ranks[0]
        about = {"name": self._run.path.name, "ranks": len(self._run.ranks)}
        try:
            manifest = rank.manifest
        except StepscopeError as error:
            return {**about, "status": error.message}
        steps = manifest.get("steps", {}).get("recorded")
        return {**about, "status": manifest.get("status"), "steps": steps, "host": manifest.get("host")}

    def prepare(self) -> None:
        """Make what the page begins with; what cannot be read is said when the page asks for it."""
        with suppress(StepscopeError):
            _ = self.of(None).content

    def again(self) -> dict[str, Any]:
        """Open the run again, as it is now: a run that is being recorded has grown; return the content of its page."""
        with self._lock:
            self._run = Run(self._run.path)
            self._used.clear()
            for name in ("_first", "_ranks"):
                self.__dict__.pop(name, None)
            return self.of(None).content

    def grown(self) -> int:
        """Return how many bytes the captures of the run have now."""
        captures = (path for rank in self._run.ranks for path in rank.directory.capture.rglob("*"))
        sizes = []
        for path in captures:
            with suppress(OSError):  # one may just be moved
                sizes.append(path.stat().st_size)
        return sum(sizes)

    def perfetto(self, windows: Sequence[tuple[int | None, int, int]]) -> bytes:
        """Return windows of ranks, each a rank with two times since its start, as one file in Perfetto's format.

        Raises:
            UsageError: It would hold too much.
        """
        count = sum(self.of(rank).slices(a, b) for rank, a, b in windows)
        if count > _MOST_SLICES:
            message = f"The window holds {count:,} spans; a file for Perfetto has room for {_MOST_SLICES:,}."
            raise UsageError(message, "Zoom in, or use `stepscope export --to pftrace`.")
        with tempfile.TemporaryDirectory(dir=self._temporary.name) as folder:
            [path] = Pftrace().write_ranks((self.of(rank).window(a, b) for rank, a, b in windows), Path(folder))
            return path.read_bytes()

    def close(self) -> None:
        """Remove what was kept for the time of the server."""
        self.__dict__.pop("_ranks", None)
        self._temporary.cleanup()

    def of(self, rank: int | None) -> ServedRank:
        """Return a rank's; for None that of the rank to look at first.

        Raises:
            UsageError: The run does not have this rank.
        """
        with self._lock:
            if rank is None:
                rank = self._first.rank.rank
            if rank not in self._ranks:
                message = f"This run has no rank {rank}."
                raise UsageError(message, "")
            found = self._used[rank] = self._ranks[rank]
            self._used.move_to_end(rank)
            unused = self._used.popitem(last=False)[1] if len(self._used) > _MOST_RANKS else None
        if unused is not None:
            unused.release()
        return found

"""A job put together again from what each rank does itself and what it waits for: the step, had some of it taken less.

A rank works, arrives at a collective, works on, and waits for the collective's end where it needs it: where nothing
computes any more while the collective runs. The collective ends some time after its last rank has arrived. With the
recorded times of all these, the recorded steps come out again; with other times, the steps that the job would have had.
"""

from __future__ import annotations

from bisect import bisect_right
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.cluster.job_tables import JobTables
from stepscope.cluster.meetings import POINT_TO_POINT, plain_name
from stepscope.cluster.what_if.event_graph import EventGraph, Floats, Ints

Frame: TypeAlias = pl.DataFrame
Mask: TypeAlias = npt.NDArray[np.bool_]

#: What happens on a rank, one after the other: it arrives at a collective, the collective has ended and it goes on, a
#: step has ended.
_ARRIVE, _GO_ON, _STEP = 0, 1, 2
#: A collective that starts so soon after the one before it in its group was ready earlier, and queued behind it, ns.
_QUEUED = 10_000
#: Where nothing computes for less than this share of a collective, nobody waits for it: kernels have gaps.
_NO_WAIT = 0.02
#: An end that lies so much before the last arrival says that this rank did not wait for it, ns.
_BEFORE = 1_000


@dataclass(frozen=True)
class _Chain:
    """What happens on the ranks, in order; an item for each event.

    Attributes:
        place: Place of the rank in :attr:`Replay.ranks`.
        kind: What happens.
        row: Row of the collectives, or step.
        at: When, in ns of the job.
        work: What the rank does itself before it, since the event before, ns.
    """

    place: Ints
    kind: Ints
    row: Ints
    at: Floats
    work: Floats


class Replay:
    """The steps of a job, which other times can be put into.

    Args:
        tables: The tables of the job.
        meetings: Its collectives with ``meeting``, as :func:`stepscope.cluster.meetings.meetings` gives them.
        arrivals: When each rank arrives at each meeting, on the job's clock, and when it ends there.

    A collective that queued behind another one of its group counts as ready when it started; :meth:`with_ready` puts
    other times.

    Raises:
        ValueError: No rank has a known clock and a step that all such ranks have, or meetings contradict each other.
    """

    def __init__(self, tables: JobTables, meetings: Frame, arrivals: Frame) -> None:
        rows = _collectives(meetings, arrivals)
        steps = _steps(tables.steps, rows)
        if not len(steps):
            msg = "no rank has a known clock and a step that all ranks with a known clock have"
            raise ValueError(msg)
        self.steps = steps["step"].unique().sort()
        #: Ranks with a known clock; the others are left out.
        self.ranks = steps["rank"].unique().sort()
        #: The collectives of these ranks and steps, in ns since the first step of the job: meeting, rank, step, group,
        #: operation, bytes, arrival, end, transit (since the last arrival; null if not known), launch, exposed.
        self.rows, self._steps = _since(steps["begin"].min(), rows, steps)  # type: ignore[arg-type]
        #: Start of the first step by the clock of the job, ns since the epoch.
        self.zero: int = steps["begin"].min()  # type: ignore[assignment]
        if not len(self.rows):
            msg = "no collective of these steps is known on the clock of the job"
            raise ValueError(msg)
        self._origin = self._steps.group_by("rank", maintain_order=True).agg(pl.col("begin").min())["begin"].to_numpy()
        self._queued = self._behind()
        # Times that were rounded may begin what queued before the end of what it queued behind.
        arrival, before = self.rows["arrival"].to_numpy(), self.rows["end"].to_numpy()[self._queued]
        since = np.where(self._queued >= 0, np.maximum(arrival, before), arrival)
        self.rows = self.rows.with_columns(arrival=pl.Series(since))
        self._chain = self._events(self.rows["arrival"].to_numpy())
        self._build()

    def with_ready(self, known: Floats, latest: Floats, *, early: bool) -> Replay:
        """Return the same job with other times at which collectives that queued were ready.

        Collectives of a group are ready one after the other.

        Args:
            known: When each collective was ready, as far as it is known; NaN elsewhere.
            latest: Until when the others were ready; NaN where that is when they started.
            early: Take these for ready since they were launched; otherwise as late as possible.
        """
        arrival, queued = self.rows["arrival"].to_numpy(), self._queued >= 0
        launch = self.rows["launch"].fill_null(-np.inf).to_numpy()
        first = self._in_order(np.where(queued, launch, arrival))
        exact = np.fmax(known, first)
        low = self._in_order(np.where(np.isnan(known), first, exact))
        high = self._in_order(np.where(np.isnan(known), np.fmin(latest, arrival), exact), back=True)
        other = copy(self)
        other.__dict__.pop("recorded", None)
        other.__dict__.pop("segments", None)
        ready = low if early else np.maximum(low, high)
        other._chain = other._events(np.where(queued, np.minimum(ready, arrival), arrival))
        other._build()
        return other

    def _in_order(self, times: Floats, *, back: bool = False) -> Floats:
        """Return times of collectives, each not before that of the one before it in its group; or, back, not after."""
        of_group = ("rank", "group")
        frame = self.rows.select(*of_group, time=pl.Series(times))
        one = pl.col("time").cum_min(reverse=True) if back else pl.col("time").cum_max()
        return frame.select(one.over(of_group))["time"].to_numpy()

    def likely_ready(self, stage: dict[int, int]) -> tuple[Floats, Floats]:
        """Return when collectives that queued were ready, after ranks where they did not: NaN where none tells.

        Ranks of a stage compute the same part of their step before the same collective. Where it queued on all of them,
        the second is until when it was ready: on the rank that waited least for the collectives before it, it had
        computed that much when this one started.

        Args:
            stage: Stage of each rank; all are of one without an entry.
        """
        chain = self._chain
        arrives = chain.kind == _ARRIVE
        whole = np.cumsum(chain.work)
        of_rank = pl.col("rank").replace_strict(stage, default=-1, return_dtype=pl.Int64)
        of_step = ("rank", "step")
        queued = np.where(arrives, self._queued[np.where(arrives, chain.row, 0)] >= 0, False)  # noqa: FBT003
        frame = self.segments.with_columns(
            done=pl.Series(whole), row=pl.Series(chain.row), queued=pl.Series(queued), arrives=pl.Series(arrives)
        )
        # What a rank takes longer before its first collective, such as for its data, says nothing of the others.
        first = pl.col("done").filter("arrives").first().over(of_step)
        rest = pl.col("done").last().over(of_step) - first
        reached = frame.with_columns(first=first, rest=rest).filter("arrives")
        # The same collective of each rank: those of other groups come before and behind it as they had to wait.
        sort = self.rows.select(
            "operation",
            "bytes",
            members=pl.len().over("meeting"),
            number=pl.int_range(pl.len()).over("rank", "step", "group", "operation", "bytes"),
        )
        reached = pl.concat([reached, sort[reached["row"].to_numpy()]], how="horizontal")
        alike: list[str | pl.Expr] = [of_rank, *sort.columns]
        part = pl.when(pl.col("rest") > 0).then((pl.col("done") - pl.col("first")) / pl.col("rest"))
        least = part.min().over(*alike, "step").median().over(alike)
        usual = part.filter(~pl.col("queued")).median().over(alike)
        goal = reached.with_columns(
            (pl.col("first") + part * pl.col("rest")).alias(name) for name, part in (("usual", usual), ("least", least))
        ).filter("queued")
        begins = np.diff(chain.place, prepend=-1) > 0
        since = np.where(begins, self._origin[chain.place], np.concatenate([[0.0], chain.at[:-1]]))

        def when(name: str) -> Floats:
            ready = np.full(len(self.rows), np.nan)
            done = goal[name].fill_null(float("nan")).to_numpy()
            event = np.minimum(np.searchsorted(whole, done), len(whole) - 1)
            # Before a rank waits, it works.
            ready[goal["row"].to_numpy()] = since[event] + done - (whole - chain.work)[event]
            return ready

        return when("usual"), when("least")

    def _behind(self) -> Ints:
        """Return for each collective the row of the one that it queued behind; −1 if there is none."""
        keys = self.rows.with_row_index("row").with_columns(kernel=_kernel().rle_id())
        # Messages of one kernel queue together.
        heads = keys.unique("kernel", keep="first", maintain_order=True).with_columns(
            before=pl.col("row").cast(pl.Int64).shift().over("rank", "group"),
            since=pl.col("arrival") - pl.col("end").shift().over("rank", "group"),
        )
        keys = keys.join(heads.select("kernel", "before", "since"), on="kernel", how="left", maintain_order="left")
        # Without a name of its group, what all ranks take part in is of one group.
        known = pl.col("group").is_not_null() | (
            pl.col("meeting").is_not_null() & ~plain_name("operation").is_in(POINT_TO_POINT)
        )
        queued = pl.col("since").is_between(-_BEFORE, _QUEUED) & known
        return keys.select(pl.when(queued).then("before").otherwise(-1).fill_null(-1))["before"].to_numpy()

    def _events(self, ready: Floats) -> _Chain:
        """Return what happens on each rank in order, and the work in between; ``ready`` is when it arrives."""
        rows, steps = self.rows, self._steps
        place = {
            name: np.searchsorted(self.ranks.to_numpy(), frame["rank"].to_numpy())
            for name, frame in (("rows", rows), ("steps", steps))
        }
        arrival, end = rows["arrival"].to_numpy(), rows["end"].to_numpy()
        exposed = np.minimum(rows["exposed"].fill_null(rows["end"] - rows["arrival"]).to_numpy(), end - arrival)
        self._blocked = blocked = _blocked(place["rows"], arrival, end, exposed)
        number = np.arange(len(rows))
        waits = number[blocked > 0]
        where = np.concatenate([place["rows"], place["rows"][waits], place["steps"]])
        at = np.concatenate([ready, end[waits], steps["end"].to_numpy()])
        kind = np.repeat([_ARRIVE, _GO_ON, _STEP], [len(rows), len(waits), len(steps)])
        step = np.searchsorted(self.steps.to_numpy(), steps["step"].to_numpy())
        row = np.concatenate([number, waits, step])
        # At one moment: what an earlier collective ends comes before the arrival at a later one, a step's end last.
        order = np.lexsort((kind, np.where(kind == _STEP, len(rows), row), at, where))
        where, kind, row, at = where[order], kind[order], row[order], at[order]
        first = np.diff(where, prepend=-1) > 0
        since = np.where(first, self._origin[where], np.concatenate([[0.0], at[:-1]]))
        work = np.maximum(at - since, 0)
        spans = _Union(place["rows"][waits], end[waits] - blocked[waits], end[waits])
        waited = spans.until(where, at) - spans.until(where, np.minimum(since, at))
        # Only where the rank goes on after a collective is it known that it waited before.
        work[kind == _GO_ON] = np.maximum(work - waited, 0)[kind == _GO_ON]
        return _Chain(where, kind, row, at, work)

    def _build(self) -> None:
        """Join the events: the chain of each rank, collectives that queue, and those that meet."""
        chain, rows = self._chain, self.rows
        count, events = len(rows), len(chain.kind)
        of_arrival = np.empty(count, np.int64)
        of_arrival[chain.row[chain.kind == _ARRIVE]] = np.flatnonzero(chain.kind == _ARRIVE)
        arrivals, ends = events + np.arange(count), events + count + np.arange(count)
        meeting, met = np.unique(rows["meeting"].fill_null(-1).to_numpy(), return_inverse=True)
        meets = events + 2 * count + met
        origin = events + 2 * count + len(meeting)
        transit = rows["transit"].fill_null(float("nan")).to_numpy()
        self._joins = (rows["meeting"].is_not_null()).to_numpy() & (transit >= -_BEFORE)
        together = self._together(origin + 1)
        joins, alone = np.flatnonzero(self._joins), np.flatnonzero(~self._joins)
        dur = (rows["end"] - rows["arrival"]).to_numpy()
        #: What each collective takes once all its ranks are there; of one that waits for nobody, its duration.
        self.transit: Floats = np.where(self._joins, transit, dur)
        inner = np.flatnonzero(np.diff(chain.place, prepend=-1) == 0)
        start = np.flatnonzero(np.diff(chain.place, prepend=-1) > 0)
        queued = np.flatnonzero(self._queued >= 0)
        goes_on = np.flatnonzero(chain.kind == _GO_ON)
        arrival, end = rows["arrival"].to_numpy(), rows["end"].to_numpy()
        # Everybody who takes part arrives at the meeting, also who does not wait for it.
        there = np.flatnonzero((rows["meeting"].is_not_null() & rows["transit"].is_not_null()).to_numpy())
        # A kernel with messages of several peers runs on when the last of them is there.
        several = np.flatnonzero(together >= 0)
        edges = [
            (inner - 1, inner, chain.work[inner]),
            (np.full(len(start), origin), start, self._origin[chain.place[start]] + chain.work[start]),
            (of_arrival, arrivals, np.zeros(count)),
            (ends[self._queued[queued]], arrivals[queued], (arrival[queued] - end[self._queued[queued]])),
            (arrivals[there], meets[there], np.zeros(len(there))),
            (np.where(together >= 0, together, meets)[joins], ends[joins], self.transit[joins]),
            (arrivals[alone], ends[alone], self.transit[alone]),
            (ends[chain.row[goes_on]], goes_on, np.zeros(len(goes_on))),
            (meets[several], together[several], np.zeros(len(several))),
        ]
        self._delays = np.concatenate([delays for _, _, delays in edges])
        places = np.cumsum([0] + [len(causes) for causes, _, _ in edges])
        #: Of each edge: the event of the rank whose work it is, the collective that it runs for, the one that arrives.
        nothing = [np.full(len(causes), -1) for causes, _, _ in edges]
        self._works = np.concatenate([inner, start, *nothing[2:]])
        self._runs = np.concatenate([*nothing[:3], queued, nothing[4], joins, alone, *nothing[7:]])
        self._arrives = np.concatenate([*nothing[:4], there, *nothing[5:]])
        self._queues, self._joined = slice(places[3], places[4]), places[8]
        #: Where in the delays the work of each event lies, and the transit of each collective.
        self._work_at, self._transit_at = np.empty(events, np.int64), np.empty(count, np.int64)
        self._work_at[inner], self._work_at[start] = np.arange(places[1]), np.arange(places[1], places[2])
        self._transit_at[joins] = np.arange(places[5], places[6])
        self._transit_at[alone] = np.arange(places[6], places[7])
        self._graph = EventGraph(
            np.concatenate([causes for causes, _, _ in edges]),
            np.concatenate([effects for _, effects, _ in edges]),
            int(max(origin, together.max(initial=0))) + 1,
        )
        marks = np.flatnonzero(chain.kind == _STEP)
        self._marks = marks[np.lexsort((chain.row[marks], chain.place[marks]))].reshape(
            len(self.ranks), len(self.steps)
        )

    def _together(self, first: int) -> Ints:
        """Return the event at which all are there with whom a kernel exchanges several messages; −1 for other rows.

        Args:
            first: Number of the first of these events.
        """
        frame = self.rows.select(kernel=_kernel().rle_id(), joins=pl.Series(self._joins))
        several = frame["joins"] & (frame.select(pl.col("joins").sum().over("kernel"))["joins"] > 1)
        number = np.unique(frame["kernel"].to_numpy(), return_inverse=True)[1]
        return np.where(several.to_numpy(), first + number, -1)

    def step_times(self, work: Floats | None = None, transit: Floats | None = None) -> Floats:
        """Return how long each step of the job takes, ns: from the end of the step before on the last rank to its end.

        Args:
            work: What each rank does itself before each event, as :attr:`work`; as recorded without it. Further axes
                are computed side by side.
            transit: What each collective takes once all are there, as :attr:`transit`; as recorded without it.
        """
        further = next((one.shape[1:] for one in (work, transit) if one is not None), ())
        delays = np.broadcast_to(self._delays.reshape(-1, *(1,) * len(further)), (len(self._delays), *further)).copy()
        if work is not None:
            before = self._chain.work.reshape(-1, *(1,) * len(further))
            delays[self._work_at] += work - before
        if transit is not None:
            delays[self._transit_at] = transit
        ends = self._graph.times(delays)[self._marks].max(axis=0)
        begin = np.full((1, *further), self._origin.max())
        return np.diff(ends, axis=0, prepend=begin)

    def path(self) -> tuple[Frame, Floats]:
        """Return what decided when the last step ended, and the borders of the steps, ns since the first one began.

        Where a collective started as soon as the one before it in its group had ended, the path goes through that one.

        Returns:
            A row a piece of the path, in order and without gaps, and one border more than steps. ``place`` in
            :attr:`ranks`; ``begin`` and ``end``, ns; ``row`` of :attr:`rows` whose collective runs, null for a rank's
            own work; ``last``, the row of the rank that it waited for, null if it waited for none.
        """
        times = self._graph.times(self._delays)
        ends = times[self._marks]
        favour = np.zeros(len(self._delays))
        favour[self._queues] = _BEFORE
        path, events = self._graph.longest_path(self._delays, int(self._marks[ends[:, -1].argmax(), -1]), favour)
        works, runs = self._works[path], self._runs[path]
        shown = ((works >= 0) | (runs >= 0)) & (self._delays[path] > 0)
        # Who arrived last comes on the path just before what runs once it is there; what queued waited for nobody.
        queued = (path >= self._queues.start) & (path < self._queues.stop)
        arrives = self._arrives[path]
        arrives = np.where(path >= self._joined, np.append(-1, arrives[:-1]), arrives)
        last = np.append(-1, np.where(np.append(False, queued[:-1]), -1, arrives)[:-1])
        of_row = np.searchsorted(self.ranks.to_numpy(), self.rows["rank"].to_numpy())
        place = np.where(works >= 0, self._chain.place[works], of_row[runs])
        end = np.maximum.accumulate(times[events])
        pieces = pl.DataFrame({"place": place, "end": end, "row": runs, "last": last}).filter(pl.Series(shown))
        begin = pl.col("end").shift(fill_value=float(self._origin[place[0]]))
        known = [pl.when(pl.col(name) >= 0).then(name).alias(name) for name in ("row", "last")]
        return pieces.select("place", "end", *known, begin=begin), np.append(self._origin.max(), ends.max(axis=0))

    @property
    def met_waits(self) -> float:
        """How long all ranks together wait for collectives of which is known who takes part, ns."""
        return float(self._blocked[self._joins].sum())

    @property
    def work(self) -> Floats:
        """What a rank does itself before each event, ns."""
        return self._chain.work

    @cached_property
    def recorded(self) -> Floats:
        """How long each step of the job takes, as recorded, ns."""
        return self.step_times()

    @cached_property
    def segments(self) -> Frame:
        """Return the work of the ranks between two arrivals: the same for each event in between.

        Columns: rank, step, program (equal for ranks that go through the same collectives in the same order in that
        step), segment (its number in the step), work (of the event), in the order of :attr:`work`.
        """
        chain = self._chain
        marks = np.flatnonzero(chain.kind == _STEP)
        step = np.minimum(np.searchsorted(marks, np.arange(len(chain.kind))), len(marks) - 1)
        arrives = chain.kind == _ARRIVE
        operation = self.rows["operation"].cast(pl.Categorical).to_physical().to_numpy().astype(np.int64)
        name = np.full(len(arrives), -1)
        name[arrives] = operation[chain.row[arrives]]
        of_step = ("rank", "step")
        frame = pl.DataFrame(
            {
                "rank": self.ranks.gather(chain.place),
                "step": self.steps.gather(chain.row[marks][step]),
                "name": name,
                "arrives": arrives,
                "work": chain.work,
            }
        ).with_columns(segment=(pl.col("arrives").cum_sum() - pl.col("arrives")).over(of_step))
        passed = pl.when("arrives").then(pl.struct("segment", "name").hash() // 2**20)
        return frame.with_columns(program=passed.sum().over(of_step)).select(*of_step, "program", "segment", "work")


def _blocked(place: Ints, arrival: Floats, end: Floats, exposed: Floats) -> Floats:
    """Return how long each rank waits for the end of each collective.

    Where several collectives run and nothing computes, the rank waits for the one that ends first: that is taken off
    the exposed time of the others. What then remains lies before its end.
    """
    blocked: Floats = np.zeros(len(place))
    order = np.lexsort((arrival, end, place)).tolist()
    until: list[float] = []
    total: list[float] = [0.0]
    before = -1
    for row in order:
        if place[row] != before:
            before, until, total = place[row], [], [0.0]
        start, stop = float(arrival[row]), float(end[row])
        first = bisect_right(until, start)
        # The wait that was going on when this one started counts as a whole, which is at most too much.
        left = float(exposed[row]) - (total[-1] - total[first])
        if left > _NO_WAIT * (stop - start):
            wait = min(left, stop - until[-1]) if until else left
            blocked[row] = wait
            until.append(stop)
            total.append(total[-1] + wait)
    return blocked


def _kernel() -> pl.Expr:
    """Return what is equal for messages of one kernel, which lie beside each other."""
    return pl.struct("rank", "group", "arrival", "end")


class _Union:
    """The spans of each rank, united: how much of them lies before a time."""

    def __init__(self, place: Ints, start: Floats, end: Floats) -> None:
        order = np.lexsort((start, place))
        place, start, end = place[order], start[order], end[order]
        #: Ranks lie one after the other on one axis.
        self._low = float(start.min()) if len(start) else 0.0
        self._far = (float(end.max()) - self._low + 1) if len(end) else 1.0
        start, end = self._shifted(place, start), self._shifted(place, end)
        end = np.maximum.accumulate(end) if len(end) else end
        new = start > np.concatenate([[-1.0], end[:-1]]) if len(end) else np.zeros(0, bool)
        self._starts = start[new]
        self._ends = end[np.append(new[1:], True)] if len(end) else end
        self._before = np.concatenate([[0.0], np.cumsum(self._ends - self._starts)])

    def _shifted(self, place: Ints, at: Floats) -> Floats:
        shifted: Floats = np.clip(at - self._low, 0, self._far) + place * self._far
        return shifted

    def until(self, place: Ints, at: Floats) -> Floats:
        """Return how much of the spans lies before each time, in all ranks up to the one of that time."""
        at = self._shifted(place, at)
        number = np.searchsorted(self._starts, at, side="right")
        if not len(self._starts):
            return np.zeros(len(at))
        last = np.maximum(number - 1, 0)
        within = np.clip(at, None, self._ends[last]) - self._starts[last]
        return self._before[last] + np.where(number > 0, within, 0.0)


def _collectives(meetings: Frame, arrivals: Frame) -> Frame:
    """Return the collectives of the ranks with a known clock, with their times on the job's clock."""
    known = arrivals.filter(pl.col("arrival").is_not_null(), pl.col("end").is_not_null())
    met = known.select("meeting", "rank", "arrival", "end", known=pl.col("transit").is_not_null())
    # Where only the host's call of a collective is recorded, its times are not those of the collective.
    ran = meetings.filter(pl.col("launched").fill_null(value=True))
    rows = ran.join(met, on=["meeting", "rank"], how="left").sort("rank", "ts", maintain_order=True)
    # What met nobody is placed by the other collectives of its rank.
    offset = (pl.col("arrival") - pl.col("ts")).forward_fill().backward_fill().over("rank")
    return (
        rows.with_columns(offset=offset)
        .drop_nulls("offset")
        .select(
            "meeting",
            "rank",
            "step",
            "group",
            "operation",
            "ts",
            "exposed",
            "offset",
            bytes=pl.max_horizontal("bytes_in", "bytes_out"),
            arrival=pl.coalesce("arrival", pl.col("ts") + pl.col("offset")),
            end=pl.coalesce("end", pl.col("ts") + pl.col("dur") + pl.col("offset")),
            launch=pl.col("launch") + pl.col("offset"),
            known=pl.col("known").fill_null(value=False),
        )
    )


def _steps(steps: Frame, rows: Frame) -> Frame:
    """Return the steps that all ranks with a known clock have, on the job's clock: rank, step, begin, end."""
    offsets = rows.select("rank", "ts", "offset").sort("ts")
    placed = (
        steps.unique(["rank", "step"], keep="first")
        .sort("ts")
        .join_asof(offsets, on="ts", by="rank", strategy="nearest", check_sortedness=False)
        .drop_nulls("offset")
    )
    ranks = placed["rank"].n_unique()
    common = pl.col("rank").n_unique().over("step") == ranks
    placed = placed.filter(common).select(
        "rank", "step", begin=pl.col("ts") + pl.col("offset"), end=pl.col("ts") + pl.col("dur") + pl.col("offset")
    )
    # Times are on the clock of the job, which may place the end of a collective behind that of its step.
    launched = rows.drop_nulls(["launch", "step"]).group_by("rank", "step").agg(done=pl.col("end").max())
    done = pl.max_horizontal("end", "done").cum_max().over("rank")
    return (
        placed.sort("rank", "step")
        .join(launched, on=["rank", "step"], how="left")
        .select("rank", "step", "begin", end=done)
    )


def _since(zero: int, rows: Frame, steps: Frame) -> tuple[Frame, Frame]:
    """Return the collectives that start within the steps, and the steps, in ns since ``zero``.

    A float holds the time of a window exactly, the time since the epoch only to 256 ns.
    """
    steps = steps.with_columns((pl.col("begin", "end") - zero).cast(pl.Float64)).sort("rank", "step")
    window = steps.group_by("rank").agg(pl.col("begin").min(), finish=pl.col("end").max())
    rows = (
        rows.with_columns((pl.col("arrival", "end", "launch") - zero).cast(pl.Float64))
        .join(window, on="rank")
        .filter(pl.col("arrival") >= pl.col("begin"), pl.col("arrival") <= pl.col("finish"))
        .drop("ts", "offset", "begin", "finish")
    )
    # The last arrival is that of the last rank of these: that of a rank which is left out counts as transit.
    transit = pl.when("known").then(pl.col("end") - pl.col("arrival").max().over("meeting"))
    rows = rows.with_columns(transit=transit).sort("rank", "arrival", maintain_order=True)
    return rows.with_columns(pl.col("transit").min().over("rank", "group", "arrival", "end")), steps

"""From the tables of a run to the events of ``paddle.fluid.profiler``: what its report counts and its file holds.

An event is an operator, a part of an operator, or a range of the program around operators. Its name is the name of the
enclosing event, a slash, and its own label: ``conv2d/compute``. The label of an operator is its type, without what
Paddle 3 adds (``pd_op.conv2d``, ``conv2d dygraph``, ``Global_Conv2dGradNode``); layers and Paddle's own ranges outside
operators are left out. Parts have the names of Paddle 1.8: ``compute`` (launching the kernel; on a CPU also running
it), ``infer_shape``, ``prepare_data``. If a framework records no such parts, an operator's whole time is ``compute``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.compat.fluid.events_names import Labels, labels_of
from stepscope.read.paddle.fluid_profile import CUDA_CALLS, Profile
from stepscope.trace.tables import Tables

_Integers = npt.NDArray[np.int64]

#: Depth of the executor, its operators and eager operators in the blocks of a program, as Paddle 1.8 numbers it.
_RUN_DEPTH, _OPERATOR_DEPTH, _EAGER_DEPTH = 1, 2, 0
_RUN = "StandaloneExecutor::run"
#: Calls of CUDA; MindSpore's own runtime has other names.
_CALL = r"^(cu|hip)[A-Za-z]"
_COMPUTE = "compute"
_PINNED = ("cuda_pinned", "gpu_pinned")
_NOWHERE = "Unknown"


@dataclass(frozen=True, eq=False)
class Recorded:
    """What was recorded, in the terms of Paddle 1.8.

    Attributes:
        events: As :func:`.report.render` takes them.
        memory: As :func:`.report.render_memory` takes it.
        profile: As :func:`.profile_file.write` takes it.
    """

    events: pl.DataFrame
    memory: pl.DataFrame
    profile: Profile


def recorded(runs: Sequence[Tables]) -> Recorded:
    """Return the events of runs that followed each other in one process."""
    parts = [_Part(tables) for tables in runs]
    host = _joined([part.host() for part in parts], _HOST)
    # Threads with events come first, so that a thread that only starts the executor does not get number 0.
    threads = host.group_by("place").agg(pl.col("counted").any(), pl.col("ts").filter(_FIRST).min())
    threads = threads.sort("counted", "ts", "place", descending=[True, False, False])
    numbers = threads.select("place", thread=pl.int_range(pl.len(), dtype=pl.Int64))
    host = host.join(numbers, on="place", how="left", maintain_order="left")
    # An event follows those it encloses.
    ended = host.sort("end", "depth", descending=[False, True], maintain_order=True)
    events = ended.filter("counted").select("name", "thread", "ts", "end", "gpu", "role")
    memory = _joined([part.memory() for part in parts], _MEMORY)
    memory = memory.join(numbers, on="place", how="left", maintain_order="left").sort("ts", maintain_order=True)
    work = _joined([part.work() for part in parts], _WORK)
    profile = Profile(pl.concat([_filed(ended), work]), _pieces(memory))
    return Recorded(events, memory.select("inside", "bytes", place="device"), profile)


_HOST = {
    "name": pl.String,
    "place": pl.String,
    "ts": pl.Int64,
    "end": pl.Int64,
    "depth": pl.Int32,
    "gpu": pl.Int64,
    "role": pl.String,
    "counted": pl.Boolean,
    "block": pl.Int64,
}
_MEMORY = {
    "ts": pl.Int64,
    "bytes": pl.Int64,
    "device": pl.String,
    "address": pl.Int64,
    "inside": pl.String,
    "place": pl.String,
}
_WORK = {
    "name": pl.String,
    "ts": pl.Int64,
    "end": pl.Int64,
    "device": pl.Int64,
    "sub": pl.Int64,
    "on_gpu": pl.Boolean,
    "bytes": pl.Int64,
    "detail": pl.String,
}


#: Rows that set the age of a thread: its events; all its rows if it has no event.
_FIRST = pl.col("counted") | ~pl.col("counted").any()


def _joined(frames: list[pl.DataFrame], schema: dict[str, type[pl.DataType]]) -> pl.DataFrame:
    return pl.concat([pl.DataFrame(schema=schema), *frames])


class _Part:
    """One run: its spans on host threads, and the event that each of them is or lies in.

    Args:
        tables: The tables of the run.
    """

    def __init__(self, tables: Tables) -> None:
        wanted = ("spans", "tracks", "kernels", "allocations")
        spans, tracks, self._kernels, self._allocations = (tables[name].collect() for name in wanted)
        process, thread = pl.col("process").cast(pl.String), pl.col("thread").cast(pl.String)
        place = pl.concat_str(process, thread, pl.col("name"), separator=" ", ignore_nulls=True)
        threads = tracks.filter(pl.col("kind") == "thread").select(track="id", place=place)
        self._spans = spans.with_columns(pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String))
        self._host = self._spans.join(threads, on="track", how="inner", maintain_order="left").sort("id")
        self._ids = self._host["id"].to_numpy()
        self._parent = self._rows(self._host["parent"])
        self._labels = labels_of(self._host, self._parent)
        self._paths = _Paths(self._labels, self._parent, self._host["depth"].to_numpy())

    def _rows(self, ids: pl.Series) -> _Integers:
        """Return the row of each span on a thread; −1 for none."""
        wanted = ids.fill_null(-1).to_numpy()
        if not len(self._ids):
            return np.full(len(wanted), -1)
        rows = np.minimum(np.searchsorted(self._ids, wanted), len(self._ids) - 1)
        return np.where(self._ids[rows] == wanted, rows, -1)

    def host(self) -> pl.DataFrame:
        """Return the events of the report, and runs of the executor and calls of CUDA, which only the file holds."""
        paths, name = self._paths, pl.col("span_name")
        run, call = name == _RUN, pl.col("kind").is_in(["runtime", "driver"]) & name.str.contains(_CALL)
        depth = _OPERATOR_DEPTH if (self._host["name"] == _RUN).any() else _EAGER_DEPTH
        frame = self._host.rename({"name": "span_name"}).with_columns(
            end=pl.col("ts") + pl.col("dur"),
            path=paths.names(),
            gpu=pl.Series(self._gpu(), dtype=pl.Int64),
            role=pl.Series(np.where(paths.inside_operator, "inner", "ordinary"), dtype=pl.String),
            counted=pl.Series(paths.kept),
        )
        chosen = frame.filter("counted" | run | call).with_columns(
            name=pl.when("counted").then("path").when(run).then(pl.lit("block_0")).otherwise("span_name"),
            block=pl.when("counted").then(depth).when(run).then(_RUN_DEPTH).otherwise(CUDA_CALLS).cast(pl.Int64),
        )
        if not self._labels.tells_parts:
            whole = frame.filter(pl.Series(paths.kept & self._labels.operator & ~paths.inside_operator)).with_columns(
                name=pl.col("path") + f"/{_COMPUTE}",
                role=pl.lit("inner"),
                depth=pl.col("depth") + 1,
                block=pl.lit(depth, pl.Int64),
            )
            chosen = pl.concat([chosen, whole])
        return chosen.select(*_HOST)

    def memory(self) -> pl.DataFrame:
        """Return allocations and frees, with the event that each happened in."""
        names, rows = self._paths.names(), self._rows(self._allocations["span"])
        places = self._host["place"]
        found = pl.Series(np.where(rows >= 0, rows, 0)) if len(names) else None
        nothing = pl.Series([None] * len(rows), dtype=pl.String)
        frame = self._allocations.with_columns(
            pl.col("device").cast(pl.String),
            inside=names.gather(found) if found is not None else nothing,
            place=places.gather(found) if found is not None else nothing,
        )
        inside = pl.when(pl.Series(rows >= 0) & (pl.col("inside") != "")).then("inside").otherwise(pl.lit(_NOWHERE))
        return frame.with_columns(inside=inside).filter(pl.col("bytes") != 0).select(*_MEMORY)

    def work(self) -> pl.DataFrame:
        """Return the work of GPUs, under the name of the event that launched it."""
        work = self._work()
        rows = work["row"].to_numpy()
        names = self._paths.names()
        launcher = names.gather(pl.Series(np.where(rows >= 0, rows, 0))) if len(names) else None
        own = pl.col("span_name")
        copied = own.str.extract(r"^Memcpy (\w+)")
        known = pl.Series(rows >= 0) & (pl.col("launcher") != "")
        name = (
            pl.when(pl.col("kind") == "memcpy")
            .then(pl.lit("MEMCPY_") + copied.fill_null("Unknown"))
            .when(pl.col("kind") == "memset")
            .then(pl.lit("MEMSET"))
            .when(known)
            .then("launcher")
            .otherwise(own)
        )
        copy = pl.col("kind").is_in(["memcpy", "memset"])
        named = work.rename({"name": "span_name"}).with_columns(
            launcher=launcher if launcher is not None else pl.lit(None, pl.String)
        )
        return named.select(
            name=name,
            ts="ts",
            end=pl.col("ts") + pl.col("dur"),
            device=pl.col("device").cast(pl.Int64),
            sub=pl.col("stream").fill_null(0),
            on_gpu=pl.lit(value=True),
            bytes=pl.when(copy).then("bytes"),
            detail=pl.when(copy).then(pl.lit("")).otherwise(own),
        )

    def _work(self) -> pl.DataFrame:
        """Return the work of GPUs, with the row of the span that launched it (−1 for none)."""
        device = self._spans.select("ts", "dur", "name", "kind", span="id")
        work = self._kernels.join(device, on="span", how="inner", maintain_order="left")
        return work.with_columns(row=pl.Series(self._rows(work.select(pl.coalesce("launch", "operator")).to_series())))

    def _gpu(self) -> _Integers:
        """Return the ns of GPU work that was launched in each span."""
        times = np.zeros(len(self._ids), np.int64)
        work = self._work()
        rows = work["row"].to_numpy()
        np.add.at(times, rows[rows >= 0], work["dur"].to_numpy()[rows >= 0])
        for level in reversed(self._paths.levels):
            inner = level[self._parent[level] >= 0]
            np.add.at(times, self._parent[inner], times[inner])
        return times


class _Paths:
    """Which spans are events, and in which event every span lies.

    Args:
        labels: The classes and labels of the spans.
        parent: Row of the enclosing span of each; −1 for none.
        depth: Number of enclosing spans of each.

    Attributes:
        levels: Rows by depth.
        kept: Whether a span is an event.
        inside_operator: Whether an operator encloses it.
    """

    def __init__(self, labels: Labels, parent: _Integers, depth: npt.NDArray[np.int32]) -> None:
        order = np.argsort(depth, kind="stable")
        bounds = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 1))
        self.levels: list[_Integers] = np.split(order, bounds)
        self.kept, self.inside_operator = np.zeros(len(depth), bool), np.zeros(len(depth), bool)
        self._labels = labels
        self._texts = [""]
        self._numbers: dict[tuple[int, int], int] = {}
        self._path = np.zeros(len(depth), np.int64)
        for level in self.levels:
            self._descend(level, parent[level])

    def names(self) -> pl.Series:
        """Return the name of the event that each span is, or lies in; an empty text for none."""
        return pl.Series(self._texts, dtype=pl.String).gather(pl.Series(self._path))

    def _descend(self, rows: _Integers, around: _Integers) -> None:
        """Classify all spans of one depth, after those of the depth above."""
        labels, has = self._labels, around >= 0
        within = has & (self.inside_operator[around] | (self.kept[around] & labels.operator[around]))
        kept = np.where(within, labels.part[rows], labels.outside[rows])
        self.inside_operator[rows], self.kept[rows] = within, kept
        above = np.where(has, self._path[around], 0)
        code = np.where(within, labels.inner_label[rows], labels.outer_label[rows])
        self._path[rows] = above
        pairs, which = np.unique(np.stack([above[kept], code[kept]]), axis=1, return_inverse=True)
        numbers = np.array([self._number(*pair) for pair in pairs.T.tolist()], np.int64)
        self._path[rows[kept]] = numbers[which.reshape(-1)]

    def _number(self, above: int, code: int) -> int:
        number = self._numbers.get((above, code))
        if number is None:
            number = self._numbers[above, code] = len(self._texts)
            text, label = self._texts[above], self._labels.texts[code]
            self._texts.append(f"{text}/{label}" if text else label)
        return number


def _filed(ended: pl.DataFrame) -> pl.DataFrame:
    """Return events as the file has them: newest thread and newest event first."""
    filed = ended.reverse().sort("thread", descending=True, maintain_order=True)
    return filed.select(
        "name",
        "ts",
        "end",
        device="block",
        sub="thread",
        on_gpu=pl.lit(value=False),
        bytes=pl.lit(None, pl.Int64),
        detail=pl.lit(""),
    )


def _pieces(memory: pl.DataFrame) -> pl.DataFrame:
    """Return memory that was allocated and freed; Paddle's file does not hold allocations without a free."""
    following = {name: pl.col(name).shift(-1).over("device", "address") for name in ("ts", "bytes", "inside")}
    pairs = memory.with_columns(end=following["ts"], back=following["bytes"], free_in=following["inside"])
    device = pl.col("device").str.extract(r"^([a-z_]+)")
    place = pl.when(device.is_in(_PINNED)).then(pl.lit("cuda_pinned")).otherwise(device)
    known = pairs.filter((pl.col("bytes") > 0) & (pl.col("back") < 0)).with_columns(place=place)
    return known.filter(pl.col("place").is_in(["cpu", "cuda", "cuda_pinned"])).select(
        "ts",
        "end",
        "bytes",
        "place",
        pl.col("thread").fill_null(0),
        device=pl.col("device").str.extract(r":(\d+)$").cast(pl.Int64).fill_null(0),
        alloc_in="inside",
        free_in="free_in",
    )

"""Profile files of ``paddle.fluid.profiler`` (``paddle.platform.proto.Profile``): file → tables.

Paddle 1.x and 2.x wrote them, and the bindings that are left in Paddle 3 still do. Their format::

    MemCopy  1 bytes
    Event    1 name  2 start_ns  3 end_ns  5 device_id  6 sub_device_id  7 memcopy  8 type (0 CPU, 1 GPU kernel)
             9 detail_info
    MemEvent 1 start_ns  2 end_ns  3 bytes  4 place (0 CUDA, 1 CPU, 2 CUDA pinned)  5 thread_id  6 device_id
             7 alloc_in  8 free_in
    Profile  1 events  2 start_ns  3 end_ns  4 mem_events

Times are ns since the epoch, in Paddle 1.8 of µs resolution; the times of the profile itself are not set. Of an event
on a CPU, ``device_id`` says how deep in blocks of the program it lies (−1: a call of CUDA), and ``sub_device_id`` is
Paddle's own number of the thread; of one on a GPU they are device and stream. A kernel has the name of the operator
that launched it, and its own name in ``detail_info``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stepscope.errors import DamagedTraceError, NotATraceError
from stepscope.read.common.part_builder import LARGEST_TIME, PartBuilder, PartTracks, TrackRow, as_json, sound_rows
from stepscope.read.common.protobuf import BLOCK, CUT_BLOCK, VARINT, Fields, Messages
from stepscope.read.common.source import Progress, read_blocks
from stepscope.trace.losses import LossLedger
from stepscope.trace.tables import dtype

#: Places of memory events, as numbered in the file.
PLACES = ("cuda", "cpu", "cuda_pinned")
#: ``device`` of calls of CUDA on the host.
CUDA_CALLS = -1
#: Number of first bytes that identify a file.
_HEAD = 4096
_BLOCK = r"^block_-?\d+$"
#: One run of the executor: in Paddle 1 its outermost block, in Paddle 3 the event itself.
_RUN = r"^(block_0|StandaloneExecutor::run)$"
#: Types of operators are identifiers; parts of operators have a slash, functions of the executor colons.
_OPERATOR = r"^[A-Za-z_][\w.]*$"
_BACKWARD = r"_grad(\d*)$"
_OPTIMIZERS = (
    "sgd", "momentum", "lars_momentum", "dgc_momentum", "adagrad", "decayed_adagrad", "proximal_adagrad",
    "proximal_gd", "adadelta", "adam", "adamax", "adamw", "rmsprop", "ftrl", "lamb", "dpsgd", "merged_adam",
    "merged_momentum",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Profile:
    """What a profile file holds.

    Attributes:
        events: In the file's order, which is newest first on each thread: ``name``, ``ts`` and ``end`` (ns since the
            epoch), ``device``, ``sub`` (thread or stream), ``on_gpu``, ``bytes`` (of copies; else null), ``detail``.
        memory: Pieces of memory: ``ts`` and ``end`` (ns; taken and freed), ``bytes``, ``place`` (one of
            :data:`PLACES`), ``thread``, ``device``, ``alloc_in`` and ``free_in`` (names of events).
    """

    events: pl.DataFrame
    memory: pl.DataFrame


def is_profile(head: bytes) -> bool:
    """Return whether a file that begins so is a profile: an event comes first, or its own times where it has none."""
    fields = Messages.whole(head).fields().table
    shape = [tuple(row) for row in fields[:2, 1:3].tolist()]
    if shape[:1] == [(2, VARINT)]:
        return shape == [(2, VARINT), (3, VARINT)]
    if shape[:1] not in ([(1, BLOCK)], [(1, CUT_BLOCK)]):
        return False
    start, end = fields[0, 4:6].tolist()
    first = Messages.whole(head[start:end]).fields().table[:2, 1:3].tolist()
    return bool(first == [[1, BLOCK], [2, VARINT]])


def load(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Profile:
    """Read the events of a profile file.

    Raises:
        InputError: It cannot be read.
        NotATraceError: It is of another kind.
        DamagedTraceError: It ends before its first event.
    """
    content = b"".join(read_blocks(path, ledger, progress))
    if not is_profile(content[:_HEAD]):
        message = f"{path} is not a profile file of paddle.fluid.profiler."
        raise NotATraceError(message, "Use `stepscope import` for traces of other profilers.")
    whole = Messages.whole(content).fields()
    # Paddle writes its own times, set or not, between the events and the memory.
    complete = whole.integers(2).null_count() == whole.integers(3).null_count() == 0
    if whole.broken[0] or not complete:
        ledger.add_cut()
    if whole.broken[0] and not len(whole.within(1)[0]):
        message = f"{path} is damaged: it ends before its first event."
        raise DamagedTraceError(message, "Record it again, or copy it again from where it was recorded.")
    return Profile(_events(whole, ledger), _memory(whole, ledger))


def _events(profile: Fields, ledger: LossLedger) -> pl.DataFrame:
    fields = profile.within(1)[1].fields()
    copied, copies = fields.within(7)
    copies_bytes = copies.fields().integers(1)
    frame = pl.DataFrame(
        {
            "name": fields.texts(1, ledger),
            "ts": fields.integers(2),
            "end": fields.integers(3),
            "device": fields.integers(5).fill_null(0),
            "sub": fields.integers(6).fill_null(0),
            "on_gpu": fields.integers(8).fill_null(0) == 1,
            "bytes": _scattered(copies_bytes, pl.Series(copied), len(fields.messages)),
            "detail": fields.texts(9, ledger).fill_null(""),
        }
    )
    return _sound(frame, fields, ledger)


def _scattered(values: pl.Series, places: pl.Series, length: int) -> pl.Series:
    empty = pl.Series([None], dtype=pl.Int64).new_from_index(0, length)
    return empty.scatter(places, values) if len(places) else empty


def _memory(profile: Fields, ledger: LossLedger) -> pl.DataFrame:
    fields = profile.within(4)[1].fields()
    place = fields.integers(4).fill_null(0)
    frame = pl.DataFrame(
        {
            "ts": fields.integers(1),
            "end": fields.integers(2),
            "bytes": fields.integers(3).fill_null(0),
            "place": pl.Series(place).replace_strict(dict(enumerate(PLACES)), default="cpu", return_dtype=pl.String),
            "thread": fields.integers(5).fill_null(0),
            "device": fields.integers(6).fill_null(0),
            "alloc_in": fields.texts(7, ledger).fill_null("Unknown"),
            "free_in": fields.texts(8, ledger).fill_null("Unknown"),
        }
    )
    return _sound(frame, fields, ledger, pl.col("bytes").is_between(0, LARGEST_TIME))


def _sound(frame: pl.DataFrame, fields: Fields, ledger: LossLedger, *conditions: pl.Expr) -> pl.DataFrame:
    """Leave out what is damaged, and intervals that end before they begin; count them."""
    named = [pl.col("name").is_not_null()] if "name" in frame.columns else []
    whole = ~pl.Series(fields.broken)
    return sound_rows(
        frame,
        ledger,
        event_damaged=pl.all_horizontal(whole, *named, *conditions),
        event_bad_time=pl.col("ts").is_between(0, LARGEST_TIME)
        & pl.col("end").is_between(0, LARGEST_TIME)
        & pl.col("device").is_between(-(1 << 31), (1 << 31) - 1),
        event_negative_duration=pl.col("end") >= pl.col("ts"),
    )


def read(path: Path, ledger: LossLedger, progress: Progress | None = None) -> dict[str, pl.DataFrame]:
    """Read a profile file into tables.

    Operators are the events whose name is a type of operator; the parts of operators (``conv2d/compute``) and the
    blocks of the program are annotations. A gradient operator is backward, an operator with one forward, one that
    updates parameters optimizer. Each run of the executor is a step, which lasts until the next one begins. Memory that
    was in use before recording began is not known: what is allocated counts from zero.

    Raises:
        InputError: See :func:`load`.
    """
    profile = load(path, ledger, progress)
    part = PartBuilder()
    placed = _placed(_kinds(profile.events), part.tracks)
    part.add_spans(
        placed.select(
            "track",
            "ts",
            "name",
            pl.col("kind").cast(dtype("enum:kind")),
            pl.col("phase").cast(dtype("enum:phase")).alias("said_phase"),
            "external",
            dur=pl.col("end") - pl.col("ts"),
        )
    )
    on_gpu = placed.filter("on_gpu")
    part.add("kernels", on_gpu.select("device", "bytes", span="row", stream="sub"))
    part.add("allocations", _allocations(profile.memory, placed))
    part.add_steps(_steps(placed), "inferred")
    part.add_facts(as_json({"profiler": "paddle.fluid.profiler"}))
    return part.tables()


def _kinds(events: pl.DataFrame) -> pl.DataFrame:
    """Add kind, phase and operator of each event."""
    name = pl.col("name")
    forward = events.filter(name.str.contains(_BACKWARD))["name"].str.replace(_BACKWARD, "$1").unique()
    operator = name.str.contains(_OPERATOR) & ~name.str.contains(_BLOCK)
    kind = (
        pl.when("on_gpu")
        .then(
            pl.when(name.str.starts_with("MEMCPY"))
            .then(pl.lit("memcpy"))
            .when(name.str.starts_with("MEMSET"))
            .then(pl.lit("memset"))
            .otherwise(pl.lit("kernel"))
        )
        .when(pl.col("device") == CUDA_CALLS)
        .then(pl.lit("runtime"))
        .when(operator)
        .then(pl.lit("operator"))
        .otherwise(pl.lit("annotation"))
    )
    phase = (
        pl.when(name.str.contains(_BACKWARD))
        .then(pl.lit("backward"))
        .when(name.is_in(_OPTIMIZERS))
        .then(pl.lit("optimizer"))
        .when(name.is_in(forward.implode()))
        .then(pl.lit("forward"))
    )
    return events.with_columns(
        kind=kind, operator=name.str.split("/").list.first(), phase=pl.when(operator & ~pl.col("on_gpu")).then(phase)
    )


def _track(on_gpu: bool, device: int, number: int) -> TrackRow:  # noqa: FBT001 - a value of a column
    """Return a stream, or a thread; Paddle numbers threads by itself, so that no number of the system is known."""
    if on_gpu:
        return TrackRow("stream", f"cuda:{device}", f"stream {number}", stream=number)
    return TrackRow("thread", "cpu", f"thread {number}")


def _placed(events: pl.DataFrame, tracks: PartTracks) -> pl.DataFrame:
    """Give events their track, and operators and what they launched a number in common (``external``).

    A kernel says the name of its operator: the last operator of this name that began before it launched it.
    """
    of_gpu = pl.when("on_gpu").then("device").otherwise(-1)
    for row in events.select("on_gpu", of_gpu, "sub").unique().sort(pl.all()).rows():
        tracks.number(_track(*row))
    placed = events.with_columns(
        tracks.numbered(_track, events["on_gpu"], events["device"], events["sub"]),
        row=pl.int_range(pl.len(), dtype=pl.Int64),
    )
    operators = placed.filter(kind="operator").select("ts", external="row", operator="name").sort("ts")
    device = placed.filter("on_gpu").select("row", "ts", "operator").sort("ts")
    launched = device.join_asof(operators, on="ts", by="operator", check_sortedness=False).select("row", "external")
    own = placed.filter(kind="operator").select("row", external="row")
    numbers = pl.concat([launched, own]) if placed["on_gpu"].any() else own
    return placed.join(numbers, on="row", how="left", maintain_order="left").with_columns(
        # What runs on a device is shown under its own name.
        name=pl.when(pl.col("on_gpu") & (pl.col("detail") != "")).then("detail").otherwise("name")
    )


def _allocations(memory: pl.DataFrame, placed: pl.DataFrame) -> pl.DataFrame:
    """Return memory taken and freed, each with the track of the event that it happened in."""
    number = pl.col("device").cast(pl.String)
    device = pl.when(pl.col("place") == "cuda").then(pl.lit("cuda:") + number).otherwise("place")
    common = memory.with_columns(device=device).with_row_index("piece")
    taken = common.select("piece", "device", "bytes", "ts", inside="alloc_in", freed=pl.lit(value=False))
    freed = common.select("piece", "device", -pl.col("bytes"), pl.col("end").alias("ts"), inside="free_in", freed=True)
    rows = pl.concat([taken, freed]).sort("ts", "piece", "freed")
    around = placed.filter(~pl.col("on_gpu")).select("ts", "end", "track", inside="name").sort("ts")
    found = rows.join_asof(around, on="ts", by="inside", check_sortedness=False)
    within = pl.col("ts") <= pl.col("end")
    return found.select(
        "ts",
        "device",
        "bytes",
        pl.when(within).then("track").alias("track"),
        allocated=pl.col("bytes").cum_sum().over("device"),
    )


def _steps(placed: pl.DataFrame) -> pl.DataFrame:
    """Return the runs of the executor, of the thread that has most of them, as steps."""
    runs = placed.filter(~pl.col("on_gpu") & pl.col("name").str.contains(_RUN))
    shortest_depth = runs.filter(pl.col("device") == pl.col("device").min())
    counted = shortest_depth.group_by("track").len().sort("len", "track", descending=[True, False])
    chosen = shortest_depth.filter(pl.col("track").is_in(counted["track"].head(1).implode())).sort("ts")
    until = pl.col("ts").shift(-1).fill_null(pl.col("end"))
    return chosen.select(
        "ts",
        dur=until - pl.col("ts"),
        number=pl.int_range(pl.len(), dtype=pl.Int32),
    )

"""Communication on streams: which kernels are collectives, and what the calls that launched them say of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.read.assemble.timeline import RankTimeline
from stepscope.read.common.communication import communicates, operation_of, transport_of_kernel
from stepscope.read.common.dense import distinct_rows, first_places, places
from stepscope.read.common.nesting import Integers, looked_up
from stepscope.read.common.torch_events import COLLECTIVE_PREFIXES
from stepscope.trace.schema import SAMPLED
from stepscope.trace.tables import of_columns, taken, with_series

#: What a call knows and its kernel may not.
_DETAILS = (
    "group",
    "group_ranks",
    "group_size",
    "dtype",
    "bytes_in",
    "bytes_out",
    "source",
    "destination",
    "sequence",
    "transport",
)
#: Those that all operations of a group share.
_OF_GROUP = ("group", "group_ranks", "group_size", "transport")
#: What the program's calls of torch.distributed begin with.
_CALL = "c10d::"
# The host's call that only says it is one, around another that says which.
_NAMELESS = "record_param_comms"
#: What the host calls, or waits for, without moving data: they are not collectives.
_NOT_MOVING = (_NAMELESS, "wait", "init")
_POINT_TO_POINT = r"^(i?send|i?recv|receive)(_|$)"
#: What ranges of a backend between two ranks begin with, which last until the program waits for them.
_BETWEEN_TWO = {f"{backend}{operation}": 1 for backend in COLLECTIVE_PREFIXES for operation in ("send", "recv")}


def with_launched(timeline: RankTimeline, operator: Integers) -> RankTimeline:
    """Return the time line with kernels as collectives that a collective launched itself, whatever they are called.

    So are those that an operator launched which communicates by its name, those on a stream during an annotation of a
    collective there, and those whose own name is that of a communication library.

    Args:
        timeline: The spans.
        operator: The innermost operator or collective around the launch of each span; −1 without one.
    """
    if not timeline.on_device.any():
        return timeline
    kernels = timeline.of_kinds("kernel") & timeline.on_device
    launched = kernels & (operator >= 0)
    launched[launched] = (timeline.of_kinds("collective") | _communicating(timeline))[operator[launched]]
    launched |= kernels & (_annotated(timeline) | _named(timeline, kernels))
    if not launched.any():
        return timeline
    return timeline.with_kind("collective", launched)


def _communicating(timeline: RankTimeline) -> npt.NDArray[np.bool_]:
    """Return which spans are operators that communicate by their names."""
    names = timeline.distinct(timeline.of_kinds("operator"))
    codes = [code for code, name in names.items() if communicates(name)]
    return np.isin(timeline.codes, codes) if codes else np.zeros(len(timeline), np.bool_)


def _named(timeline: RankTimeline, kernels: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which spans have the name of a library's kernel."""
    names = timeline.distinct(kernels)
    codes = [code for code, name in names.items() if transport_of_kernel(name) is not None]
    return np.isin(timeline.codes, codes) if codes else np.zeros(len(timeline), np.bool_)


def _annotated(timeline: RankTimeline) -> npt.NDArray[np.bool_]:
    """Return which spans on streams lie in a range that is named like a collective, projected onto their stream."""
    result = np.zeros(len(timeline), np.bool_)
    named = timeline.named(dict.fromkeys(COLLECTIVE_PREFIXES, 1)) > 0
    if not named.any():
        return result
    places = timeline.tracks.select("id", "kind", "device", "stream").rows()
    for lane, kind, device, stream in places:
        ranges = np.flatnonzero(named & (timeline.track == lane)) if kind == "annotation" else ()
        for track in (t for t, k, d, s in places if (k, d, s) == ("stream", device, stream) and len(ranges)):
            spans = np.flatnonzero(timeline.track == track)
            place = np.searchsorted(timeline.ts[ranges], timeline.ts[spans], side="right") - 1
            within = (place >= 0) & (timeline.end[spans] <= timeline.end[ranges][place])
            result[spans[within]] = True
    return result


def details(timeline: RankTimeline, operator: Integers, replay: Integers, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the table ``collectives``: one row a collective, whatever number of spans shows it.

    On a stream the row is that of the kernel, of several that one call launched that of the longest; elsewhere that of
    the outermost call on the host. What the other spans say completes it.
    """
    of_host = timeline.of_kinds("collective") & timeline.on_tracks("thread")
    nearest = timeline.nearest(of_host)
    spans = np.flatnonzero(timeline.of_kinds("collective") & timeline.on_device)
    own = _with_operations(timeline, _of_spans(collectives, spans), operator[spans])
    own = _completed(own, _calls(timeline, nearest, operator[spans]), collectives)
    call = _outermost(timeline, nearest, looked_up(nearest, operator[spans]))
    host = np.flatnonzero(of_host)
    outermost = _outermost(timeline, nearest, host)
    host_rows = _on_host(timeline, host, outermost, collectives)
    host_rows = _performed(timeline, host_rows, np.concatenate([call, outermost[outermost != host]]))
    launching = np.isin(host_rows["span"].to_numpy(), call[call >= 0])
    rows = taken(own, places(_longest(timeline, spans, call, replay[spans])))
    if not launching.all():
        rows = rows.vstack(host_rows[np.flatnonzero(~launching)])
        rows = rows[np.argsort(rows["span"].to_numpy(), kind="stable")]
    if not len(spans) and len(hung := _never_ended(timeline, rows)):
        rows = rows.vstack(hung)
        rows = rows[np.argsort(rows["span"].to_numpy(), kind="stable")]
    return _numbered(timeline, rows)


def _with_operations(timeline: RankTimeline, rows: pl.DataFrame, operator: Integers) -> pl.DataFrame:
    """Return rows of spans on streams whose operation is that in the name of the kernel, else of its operator.

    Where the reader said nothing, the name says the library, too.
    """
    if not rows["operation"].null_count():
        return rows
    unknown = np.flatnonzero(rows["operation"].is_null().to_numpy())
    own, launching = timeline.names(rows["span"].to_numpy()[unknown]), timeline.names(operator[unknown])
    said = [operation_of(name) or operation_of(by) or name for name, by in zip(own, launching, strict=True)]
    values = pl.Series(said, dtype=pl.String).str.to_lowercase().cast(rows["operation"].dtype)
    libraries = pl.Series([transport_of_kernel(name) or None for name in own], dtype=pl.String)
    return rows.with_columns(
        operation=rows["operation"].scatter(unknown, values),
        transport=rows["transport"].scatter(unknown, libraries.cast(rows["transport"].dtype)),
    )


def _completed(own: pl.DataFrame, calls: Iterable[Integers], collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of spans on streams, completed by what the launching calls say."""
    for call in calls:
        if (call < 0).all():
            continue
        said = _of_spans(collectives, call)
        missing = [name for name in _DETAILS if own[name].null_count() and said[name].null_count() < len(said)]
        named = zip(said["operation"].to_list(), own["operation"].to_list(), strict=True)
        if missing or any(text not in (None, _NAMELESS, ours) for text, ours in named):
            operation = pl.when(said["operation"] != _NAMELESS).then(said["operation"]).fill_null(own["operation"])
            own = own.with_columns_seq(*(pl.col(name).fill_null(said[name]) for name in missing), operation=operation)
    return own


def _longest(timeline: RankTimeline, spans: Integers, call: Integers, replay: Integers) -> Integers:
    """Return the places of the spans on streams that stand for their collective: the longest that a call launched.

    A call in the capture of a graph launched one in each replay.
    """
    order = np.lexsort((spans, timeline.ts[spans] - timeline.end[spans], replay, call))
    first = np.ones(len(order), np.bool_)
    first[1:] = (np.diff(call[order]) != 0) | (np.diff(replay[order]) != 0) | (call[order][1:] < 0)
    return np.sort(order[first])


def _on_host(timeline: RankTimeline, spans: Integers, outermost: Integers, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each outermost call, completed by those inside it; none for what moves nothing."""
    rows = _of_spans(collectives, spans)
    said = np.array(rows["operation"].to_list(), np.object_)
    unknown = np.array([text in (_NAMELESS, None) for text in said.tolist()], np.bool_)
    said[unknown] = _operations(timeline, spans[unknown])
    moved = [None if text in _NOT_MOVING else text for text in said.tolist()]
    operation = pl.Series("operation", moved, rows["operation"].dtype)
    # Those that are nested come behind what contains them.
    first, call = distinct_rows([outermost])
    united = with_series(rows, [operation, pl.Series("span", outermost, rows["span"].dtype)])
    if len(first) < len(rows):
        united = of_columns([_first_known(column, first, call) for column in united.get_columns()])
    return united.drop_nulls("operation") if united["operation"].null_count() else united


def _performed(timeline: RankTimeline, rows: pl.DataFrame, busy: Integers) -> pl.DataFrame:
    """Return the rows without calls that another thread carries out; its ranges learn what the calls say.

    A range is that of the first call of its operation that begins before it and has none yet.

    Args:
        timeline: The spans.
        rows: The collectives on the host.
        busy: Calls that launch or contain what carries them out.
    """
    spans = rows["span"].to_numpy()
    names = timeline.names(spans)
    calls = np.array([name == _NAMELESS for name in names], np.bool_) & ~np.isin(spans, busy)
    ranges = np.array([name.startswith(COLLECTIVE_PREFIXES) for name in names], np.bool_)
    if not (calls.any() and ranges.any()):
        return rows
    operation = np.array(
        [_plain(name or "") or name for name in rows["operation"].cast(pl.String).to_list()], np.object_
    )
    order = np.argsort(timeline.ts[spans], kind="stable")
    said, waiting = np.full(len(rows), -1, np.int64), dict[str, deque[int]]()
    for row in order[(calls | ranges)[order]].tolist():
        queue = waiting.setdefault(operation[row], deque())
        if calls[row]:
            queue.append(row)
        elif queue:
            said[row] = queue.popleft()
    known = rows.select(_DETAILS)[places(said)]
    completed = rows.with_columns(pl.col(name).fill_null(known[name]) for name in _DETAILS)
    return completed[np.flatnonzero(~(calls & np.isin(operation, operation[ranges])))]


def _never_ended(timeline: RankTimeline, rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of the last calls of torch.distributed on the host that no range of their backend follows.

    PyTorch records the range of a backend (``gloo:all_reduce``) when it ends: one that hangs is missing.

    Args:
        timeline: The spans.
        rows: The collectives on the host: those of which a range is recorded.
    """
    calls = timeline.of_kinds("operator") & (timeline.named({_CALL: 1}) > 0)
    outermost = np.flatnonzero(calls & (looked_up(timeline.nearest(calls), timeline.parent) < 0))
    if not len(outermost) or rows.is_empty():
        return rows[:0]
    called = [_plain(name) for name in timeline.names(outermost)]
    begun = timeline.ts[rows["span"].to_numpy()]
    ranges = [_plain(name or "") for name in rows["operation"].cast(pl.String).to_list()]
    found: list[pl.DataFrame] = []
    for operation in sorted({*ranges} & {*called} - {""}):
        mine = outermost[[name == operation for name in called]]
        mine = mine[np.argsort(timeline.ts[mine], kind="stable")]
        of_ranges = np.flatnonzero([name == operation for name in ranges])
        place = 0
        for ts in np.sort(begun[of_ranges]).tolist():  # of a range before every call, the call was not recorded
            place += bool(place < len(mine) and timeline.ts[mine[place]] <= ts)
        if place < len(mine):
            # The group is that of the ranges, if it is one.
            same = [name for name in ("operation", *_OF_GROUP) if rows[of_ranges][name].n_unique() == 1]
            alike = rows[of_ranges[:1]].select(same)
            found += [alike.with_columns(span=pl.lit(span, rows["span"].dtype)) for span in mine[place:].tolist()]
    return pl.concat([rows[:0], *found], how="diagonal").select(rows.columns) if found else rows[:0]


def _plain(name: str) -> str:
    """Return the operation in a name as calls and ranges both have it: ``_allgather_base_`` → ``allgather``."""
    return (operation_of(name) or "").lower().replace("_", "")


def _first_known(column: pl.Series, first: Integers, call: Integers) -> pl.Series:
    """Return the first value of each call that is not null, of rows of calls; ``first`` are the calls' first rows."""
    if column.null_count() in (0, len(column)):
        return column[places(first)]
    known = np.flatnonzero(column.is_not_null().to_numpy())
    row = np.full(len(first), -1, np.int64)
    row[call[known][::-1]] = known[::-1]  # assigned backwards, so that the first stays
    return column[places(row)]


def _operations(timeline: RankTimeline, spans: Integers) -> list[str]:
    """Return the operations in the names of calls, else the names."""
    names = timeline.names(spans)
    said = {name: operation_of(name) or name.lower() for name in set(names)}
    return [said[name] for name in names]


def _numbered(timeline: RankTimeline, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with their order in the group, from 0, where the source numbers none of the group.

    Operations between two ranks are not numbered: other ranks of the group have others. Neither are those of a group
    that is not known, and those of a sample: every rank draws its own.
    """
    if not rows["sequence"].null_count() or (timeline.tracks["name"] == SAMPLED).any():
        return rows
    pairwise = pl.col("operation").cast(pl.String).str.contains(_POINT_TO_POINT)
    start = timeline.ts[rows["span"].to_numpy()]
    known = rows.with_columns(start=start, place=pl.int_range(pl.len())).filter(
        pl.col("group").is_not_null() & ~pairwise & pl.col("source").is_null() & pl.col("destination").is_null()
    )
    known = known.filter(pl.col("sequence").is_null().all().over("group")).sort("start", maintain_order=True)
    number = known.select("place", number=pl.int_range(pl.len()).over("group"))
    numbered = rows.with_row_index("place").with_columns(pl.col("place").cast(pl.Int64))
    numbered = numbered.join(number, on="place", how="left", maintain_order="left")
    return numbered.with_columns(pl.coalesce("sequence", "number").alias("sequence")).select(rows.columns)


def _of_spans(collectives: pl.DataFrame, spans: Integers) -> pl.DataFrame:
    """Return the row of each span, with nothing but the span if it has none."""
    rows = places(first_places(collectives["span"].to_numpy(), spans))
    return with_series(taken(collectives, rows), [pl.Series("span", spans, collectives["span"].dtype)])


def _calls(timeline: RankTimeline, nearest: Integers, operator: Integers) -> tuple[Integers, Integers]:
    """Return the innermost collective call around each launch, and the one around that; −1 without one."""
    inner = looked_up(nearest, operator)
    return inner, looked_up(nearest, looked_up(timeline.parent, inner))


def _outermost(timeline: RankTimeline, nearest: Integers, calls: Integers) -> Integers:
    """Return the outermost collective call around each call, or the call itself; −1 stays −1.

    A range between two ranks within another such range is not part of it: the program only waited for that one later.
    """
    between = timeline.named(_BETWEEN_TWO) > 0
    result = calls
    while len(around := looked_up(nearest, looked_up(timeline.parent, result))):
        part = (around >= 0) & ~(between[around] & between[result])
        if not part.any():
            break
        result = np.where(part, around, result)
    return result

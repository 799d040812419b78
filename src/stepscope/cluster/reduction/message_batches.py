"""Batches of messages: one kernel sends and receives them, and says nothing of them; the host's calls do.

PyTorch launches what ``batch_isend_irecv`` is given as one kernel, after the calls, without a group
(pytorch/pytorch#194693).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from stepscope.analyse.operators.operator_calls import rows_of
from stepscope.trace.tables import Tables, columns_of

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: What the kernel of a batch is called, in lower case and without underscores; and a message, as the host calls it.
_BATCHES, _MESSAGES = ("coalesced", "sendrecv"), ("send", "recv", "isend", "irecv")


def kernels_of_messages(tables: Tables, rows: pl.DataFrame, on_stream: Mask) -> Integers:
    """Return for each collective the row of the kernel that sends or receives it in a batch; -1 for all others.

    A kernel belongs to the calls before it on the thread that launched it, if that thread launched nothing else in
    between, the calls name one group, and the kernel names none. If two kernels follow the calls, nobody knows which of
    them sends what: neither belongs to them.

    Args:
        tables: The tables of a rank.
        rows: Its collectives: span, operation, group.
        on_stream: Which of them run on a stream.
    """
    found = np.full(len(rows), -1, np.int64)
    operations = rows["operation"].to_list()
    plain = {name: str(name).lower().replace("_", "") for name in set(operations)}
    if not set(plain.values()) & set(_BATCHES):
        return found
    calls = np.flatnonzero(np.array([plain[name] in _MESSAGES for name in operations], np.bool_) & ~on_stream)
    batch = np.array([plain[name] in _BATCHES for name in operations], np.bool_) & on_stream
    batch &= rows["group"].is_null().to_numpy()
    if not len(calls) or not batch.any():
        return found
    kernels = columns_of(tables, "kernels", "span", "launch").drop_nulls("launch")
    # What one call launches together, such as a graph, has no order.
    kernels = kernels.filter(pl.len().over("launch") == 1)
    spans = columns_of(tables, "spans", "id", "track", "ts")
    track, ts = spans["track"].to_numpy(), spans["ts"].to_numpy()
    launch = rows_of(spans["id"], kernels["launch"])
    kernels, launch = kernels.filter(pl.Series(launch >= 0)), launch[launch >= 0]
    if not len(launch):
        return found
    order = np.lexsort((ts[launch], track[launch]))
    launch, span = launch[order], kernels["span"].to_numpy()[order]
    row_of = dict(zip(rows["span"].to_list(), range(len(rows)), strict=True))
    row = np.array([row_of.get(one, -1) for one in span.tolist()], np.int64)
    sends = (row >= 0) & batch[row]
    following = _following(track[launch], ts[launch], rows_of(spans["id"], rows["span"][calls]), track, ts)
    there = following >= 0
    calls, following = calls[there & sends[following]], following[there & sends[following]]
    first = np.isin(np.arange(len(row)), following)
    # A kernel without calls of its own, after one with calls on the same thread, is of the same batch.
    more = np.append(sends[1:] & ~first[1:] & (track[launch][1:] == track[launch][:-1]), False)
    said = pl.DataFrame({"kernel": following, "group": rows["group"].gather(calls)})
    one_group = said.select((pl.col("group").n_unique() == 1).over("kernel"))["group"].to_numpy()
    certain = one_group & ~more[following]
    found[calls[certain]] = row[following[certain]]
    return found


def _following(launch_track: Integers, launch_ts: Integers, calls: Integers, track: Integers, ts: Integers) -> Integers:
    """Return for each call the place of the first launch after it on its thread, -1 if there is none."""
    places = np.full(len(calls), -1, np.int64)
    for thread in np.unique(track[calls]).tolist():
        low, high = np.searchsorted(launch_track, [thread, thread + 1])
        mine = track[calls] == thread
        place = low + np.searchsorted(launch_ts[low:high], ts[calls[mine]])
        places[mine] = np.where(place < high, place, -1)
    return places

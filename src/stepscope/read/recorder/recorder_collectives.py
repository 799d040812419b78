"""Calls of torch.distributed, and what their backend did for them → the table ``collectives``, one row a collective.

A call (``c10d::allreduce_``) launches communication on the thread of the program; the backend does it, perhaps on a
thread of its own, and says so by a range (``gloo:all_reduce``). Both have the same ``LAUNCH`` word. Together they are
one collective: it begins with the call, and ends when the range does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import Mask
from stepscope.read.common.plain_text import printable
from stepscope.read.recorder.operator_inputs import InputItem, items_of
from stepscope.trace.recorder_layout import PLACE_BITS, Input

_MOST = 1 << 31
#: What the names of calls begin with.
CALL = "c10d::"

#: Operation by what is in the name of a call, first match first.
_OPERATIONS = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reduce_scatter": "reduce_scatter", "alltoall": "all_to_all",
    "reduce": "reduce", "broadcast": "broadcast", "gather": "gather", "scatter": "scatter", "barrier": "barrier",
    "send": "send", "recv": "recv",
}  # fmt: skip


class ProcessGroups:
    """The process groups of a job, as a file's ``distributed`` says them."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._world_size = said.get("world_size")
        config = said.get("pg_config")
        listed = [group for group in config if isinstance(group, dict)] if isinstance(config, list) else []
        self._groups = {str(group.get("pg_name")): group for group in listed}

    def ranks(self, name: str, size: int) -> list[int] | None:
        """Return the ranks of a group in the job, in the order of the ranks in the group; None if it is not said."""
        ranks = self._groups.get(name, {}).get("ranks")
        if (
            isinstance(ranks, list)
            and len(ranks) == size
            and all(type(rank) is int and 0 <= rank < _MOST for rank in ranks)
        ):
            return ranks
        return list(range(size)) if self._world_size == size else None

    def backend(self, name: str) -> str | None:
        """Return the backend of a group, in lower case; None unless it has exactly one."""
        config = str(self._groups.get(name, {}).get("backend_config") or "")
        backends = {part.rpartition(":")[2].lower() for part in config.split(",")}
        return printable(backends.pop()) or None if len(backends) == 1 else None

    def label(self, name: str) -> str:
        """Return the name of a group and what the program calls it: ``3 (mesh_dp)``."""
        called = str(self._groups.get(name, {}).get("pg_desc") or "undefined")
        return name if called == "undefined" else printable(f"{name} ({called})")


@dataclass(frozen=True)
class Launches:
    """Communication, an entry for each call that launched some.

    Attributes:
        call: Row of the call.
        work: Row of what the backend did, of several the call in which it says its arguments, else the last that ended;
            the row of the call if it did nothing.
        parts: Rows of the other things that the backend did for any call.
        place: Place in the group, from 0; −1 if unknown.
    """

    call: Integers
    work: Integers
    parts: Integers
    place: Integers


def launches(launch: Integers, is_call: Mask, is_range: Mask, end: Integers) -> Launches:
    """Pair calls with what was done for them.

    Args:
        launch: Value of the LAUNCH word of each row, 0 for none.
        is_call: Which rows are calls of torch.distributed.
        is_range: Which rows are ranges of a backend.
        end: When each row ends.
    """
    calls = np.flatnonzero((launch > 0) & is_call)
    works = np.flatnonzero((launch > 0) & ~is_call)
    calls = calls[np.unique(launch[calls], return_index=True)[1]]
    works = works[np.lexsort((end[works], ~is_range[works], launch[works]))]
    last = np.searchsorted(launch[works], launch[calls], side="right") - 1
    done = last >= 0
    done[done] = launch[works[last[done]]] == launch[calls[done]]
    work = np.where(done, works[last] if len(works) else calls, calls)
    known = works[np.isin(launch[works], launch[calls])]
    place = (launch[calls] & ((1 << PLACE_BITS) - 1)) - 1
    return Launches(calls, work, np.setdiff1d(known, work), place)


def described(
    calls: Sequence[str], works: Sequence[str], inputs: Sequence[bytes], groups: ProcessGroups
) -> pl.DataFrame:
    """Return what is known of communication, a row for each call.

    Args:
        calls: Name of each call.
        works: Name of what was done for each.
        inputs: Definition of each call's inputs; empty where they were not recorded.
        groups: The process groups.
    """
    known = {key: _call(*key, groups) for key in set(zip(calls, inputs, strict=True))}
    rows = [known[key] for key in zip(calls, inputs, strict=True)]
    said = [_backend(work) or row["transport"] for work, row in zip(works, rows, strict=True)]
    frame = pl.DataFrame({name: [row[name] for row in rows] for name in _SCHEMA}, _SCHEMA)
    return frame.with_columns(transport=pl.Series(said, dtype=pl.String))


_SCHEMA = {
    "operation": pl.String, "group": pl.String, "group_ranks": pl.String, "group_size": pl.Int64, "dtype": pl.String,
    "bytes_in": pl.Int64, "bytes_out": pl.Int64, "source": pl.Int64, "destination": pl.Int64, "transport": pl.String,
}  # fmt: skip


def operation(call: str) -> str:
    """Return the operation of a call, as torch.distributed names it in Python."""
    name = call.removeprefix(CALL)
    return next((said for part, said in _OPERATIONS.items() if part in name), name)


def _backend(work: str) -> str | None:
    """Return the backend in the name of its range: ``gloo:all_reduce``."""
    backend, colon, rest = work.partition(":")
    return printable(backend).lower() if colon and not rest.startswith(":") else None


def _call(name: str, content: bytes, groups: ProcessGroups) -> dict[str, Any]:
    """Return what is known of a call by its name and inputs."""
    said: dict[str, Any] = dict.fromkeys(_SCHEMA)
    said["operation"] = kind = operation(name)
    items, _ = items_of(content)
    at, group = next(((at, item.group) for at, item in enumerate(items) if item.group is not None), (0, None))
    if group is None or not group.rank < group.size < _MOST:
        return said
    ranks = groups.ranks(group.name, group.size)
    said |= {
        "group": group.name,
        "group_size": group.size,
        "group_ranks": json.dumps(ranks) if ranks is not None else None,
        "transport": groups.backend(group.name),
    }
    if kind in ("send", "recv"):
        me, other = ("source", "destination") if kind == "send" else ("destination", "source")
        first = next((int(item.value) for item in items[at:] if item.kind == Input.INTEGER), None)
        said[me] = _rank(ranks, group.rank)
        said[other] = None if name == f"{CALL}recv_any_source_" else _rank(ranks, first)
    return said | _sizes(kind, items[:at])


def _rank(ranks: Sequence[int] | None, place: int | None) -> int | None:
    return ranks[place] if ranks is not None and place is not None and 0 <= place < len(ranks) else None


def _sizes(kind: str, tensors: Sequence[InputItem]) -> dict[str, Any]:
    """Return type and bytes of what comes before the group: the tensors to write and those to read, or one for both."""
    if kind == "barrier" or not tensors:
        return {}
    out, into = _bytes(tensors[0]), _bytes(tensors[-1])
    dtypes = {tensor.dtype for item in tensors for tensor in item.tensors if tensor.dtype}
    return {
        "bytes_in": 0 if kind == "recv" else into,
        "bytes_out": 0 if kind == "send" else out,
        "dtype": dtypes.pop() if len(dtypes) == 1 else None,
    }


def _bytes(item: InputItem) -> int | None:
    """Return the bytes of the tensors of an input; None if one of them is not known."""
    known = [(tensor.element_size, tensor.shape) for tensor in item.tensors if tensor.dtype]
    if any(size is None for size, _ in known):
        return None
    total = sum((size or 0) * prod(shape) for size, shape in known)
    return total if total < 1 << 63 else None


def lanes(owners: Sequence[str], begin: Integers, end: Integers) -> list[str]:
    """Return the name of a track for each piece of work: its owner's, numbered where several overlap."""
    free: dict[str, list[int]] = {}
    names = [""] * len(owners)
    for at in np.lexsort((end, begin)).tolist():
        name = owners[at]
        ends = free.setdefault(name, [])
        place = next((place for place, last in enumerate(ends) if last <= begin[at]), len(ends))
        ends[place:] = [int(end[at]), *ends[place + 1 :]]
        names[at] = name if place == 0 else f"{name} · {place + 1}"
    return names

"""Memory taken and freed, as PyTorch's ``memory_viz`` reads it: a snapshot, and a page that shows it."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from stepscope.report.protocol import Source
from stepscope.report.safe_text import storable
from stepscope.report.whole_files import write_whole
from stepscope.trace.tables import Tables, columns_of

#: A frame of a stack, or an event of the allocator, under the names of ``torch/cuda/memory.py``.
_Named: TypeAlias = dict[str, Any]
#: PyTorch's own page (``torch/cuda/_memory_viz.py``), which takes its viewer from PyTorch's repository.
_PAGE = """<!DOCTYPE html>
<html>
<head><meta charset="utf-8"><title>Memory</title></head>
<body>
<script type="module">
import {add_local_files} from "https://cdn.jsdelivr.net/gh/pytorch/pytorch@main/torch/utils/viz/MemoryViz.js"
add_local_files(%s, "Active Memory Timeline")
</script>
</body>
</html>
"""


@dataclass(frozen=True)
class MemoryViz:
    """``memory.pickle``, for https://pytorch.org/memory_viz, and ``memory_viz.html``, which holds the same."""

    name: str = "memory_viz"

    def write(self, source: Source, directory: Path) -> list[Path]:
        """Write the files; see :class:`stepscope.report.protocol.Format`."""
        content = pickle.dumps(_as_snapshot(source.tables), 4)
        encoded = base64.b64encode(content + b"\0" * (-len(content) % 3)).decode()
        page = _PAGE % json.dumps([{"name": "snapshot.pickle", "base64": encoded}])
        paths = directory / "memory.pickle", directory / "memory_viz.html"
        for path, whole in zip(paths, (content, page.encode()), strict=True):
            write_whole(path, whole)
        return list(paths)


def _as_snapshot(tables: Tables) -> dict[str, Any]:
    """Return what ``torch.cuda.memory._snapshot`` would: a history for each device, and segments in the end.

    GPUs have their numbers; other devices follow. Blocks without an address, and those of other software, are left out.
    A segment is there if the history says of each block in use in it where it lies.
    """
    stacks: dict[int | None, list[_Named]] = {None: []}
    for number, frames in columns_of(tables, "stacks", "id", "frames").iter_rows():
        stacks[number] = [
            {"filename": storable(one["file"] or "??"), "line": one["line"] or 0, "name": storable(one["function"])}
            for one in frames
        ]
    columns = ("device", "ts", "address", "bytes", "stream", "unused", "stack", "component")
    rows = columns_of(tables, "allocations", *columns).with_columns(pl.col("device").cast(pl.String))
    rows = rows.filter(pl.col("component").is_null() & pl.col("address").is_not_null() & (pl.col("bytes") != 0))
    numbers = _numbers(rows["device"].unique().to_list())
    histories: list[list[_Named]] = [[] for _ in range(max(numbers.values(), default=-1) + 1)]
    alive: dict[tuple[str, int], _Named] = {}
    for device, ts, address, size, stream, unused, stack, _ in rows.sort("ts", maintain_order=True).iter_rows():
        event = {"addr": address % (1 << 64), "size": abs(size), "stream": stream or 0, "frames": stacks.get(stack, [])}
        history = histories[numbers[device]]
        if size > 0:
            alive[device, address] = event
            history.append({"action": "alloc", "time_us": ts // 1000, **event})
        else:
            alive.pop((device, address), None)
            history.append({"action": "free_requested", "time_us": ts // 1000, **event})
            history.append({"action": "free_completed", "time_us": max(unused or ts, ts) // 1000, **event})
    for history in histories:
        history.sort(key=lambda event: event["time_us"])
    return {"segments": _segments(tables, alive, numbers, stacks), "device_traces": histories}


def _numbers(devices: Sequence[str]) -> dict[str, int]:
    """Return the place of each device among the histories."""
    numbers = {name: int(name[5:]) for name in devices if name.startswith("cuda:") and name[5:].isdecimal()}
    numbers = {name: number for name, number in numbers.items() if number < 1 << 10}
    first = max(numbers.values(), default=-1) + 1
    others = sorted(set(devices) - numbers.keys())
    return {**numbers, **{name: first + place for place, name in enumerate(others)}}


def _segments(
    tables: Tables,
    alive: Mapping[tuple[str, int], _Named],
    numbers: Mapping[str, int],
    stacks: Mapping[int | None, list[_Named]],
) -> list[_Named]:
    columns = ("device", "address", "bytes", "allocated", "requested", "stream", "pool", "expandable", "stack")
    found = []
    for row in columns_of(tables, "memory_segments", *columns).iter_rows(named=True):
        begin, end = row["address"], (row["address"] or 0) + row["bytes"]
        inside = sorted(
            at for device, at in alive if device == row["device"] and begin is not None and begin <= at < end
        )
        blocks = [alive[row["device"], at] for at in inside]
        if row["device"] not in numbers or sum(block["size"] for block in blocks) != (row["requested"] or 0):
            continue
        found.append({
            "device": numbers[row["device"]], "address": begin % (1 << 64), "total_size": row["bytes"],
            "allocated_size": row["allocated"], "active_size": row["allocated"],
            "requested_size": row["requested"] or 0, "stream": row["stream"] or 0,
            "segment_type": row["pool"] or "large", "segment_pool_id": (0, 0),
            "is_expandable": bool(row["expandable"]), "frames": stacks.get(row["stack"], []),
            "blocks": _tiled(blocks, begin % (1 << 64), end % (1 << 64)),
        })  # fmt: skip
    return found


def _tiled(blocks: Sequence[_Named], begin: int, end: int) -> list[_Named]:
    """Return the blocks of a segment one after the other, with the free ones between."""
    tiles, at = [], begin
    for block in blocks:
        if block["addr"] > at:
            tiles.append(
                {"address": at, "size": block["addr"] - at, "requested_size": 0, "state": "inactive", "frames": []}
            )
        used = {"requested_size": block["size"], "state": "active_allocated", "frames": block["frames"]}
        tiles.append({"address": block["addr"], "size": block["size"], **used})
        at = block["addr"] + block["size"]
    if end > at:
        tiles.append({"address": at, "size": end - at, "requested_size": 0, "state": "inactive", "frames": []})
    return tiles

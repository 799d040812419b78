"""Files of MindSpore 1.x with more about the kernels and links of other files → columns of frames.

Readers of a file raise InputError if it cannot be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.read.ascend.ascend_frames import Frames, complete, conform, rows_of, stacked
from stepscope.read.ascend.text import csv_rows
from stepscope.read.ascend.text.text_values import json_object, reals
from stepscope.read.common.source import Progress
from stepscope.trace.losses import LossLedger

_MS = 1_000_000
_AI_CPU = "AI_CPU"
#: Header of ``flops_{id}.txt``, without its white space and in lower case → name, unit, parts of the unit.
_FLOPS = {
    "mflops(10^6cube)": ("cube FLOPs", "", 1e6),
    "gflops(10^9cube)": ("cube FLOPS", "1/s", 1e9),
    "flopsutilization(cube)": ("cube FLOPS utilization", "%", 1.0),
    "mflops(10^6vector)": ("vector FLOPs", "", 1e6),
    "gflops(10^9vector)": ("vector FLOPS", "1/s", 1e9),
    "flopsutilization(vec)": ("vector FLOPS utilization", "%", 1.0),
    "flops": ("FLOPs", "", 1e6),
    "flopsutilization": ("FLOPS utilization", "%", 1.0),
}
#: Columns of ``hccl_raw_{id}.csv`` with sums that no table has.
_COSTS = ("step_num", "communication_cost", "wait_cost")
_KB = 1000


def ai_cpu(path: Path, ledger: LossLedger, progress: Progress | None = None) -> Frames:
    """Return the tasks of ``aicpu_intermediate_{id}.csv``, with the time of dispatch and the total time of each."""
    tasks, counters, first = [], [], 0
    for rows in csv_rows.read(path, ledger, progress):
        begin, end, name = rows.ns("run_start"), rows.ns("run_end"), rows.text("kernel_type", "op_type")
        tasks.append(pl.DataFrame({"ts": begin, "dur": end - begin, "name": name, "op_type": name}))
        for column in ("total_time", "dispatch_time"):
            value = pl.DataFrame({"value": rows.real(column)}).with_row_index("row", offset=first)
            counters.append(value.with_columns(name=pl.lit(column), unit=pl.lit("ms")).drop_nulls("value"))
        first += len(rows)
    sorts = [pl.lit(_AI_CPU, pl.Categorical()).alias(column) for column in ("type", "core")]
    found = stacked("tasks", tasks).with_columns(sorts)
    return complete({"tasks": found, "task_counters": stacked("task_counters", counters)})


def flops(path: Path, ledger: LossLedger, progress: Progress | None = None) -> pl.DataFrame:
    """Return what ``flops_{id}.txt`` says of kernels by their full name: op, name, value, unit."""
    parts = [pl.DataFrame(schema={"op": pl.Categorical, "value": pl.Float64, "name": pl.String, "unit": pl.String})]
    for rows in csv_rows.read(path, ledger, progress):
        for header in rows.headers:
            known = _FLOPS.get(csv_rows.key_of(header))
            if known is not None:
                name, unit, factor = known
                # `FLOPs` and `FLOPS` are two columns of older versions: 10^6 operations, and 10^9 of them a second.
                if header.strip() == "FLOPS":
                    name, unit, factor = "FLOPS", "1/s", 1e9
                value = reals(rows.frame[f"column_{rows.headers.index(header) + 1}"], ledger) * factor
                frame = pl.DataFrame({"op": rows.text("full_kernel_name", "full_op_name"), "value": value})
                parts.append(frame.with_columns(name=pl.lit(name), unit=pl.lit(unit)))
    return pl.concat(parts).drop_nulls("value")


def with_flops(tasks: pl.DataFrame, said: pl.DataFrame) -> pl.DataFrame:
    """Return the frame ``task_counters``: the rows of a kernel, for each of its runs."""
    known = tasks.select(op="name").with_row_index("row")
    return conform("task_counters", known.join(said, on="op", maintain_order="left"))


def links(path: Path, ledger: LossLedger, progress: Progress | None = None) -> pl.DataFrame:
    """Return the frame ``matrix`` of ``hccl_raw_{id}.csv``: what each operation and all moved between two ranks."""
    found: list[dict[str, Any]] = []
    for rows in csv_rows.read(path, ledger, progress):
        step = rows.integer("step_num").to_list()
        for number, whole, single in zip(
            step, rows.raw("link_info").to_list(), rows.raw("communication_operator_cost").to_list(), strict=True
        ):
            if number is None:
                continue  # the line of averages
            everything = {"step": number, "place": "total", "operation": "Total"}
            found += [everything | link for link in _of_link(json_object(whole or "{}", ledger), ledger)]
            for name, said in json_object(single or "{}", ledger).items():
                moved = said[3] if isinstance(said, list) and len(said) == 4 else None
                operation = name.rpartition("_")[2].partition("-op")[0].lower()
                place = {"step": number, "place": "one", "operation": operation, "name": name}
                found += [place | link for link in _of_link(moved, ledger)]
    return rows_of("matrix", found)


def _of_link(links: object, ledger: LossLedger) -> Iterator[dict[str, Any]]:
    """Yield the links of ``{"1-0": {"SDMA": [ms, KB, KB/s]}}``."""
    for ends, moved in links.items() if isinstance(links, dict) else ():
        source, _, destination = ends.partition("-")
        for transport, numbers in moved.items() if isinstance(moved, dict) else ():
            sound = isinstance(numbers, list) and len(numbers) == 3 and all(map(_is_amount, numbers))
            if not sound or not (source.isdecimal() and destination.isdecimal()) or len(ends) > 18:
                ledger.add("value_unreadable")
                continue
            time, size, speed = numbers
            yield {
                "source": int(source),
                "destination": int(destination),
                "transport": transport,
                "time": round(time * _MS),
                "bytes": round(size * _KB),
                "bandwidth": speed * _KB / 1e9,
            }


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12


def costs(rows: csv_rows.AscendRows) -> pl.DataFrame:
    """Return the sums of ``hccl_raw_{id}.csv`` for each step as one fact: ms of communication and of waiting."""
    records = pl.DataFrame({header: rows.raw(header) for header in _COSTS}).to_dicts()
    return pl.DataFrame({"key": ["hccl_raw"], "value": [json.dumps(records)]})

"""Perfetto's own parser reads our two timelines and finds every slice, every time to the nanosecond, and no error.

The rule: ``trace.pftrace`` holds one slice per row of ``spans`` and one per row of ``steps``. ``trace_view.json`` holds
one per row of ``spans``, and one per step that the source file did not itself mark as ``ProfilerStep#N`` at that time.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl
import pytest

from stepscope.report.protocol import Source
from stepscope.report.safe_text import printable
from stepscope.report.timeline.chrome_trace import TraceView
from stepscope.report.timeline.perfetto.writer import Pftrace
from stepscope.trace.tables import Tables
from tests.sizes import first_quick

from . import hostile
from .trace_processor import Row, ask

Slices: TypeAlias = "Counter[tuple[int, int, str]]"

SLICES = "select ts, dur, name from slice"
#: What the parser could not use, from its own table; `info` rows only describe the file.
LOST = "select name, severity, value from stats where severity in ('error', 'data_loss') and value > 0"
ARROWS = "select a.ts, a.name, b.ts, b.name from flow join slice a on a.id = slice_out join slice b on b.id = slice_in"
SAMPLES = "select count(*) from counter"
#: A GPU, nanoseconds, an AMD GPU, a CPU with gloo, Python stacks, an MTIA with spans that cross.
FILES = ("nccl_2023_rank0", "nanoseconds_2024", "mi210_2025", "gloo_cpu_2024", "h100_small_2025", "mtia_2026")


@pytest.mark.parametrize("name", first_quick(FILES, 2))
def test_pftrace_holds_every_span_and_step(name: str, tables_of: Callable[[str], Tables], tmp_path: Path) -> None:
    tables = tables_of(name)
    [path] = Pftrace().write(Source(tables, {}, {}), tmp_path)
    slices, lost, arrows = ask(path, [SLICES, LOST, ARROWS])
    assert lost == []
    assert Counter(slices) == spans(tables) + steps(tables, "step ")
    assert Counter(arrows) == drawable(tables)


@pytest.mark.parametrize("name", first_quick(FILES, 2))
def test_trace_view_holds_every_span_and_step(name: str, tables_of: Callable[[str], Tables], tmp_path: Path) -> None:
    tables = tables_of(name)
    [path] = TraceView().write(Source(tables, {}, {}), tmp_path)
    slices, lost, arrows = ask(path, [SLICES, LOST, ARROWS])
    assert lost == []
    base = json.loads(path.read_text())["baseTimeNanoseconds"]
    assert Counter((ts + base, dur, text) for ts, dur, text in slices) == spans(tables) + unmarked(tables)
    assert Counter((begin + base, one, end + base, other) for begin, one, end, other in arrows) == drawable(tables)


@pytest.mark.parametrize("output", [Pftrace(), TraceView()], ids=lambda output: output.name)
def test_hostile_tables_lose_nothing(output: Any, tmp_path: Path) -> None:
    source = hostile.source()
    [path] = output.write(source, tmp_path)
    times, lost, names, arrows, samples = ask(
        path, ["select ts, dur from slice", LOST, "select name from slice", ARROWS, SAMPLES]
    )
    assert lost == []
    expected = spans(source.tables) + steps(source.tables, "")
    first = 0 if output.name == "pftrace" else json.loads(path.read_text())["baseTimeNanoseconds"]
    assert Counter((ts + first, dur) for ts, dur in times) == Counter((ts, dur) for ts, dur, _ in expected.elements())
    # NUL ends a text in the parser's answer. In JSON it reads no \u escapes, and calls the empty name "[No name]".
    told = {name for name in hostile.NAMES if "\0" not in name}
    if output.name == "trace":
        told = {name for name in told if name and printable(name) == name}
    assert told <= {name for (name,) in names}
    # One arrow forward from the launch, two from the first operator; not those back in time, to itself, to nowhere.
    assert len(arrows) == 3
    # Two counters each of eight names with two finite samples, and one sample of memory.
    assert samples == [(2 * 8 * 2 + 1,)]


def test_two_ranks_concatenated_are_one_picture(tables_of: Callable[[str], Tables], tmp_path: Path) -> None:
    # Given both ranks of a job, whose processes have different numbers
    ranks = [tables_of(name) for name in ("nccl_2023_rank0", "nccl_2023_rank1")]
    written = [Pftrace().write(Source(rank, {}, {}), tmp_path / str(i))[0] for i, rank in enumerate(ranks)]
    # When their files are put one behind the other
    both = tmp_path / "both.pftrace"
    both.write_bytes(b"".join(path.read_bytes() for path in written))
    slices, lost = ask(both, [SLICES, LOST])
    # Then the parser sees all of both
    assert lost == []
    assert Counter(slices) == sum((spans(rank) + steps(rank, "step ") for rank in ranks), Counter())


def test_arguments_and_tracks_can_be_asked_for(tables_of: Callable[[str], Tables], tmp_path: Path) -> None:
    tables = tables_of("nccl_2023_rank0")
    [path] = Pftrace().write(Source(tables, {}, {}), tmp_path)
    arguments, per_track = ask(
        path,
        [
            "select ts, key, display_value from slice join args using (arg_set_id) where category = 'kernel'",
            "select t.name, count(*) from slice join track t on track_id = t.id where t.name glob 'stream*' group by 1",
        ],
    )
    kernels = tables["kernels"].join(tables["spans"].filter(pl.col("kind") == "kernel"), left_on="span", right_on="id")
    known = kernels.select("ts", pl.col("registers").cast(pl.String)).drop_nulls().collect().rows()
    assert Counter((ts, value) for ts, key, value in arguments if key == "debug.registers per thread") == Counter(known)
    by_track = tables["spans"].join(tables["tracks"].filter(pl.col("kind") == "stream"), left_on="track", right_on="id")
    counted = by_track.group_by("name_right").len().collect().rows()
    assert Counter(dict(per_track)) == Counter(dict(counted))


def spans(tables: Tables) -> Slices:
    return Counter(tables["spans"].select("ts", "dur", pl.col("name").cast(pl.String)).collect().iter_rows())


def steps(tables: Tables, prefix: str) -> Slices:
    rows: list[Row] = tables["steps"].select("ts", "dur", "number").collect().rows()
    return Counter((ts, dur, f"{prefix}{number}") for ts, dur, number in rows)


def unmarked(tables: Tables) -> Slices:
    marked = (
        tables["spans"].filter(pl.col("kind") == "step").select("ts", pl.col("name").cast(pl.String)).collect().rows()
    )
    return Counter(
        {step: count for step, count in steps(tables, "ProfilerStep#").items() if step[::2] not in set(marked)}
    )


def drawable(tables: Tables) -> Counter[Row]:
    """Return start and name of both ends of the arrows whose ends are there and that point forward in time."""
    rows = tables["spans"].select("id", "ts", pl.col("name").cast(pl.String)).collect().iter_rows()
    ends = {number: (ts, name) for number, ts, name in rows}
    arrows = tables["flows"].select("from", "to").collect().rows()
    both = [(*ends[begin], *ends[end]) for begin, end in arrows if begin in ends and end in ends]
    return Counter(row for row in both if row[0] < row[2])

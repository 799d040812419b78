"""MindSpore's operators on the CPU: times, shapes, and the thread that ran each.

``cpu_op_execute_timestamp_{rank}.txt`` has one line for each operator: ``full name;HostCpuOps;`` and then, for every
call, ``start in ns since the epoch,duration in ms,0``. ``cpu_framework_{rank}.txt`` has one line for each call, in
order: ``type;name;graph;input_1:[2, 2];input_2:NoShape;``; the fast operators of PyNative are nameless there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import sound_spans
from stepscope.read.common.plain_text import lines_of
from stepscope.read.mindspore.host_pipeline import LAUNCHES
from stepscope.read.mindspore.mindspore_names import parse
from stepscope.trace.losses import LossLedger

_LINE = r"^(?<full>.*);[^;]*;(?<calls>[^;]*)$"
_DETAIL_LINE = r"^[^,]*,[^,]*,.*,(?<count>\d+),(?<ms>[^,]*),[^,]*,[^,]*,[^,]*,(?<process>\d+)\s*$"
_DETAILS = ("count", "ms", "process")
# More operators at once than threads of a machine: only a damaged file has them; the rest share a lane.
_MOST_LANES = 256
_INPUT = re.compile(r"input_\d+:(NoShape|\[[-\d, ]*\])")
#: Bytes per element, by the name that MindSpore gives the type.
_ELEMENT_SIZE = {
    "Bool": 1, "Int8": 1, "UInt8": 1, "Int16": 2, "UInt16": 2, "Float16": 2, "BFloat16": 2, "Int32": 4, "UInt32": 4,
    "Float32": 4, "Int64": 8, "UInt64": 8, "Float64": 8, "Complex64": 8, "Complex128": 16,
}  # fmt: skip
_COLLECTIVE: dict[str, type[pl.DataType]] = {
    "group": pl.String,
    "group_ranks": pl.String,
    "group_size": pl.Int64,
    "dtype": pl.String,
    "bytes_in": pl.Int64,
    "bytes_out": pl.Int64,
    "source": pl.Int64,
    "destination": pl.Int64,
}
_NAME_SCHEMA = {
    "full": pl.String,
    "short": pl.String,
    "type": pl.String,
    "module": pl.String,
    "phase": pl.String,
    "operation": pl.String,
}


def read(paths: Sequence[Path], ledger: LossLedger, *, compiled: bool) -> pl.DataFrame:
    """Return every operator call of files ``cpu_op_execute_timestamp_*.txt`` in order of start.

    Returns:
        Columns ts, dur (ns), full, short, type, module, phase, operation.
    """
    none = pl.DataFrame(schema={"full": pl.String, "ts": pl.Int64, "dur": pl.Int64})
    calls = pl.concat([none, *(_calls(path, ledger) for path in paths)])
    distinct = calls["full"].unique(maintain_order=True).to_list()
    rows = [{"full": full, **vars(parse(full, compiled=compiled))} for full in distinct]
    names = pl.DataFrame(rows, schema=_NAME_SCHEMA)
    return calls.sort("ts", "full").join(names, on="full", how="left", maintain_order="left")


def _calls(path: Path, ledger: LossLedger) -> pl.DataFrame:
    lines = lines_of(path, ledger).to_frame().select(pl.col("line").str.extract_groups(_LINE).alias("at")).unnest("at")
    whole = lines.filter(pl.col("calls").is_not_null())
    ledger.add("event_damaged", lines.height - whole.height)
    calls = whole.with_columns(pl.col("calls").str.strip_chars().str.split(" ")).explode("calls")
    calls = calls.filter(pl.col("calls") != "")
    fields = calls.select("full", pl.col("calls").str.splitn(",", 3).alias("at")).unnest("at")
    numbers = fields.select(
        "full",
        pl.col("field_0").cast(pl.Int64, strict=False).alias("ts"),
        pl.col("field_1").cast(pl.Float64, strict=False).alias("ms"),
        pl.col("field_2").cast(pl.Int64, strict=False).alias("thread"),
    )
    whole = numbers.filter(pl.all_horizontal(pl.col("ts", "ms", "thread").is_not_null()))
    ledger.add("event_damaged", numbers.height - whole.height)
    ns = (pl.col("ms") * 1e6).round().cast(pl.Int64, strict=False)
    timed = whole.select("full", "ts", ns.alias("dur"))
    return sound_spans(timed, ledger)


def read_counts(paths: Sequence[Path], ledger: LossLedger) -> tuple[int | None, int | None, float | None]:
    """Return calls, process and time (ns) that ``cpu_op_detail_info_*.csv`` states; None where it does not say."""
    parsed = pl.concat(
        [
            lines_of(path, ledger).to_frame().select(pl.col("line").str.extract_groups(_DETAIL_LINE).alias("at"))
            for path in paths
        ]
        or [pl.DataFrame({"at": []}, schema={"at": pl.Struct(dict.fromkeys(_DETAILS, pl.String))})]
    )
    columns = [pl.col("count", "process").cast(pl.Int64, strict=False), pl.col("ms").cast(pl.Float64, strict=False)]
    rows = parsed.unnest("at").select(columns).drop_nulls()
    if not rows.height:
        return None, None, None
    return int(rows["count"].sum()), int(rows["process"][0]), float(rows["ms"].sum()) * 1_000_000


def with_shapes(operators: pl.DataFrame, paths: Sequence[Path], ledger: LossLedger) -> pl.DataFrame:
    """Add the shapes of inputs (``cpu_framework_*.txt``) as JSON: the n-th call of a name has its n-th line.

    Where a name has more calls than lines, or fewer, its shapes are known only if all its lines agree.
    """
    lines = pl.concat([pl.Series("line", [], dtype=pl.String), *(lines_of(path, ledger) for path in paths)])
    fields = lines.to_frame().select(pl.col("line").str.splitn(";", 4).alias("at")).unnest("at")
    ledger.add("event_damaged", int(fields["field_2"].is_null().sum()))
    named = fields.filter((pl.col("field_1") != "") & pl.col("field_3").is_not_null())
    texts = named["field_3"].unique(maintain_order=True)
    shapes = pl.DataFrame({"field_3": texts, "shapes": pl.Series([_shapes(text) for text in texts], dtype=pl.String)})
    said = named.join(shapes, on="field_3", how="left", maintain_order="left").select(short="field_1", shapes="shapes")
    said = said.with_columns(turn=pl.int_range(pl.len()).over("short"))
    by_name = said.group_by("short").agg(
        pl.len().alias("lines"), pl.col("shapes").first().alias("only"), pl.col("shapes").n_unique().alias("sorts")
    )
    turns = operators.with_columns(turn=pl.int_range(pl.len()).over("short"), calls=pl.len().over("short"))
    joined = turns.join(said, on=["short", "turn"], how="left", maintain_order="left")
    joined = joined.join(by_name, on="short", how="left", maintain_order="left")
    known = pl.when(pl.col("calls") == pl.col("lines")).then("shapes").when(pl.col("sorts") == 1).then("only")
    return joined.with_columns(shapes=known).drop("turn", "calls", "lines", "only", "sorts")


def _shapes(text: str) -> str:
    """Return the shapes of a line's inputs as JSON; inputs that are not tensors have none, as PyTorch writes it."""
    found = ("[]" if shape == "NoShape" else shape for shape in _INPUT.findall(text))
    return f"[{','.join(shape.replace(' ', '') for shape in found)}]"


def with_threads(operators: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Add the thread that ran each operator: that of the launch of its type which it contains; null without one."""
    launches = events.filter(pl.col("name").is_in(LAUNCHES)).select("ts", pl.col("op").alias("type"), "dur", "thread")
    rows = operators.with_row_index("row").select("row", "ts", "type", end=pl.col("ts") + pl.col("dur"), start="ts")
    # Grouped by type and sorted by time, as the join needs it; each launch finds the last operator begun before it.
    found = launches.sort("ts").join_asof(rows.sort("ts"), on="ts", by="type", check_sortedness=False)
    inside = found.filter(pl.col("ts") + pl.col("dur") <= pl.col("end")).unique("row", keep="first")
    indexed = operators.with_row_index("row")
    return indexed.join(inside.select("row", "thread"), on="row", how="left", maintain_order="left").drop("row")


def lanes(ts: Integers, end: Integers) -> Integers:
    """Return a lane for each interval (ns, by ascending start), on as many lanes as needed so that none overlap.

    Each lane takes the first interval left, then the first that begins after that ends, and so on. Which ones those
    are is found for all at once, by distances that double.
    """
    lane = np.full(len(ts), _MOST_LANES, np.int64)
    left, number = np.arange(len(ts)), 0
    while len(left) and number < _MOST_LANES:
        # An interval of no length begins where its predecessor does; it still comes after itself.
        following = np.maximum(np.searchsorted(ts[left], end[left], side="left"), np.arange(1, len(left) + 1))
        taken = _reached(following)
        lane[left[taken]] = number
        left, number = left[~taken], number + 1
    return lane


def _reached(following: Integers) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which places are reached from the first by going to the following one again and again."""
    jump = np.append(following, len(following))
    reached = np.zeros(len(jump), np.bool_)
    reached[0] = True
    while not reached[jump[reached]].all():
        reached[jump[reached]] = True
        jump = jump[jump]
    return reached[:-1]


def details(operators: pl.DataFrame, said: Mapping[str, object]) -> pl.DataFrame:
    """Return the table ``collectives`` of operators with a column ``span``.

    Type and bytes are those of the inputs. A compiled graph says no types; it reduces gradients, whose type
    is that of the parameters of their shape.

    Args:
        operators: Operators with their spans.
        said: What the collector knows of all collectives: group, group_size, group_ranks, and parameter_types.
    """
    group = {name: said[name] for name in ("group", "group_size", "group_ranks") if name in said}
    types = said.get("parameter_types")
    types = types if isinstance(types, dict) else {}
    chosen = operators.filter(pl.col("operation").is_not_null())
    if "dtypes" not in chosen.columns:
        chosen = chosen.with_columns(dtypes=pl.lit(None, pl.String))
    rows = chosen.select("operation", pl.col("shapes", "dtypes").cast(pl.String)).iter_rows()
    known = [{**group, **_moved(operation, shapes, dtypes, types)} for operation, shapes, dtypes in rows]
    columns = {
        name: pl.Series([_value(row.get(name), kind) for row in known], dtype=kind)
        for name, kind in _COLLECTIVE.items()
    }
    return chosen.select("span", "operation").with_columns(**columns)


def _moved(operation: str, shapes: str | None, dtypes: str | None, types: Mapping[str, object]) -> dict[str, object]:
    """Return type and bytes of what an operation puts in, and of what it receives where that is as much."""
    if shapes is None:
        return {}
    try:
        sizes = json.loads(shapes)
        named = json.loads(dtypes) if dtypes is not None else [types.get(str(size)) for size in sizes]
        if dtypes is None and any(size and kind is None for size, kind in zip(sizes, named, strict=True)):
            return {}
        inputs = list(zip(sizes, named, strict=True))
        tensors = [(shape, dtype) for shape, dtype in inputs if dtype in _ELEMENT_SIZE]
        size = sum(math.prod(shape) * _ELEMENT_SIZE[dtype] for shape, dtype in tensors)
    except (ValueError, TypeError):
        return {}
    if not tensors or not isinstance(size, int) or size < 0:
        return {}
    kinds = {dtype for _, dtype in tensors}
    alike = {"bytes_out": size} if operation in ("allreduce", "broadcast") else {}
    return {"bytes_in": size, **alike, **({"dtype": kinds.pop()} if len(kinds) == 1 else {})}


def _value(value: object, kind: type[pl.DataType]) -> object:
    """Return a value that the column can hold, else None."""
    if kind is pl.String:
        return value if value is None or isinstance(value, str) else json.dumps(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62 else None

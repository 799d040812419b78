"""``Profiler.op_analyse``: how often operators of a type ran, by the shapes of their inputs."""

from __future__ import annotations

import importlib
import json
import os
import warnings
from typing import TYPE_CHECKING, Any

from stepscope.compat.mindspore.situations import deliver
from stepscope.errors import ArgumentError, StateError, StepscopeError

if TYPE_CHECKING:
    from stepscope.compat.mindspore.recorder import MindSporeRecorder

_DEPRECATED = "mindspore.Profiler.op_analyse is deprecated and will be removed in future versions.  "


def op_analyse(recorder: MindSporeRecorder, op_name: object, device_id: object) -> str | None:
    """Return MindSpore's JSON text for operators of the last window; after an error None if exceptions are off.

    Raises:
        ArgumentError: An argument has the wrong type.
        StateError: Nothing has been recorded, or an operator did not run.
    """
    warnings.warn(_DEPRECATED, stacklevel=3)
    try:
        return json.dumps(_answer(recorder, _checked_names(op_name), _checked_device(device_id)))
    except (ArgumentError, StateError) as error:
        deliver(error, f"Call to op_analyse failed. Exception: {error}")
        return None


def _checked_names(op_name: object) -> list[str]:
    if not isinstance(op_name, str | list):
        text = f"op_name must be str or list, but got type {type(op_name)}"
    elif not op_name:
        text = "op_name cannot be None."
    elif isinstance(op_name, list) and not all(isinstance(name, str) for name in op_name):
        text = "op_name must hold names of operators"
    else:
        return [op_name] if isinstance(op_name, str) else op_name
    message = f"For 'Profiler.op_analyse()', the parameter {text}"
    raise ArgumentError(message, 'Write op_analyse(op_name=["MatMul", "BiasAdd"]).')


def _checked_device(device_id: object) -> str:
    if device_id is None:
        return os.environ.get("DEVICE_ID", "0")
    if not isinstance(device_id, int) or isinstance(device_id, bool):
        message = f"For 'Profiler.op_analyse()', the parameter device_id must be int, but got type {type(device_id)}"
        raise ArgumentError(message, "Leave it out.")
    return str(device_id)


def _answer(recorder: MindSporeRecorder, names: list[str], device: str) -> dict[str, Any]:
    if recorder.running or not recorder.recorded:
        message = (
            f"op_analyse() was called {'while recording' if recorder.running else 'before anything was recorded'}."
        )
        raise StateError(message, "Call analyse() first.")
    last = recorder.recorded[-1]
    try:
        last.wait()
        run = importlib.import_module("stepscope.run").Run(last.rank_path)
        calls = _calls(run.tables)
    except StepscopeError as error:
        raise StateError(error.message, error.remedy) from None
    return {**{name: _of_type(calls, name) for name in names}, "device_id": device}


def _calls(tables: Any) -> Any:  # noqa: ANN401 - Polars frames, which are not imported here
    """Return a row for every type of operator and shapes of its inputs: name, shapes, count, total (ns)."""
    polars = importlib.import_module("polars")
    column = polars.col
    ran = tables["spans"].filter(column("kind").cast(polars.String).is_in(["operator", "collective"]))
    shapes = tables["operators"].select(column("span").alias("id"), column("shapes").cast(polars.String))
    joined = ran.select("id", column("name").cast(polars.String), "dur").join(shapes, on="id", how="left")
    grouped = joined.group_by("name", "shapes").agg(count=polars.len(), total=column("dur").sum())
    return grouped.sort("total", "shapes", descending=[True, False]).collect()


def _of_type(calls: Any, name: str) -> list[dict[str, Any]]:  # noqa: ANN401
    """Return MindSpore's rows for one type of operator, the longest first; times in microseconds.

    Raises:
        StateError: No operator has this type.
    """
    rows = [row for row in calls.iter_rows(named=True) if row["name"] == name]
    if not rows:
        message = f"The information of <{name}> is not found."
        raise StateError(
            message, "Please verify that the operator name is correct or the operator is used in the network."
        )
    return [
        {
            "op_side": "cpu",
            "input_shape": _input_shape(row["shapes"]),
            "op_occurrences": row["count"],
            "op_total_time(us)": round(row["total"] / 1e3, 4),
            "op_avg_time(us)": round(row["total"] / row["count"] / 1e3, 4),
        }
        for row in rows
    ]


def _input_shape(shapes: str | None) -> str:
    """Return shapes as MindSpore's files have them: ``input_1:[2, 2],input_2:NoShape``; empty where unknown."""
    known = json.loads(shapes) if shapes else []
    return ",".join(f"input_{number}:{'NoShape' if shape is None else shape}" for number, shape in enumerate(known, 1))

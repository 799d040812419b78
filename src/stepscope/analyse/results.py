"""Every result by name: which function computes it, and as what file it is written."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import polars as pl

from stepscope.analyse.communication.collective_times import communication, communication_matrix
from stepscope.analyse.data.dataset import dataset
from stepscope.analyse.data.minddata_pipeline import minddata_pipeline_raw, minddata_pipeline_summary
from stepscope.analyse.device.api_statistic import api_statistic
from stepscope.analyse.device.device_time import device_time
from stepscope.analyse.device.gpu_counters import hbm, pcie
from stepscope.analyse.device.kernel_details import kernel_details
from stepscope.analyse.device.npu_counters import l2_cache, npu_module_mem, static_op_mem
from stepscope.analyse.memory.memory_profile import memory_profile
from stepscope.analyse.memory.memory_record import memory_record, operator_memory
from stepscope.analyse.operators.instruction_details import instruction_details
from stepscope.analyse.operators.op_statistic import op_statistic
from stepscope.analyse.operators.operator_details import operator_details
from stepscope.analyse.operators.roofline import roofline
from stepscope.analyse.step import sample
from stepscope.analyse.step.step_trace_time import step_trace_time
from stepscope.trace.tables import Tables, complete, has_rows, lazy

Answer: TypeAlias = "pl.DataFrame | dict[str, Any]"


@dataclass(frozen=True)
class Result:
    """One result: its name, the pure function that computes it, its file's extension (csv or json), and one line.

    ``optional`` results are left out of the files of a run that has nothing for them. ``needs`` are tables without rows
    of which a result has none either, whatever else the run has.
    """

    name: str
    function: Callable[[Tables], Answer]
    extension: str
    doc: str
    optional: bool = False
    needs: tuple[str, ...] = ()


RESULTS: dict[str, Result] = {
    result.name: result
    for result in (
        Result("step_trace_time", step_trace_time, "csv", "where each step goes: computing, communication, free, …"),
        Result("device_time", device_time, "csv", "how busy each device was, all its streams united"),
        Result("op_statistic", op_statistic, "csv", "time by kernel name per device, and by operator on the host"),
        Result("kernel_details", kernel_details, "csv", "every kernel, copy, fill and collective by itself"),
        Result("operator_details", operator_details, "csv", "every operator call: inputs, stack, host and device time"),
        Result(
            "instruction_details",
            instruction_details,
            "csv",
            "every instruction of the compiled programs that ran, and what it consists of",
            optional=True,
            needs=("instructions",),
        ),
        Result(
            "roofline",
            roofline,
            "csv",
            "operations and bytes of every operator, and how near it comes to what its device can do",
            optional=True,
            needs=("operators",),
        ),
        Result("api_statistic", api_statistic, "csv", "calls of the device's runtime and driver, and of communication"),
        Result(
            "memory_record",
            memory_record,
            "csv",
            "memory allocated and reserved over time",
            needs=("allocations", "counters"),
        ),
        Result(
            "operator_memory",
            operator_memory,
            "csv",
            "every block of memory: operator, size, life",
            needs=("allocations",),
        ),
        Result(
            "memory_profile",
            memory_profile,
            "csv",
            "memory alive at the end, by the line that took it",
            optional=True,
            needs=("live_memory",),
        ),
        Result("dataset", dataset, "csv", "waits of the training thread for its batches"),
        Result(
            "minddata_pipeline_raw",
            minddata_pipeline_raw,
            "csv",
            "every operation of the data pipeline: its queue at every sample",
            optional=True,
            needs=("pipeline",),
        ),
        Result(
            "minddata_pipeline_summary",
            minddata_pipeline_summary,
            "json",
            "the data pipeline: queues, CPU use, times of a batch, and what holds it up",
            optional=True,
            needs=("pipeline",),
        ),
        Result("pcie", pcie, "csv", "traffic between each GPU and the host", optional=True, needs=("counters",)),
        Result(
            "hbm", hbm, "csv", "traffic of each GPU's memory, and how busy it was", optional=True, needs=("counters",)
        ),
        Result(
            "l2_cache",
            l2_cache,
            "csv",
            "how each kernel used an NPU's L2 cache",
            optional=True,
            needs=("kernel_counters",),
        ),
        Result(
            "npu_module_mem",
            npu_module_mem,
            "csv",
            "memory of the modules of an NPU's software",
            optional=True,
            needs=("counters",),
        ),
        Result(
            "static_op_mem",
            static_op_mem,
            "csv",
            "memory that compiled graphs set aside",
            optional=True,
            needs=("static_memory",),
        ),
        Result("communication", communication, "json", "every communication operation: times and bandwidths"),
        Result("communication_matrix", communication_matrix, "json", "communication by link between ranks"),
    )
}


def computed(tables: Tables) -> dict[str, Answer]:
    """Compute every result, in order; optional ones only where there is something to say."""
    sampled = sample.fraction(tables)
    answers = {name: _computed(name, tables, sampled) for name in RESULTS}
    return {name: answer for name, answer in answers.items() if len(answer) or not RESULTS[name].optional}


def compute(name: str, tables: Tables) -> Answer:
    """Compute the result ``name`` from the tables of a rank. Tables of a sample of the operators say so.

    Raises:
        KeyError: There is no result of that name.
    """
    return _computed(name, tables, sample.fraction(tables))


def _computed(name: str, tables: Tables, sampled: float) -> Answer:
    result = RESULTS[name]
    nothing = result.needs and not any(has_rows(tables, needed) for needed in result.needs)
    answer = copy.copy(_of_nothing(name)) if nothing else result.function(tables)
    return sample.marked(answer, sampled) if isinstance(answer, pl.DataFrame) else answer


@cache
def _of_nothing(name: str) -> Answer:
    return RESULTS[name].function(lazy(complete({})))

"""Every result by name: which function computes it, and as what file it is written."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import polars as pl

from stepscope.analyse.communication.collective_times import communication, communication_matrix
from stepscope.analyse.data.dataset import dataset
from stepscope.analyse.data.minddata_pipeline import minddata_pipeline_raw, minddata_pipeline_summary
from stepscope.analyse.device.api_statistic import api_statistic
from stepscope.analyse.device.device_time import device_time
from stepscope.analyse.device.gpu_counters import gpus_sampled, hbm, pcie
from stepscope.analyse.device.kernel_details import kernel_details
from stepscope.analyse.device.npu_counters import l2_cache, modules_sampled, npu_module_mem, static_op_mem
from stepscope.analyse.memory.memory_profile import memory_profile
from stepscope.analyse.memory.memory_record import memory_record, operator_memory
from stepscope.analyse.operators.instruction_details import instruction_details
from stepscope.analyse.operators.op_statistic import op_statistic
from stepscope.analyse.operators.operator_details import operator_details
from stepscope.analyse.operators.roofline import costs_known, roofline
from stepscope.analyse.step import sample
from stepscope.analyse.step.step_trace_time import step_trace_time
from stepscope.extensions import besides
from stepscope.trace.tables import Tables, complete, has_rows, lazy

#: What an analysis computes: a table, or a nested document.
Result: TypeAlias = "pl.DataFrame | dict[str, Any]"


@dataclass(frozen=True)
class ResultKind:
    """One question that an analysis answers.

    Attributes:
        name: Name of the result and stem of its file.
        function: The pure function that computes it.
        extension: Extension of its file: csv or json.
        doc: What the result holds, in one line.
        optional: Whether a rank of which the result has no rows has no such result.
        needs: Tables; where all of them have no rows, neither has the result.
        possible: Says cheaply that the result has no rows by returning False; only a computation confirms a True.
    """

    name: str
    function: Callable[[Tables], Result]
    extension: str
    doc: str
    optional: bool = False
    needs: tuple[str, ...] = ()
    possible: Callable[[Tables], bool] = lambda _: True


def _always(function: Callable[[Tables], Result], doc: str, *needs: str, extension: str = "csv") -> ResultKind:
    return ResultKind(function.__name__, function, extension, doc, needs=needs)


def _optional(
    function: Callable[[Tables], Result], doc: str, needs: str, possible: Callable[[Tables], bool] = lambda _: True
) -> ResultKind:
    return ResultKind(function.__name__, function, "csv", doc, optional=True, needs=(needs,), possible=possible)


_ALL = (
    _always(step_trace_time, "where each step goes: computing, communication, free, …"),
    _always(device_time, "how busy each device was, all its streams united"),
    _always(op_statistic, "time by kernel name per device, and by operator on the host"),
    _always(kernel_details, "every kernel, copy, fill and collective by itself"),
    _always(operator_details, "every operator call: inputs, stack, host and device time"),
    _optional(
        instruction_details,
        "every instruction of the compiled programs that ran, and what it consists of",
        "instructions",
    ),
    _optional(
        roofline,
        "operations and bytes of every operator, and how near it comes to what its device can do",
        "operators",
        costs_known,
    ),
    _always(api_statistic, "calls of the device's runtime and driver, and of communication"),
    _always(memory_record, "memory allocated and reserved over time", "allocations", "counters"),
    _always(operator_memory, "every block of memory: operator, size, life", "allocations"),
    _optional(memory_profile, "memory alive at the end, by the line that took it", "live_memory"),
    _always(dataset, "waits of the training thread for its batches"),
    _optional(minddata_pipeline_raw, "every operation of the data pipeline: its queue at every sample", "pipeline"),
    replace(
        _optional(
            minddata_pipeline_summary,
            "the data pipeline: queues, CPU use, times of a batch, and what holds it up",
            "pipeline",
        ),
        extension="json",
    ),
    _optional(pcie, "traffic between each GPU and the host", "counters", gpus_sampled),
    _optional(hbm, "traffic of each GPU's memory, and how busy it was", "counters", gpus_sampled),
    _optional(l2_cache, "how each kernel used an NPU's L2 cache", "kernel_counters"),
    _optional(npu_module_mem, "memory of the modules of an NPU's software", "counters", modules_sampled),
    _optional(static_op_mem, "memory that compiled graphs set aside", "static_memory"),
    _always(communication, "every communication operation: times and bandwidths", extension="json"),
    _always(communication_matrix, "communication by link between ranks", extension="json"),
)
RESULTS: dict[str, ResultKind] = {kind.name: kind for kind in _ALL}


def kinds() -> dict[str, ResultKind]:
    """Return :data:`RESULTS` and the kinds of result that other packages add."""
    return RESULTS | {name: replace(kind, name=name) for name, kind in besides("stepscope.results", RESULTS).items()}


class Results(Mapping[str, Result]):
    """The results of a rank by name; each is computed once, when it is first read.

    Which results there are costs no computation but for optional ones whose tables have rows.

    Args:
        tables: Tables of the rank.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._computed: dict[str, Result] = {}

    def __getitem__(self, name: str) -> Result:
        if name not in self:
            raise KeyError(name)
        return self.compute(name)

    def __contains__(self, name: object) -> bool:
        kind = kinds().get(name) if isinstance(name, str) else None
        if kind is None or not kind.optional:
            return kind is not None
        return _has_needs(kind, self._tables) and kind.possible(self._tables) and len(self.compute(kind.name)) > 0

    def __iter__(self) -> Iterator[str]:
        return (name for name in kinds() if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def compute(self, name: str) -> Result:
        """Return a result, also an optional one without rows.

        Raises:
            KeyError: No result has that name.
        """
        if name not in self._computed:
            self._computed[name] = compute(name, self._tables)
        return self._computed[name]


def compute(name: str, tables: Tables) -> Result:
    """Compute the result ``name`` from the tables of a rank. Tables of a sample of the operators say so.

    Raises:
        KeyError: No result has that name.
    """
    kind = kinds()[name]
    result = kind.function(tables) if _has_needs(kind, tables) else copy.copy(_without_rows(name))
    return sample.marked(result, sample.fraction(tables)) if isinstance(result, pl.DataFrame) else result


def _has_needs(kind: ResultKind, tables: Tables) -> bool:
    return not kind.needs or any(has_rows(tables, needed) for needed in kind.needs)


@cache
def _without_rows(name: str) -> Result:
    return kinds()[name].function(lazy(complete({})))

"""Every result by name: which function computes it, and as what file it is written."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import polars as pl

from stepscope.analyse import there
from stepscope.analyse.anatomy.own_operators import modules_known, operator_lines, operator_modules, stacks_known
from stepscope.analyse.anatomy.slow_steps import slow_steps
from stepscope.analyse.anatomy.step_anatomy import step_anatomy
from stepscope.analyse.anatomy.step_variation import step_variation
from stepscope.analyse.communication.collective_times import communication, communication_matrix
from stepscope.analyse.data.batch_stages import batch_stages
from stepscope.analyse.data.dataset import dataset
from stepscope.analyse.data.minddata_pipeline import minddata_pipeline_raw, minddata_pipeline_summary
from stepscope.analyse.device.api_statistic import api_statistic
from stepscope.analyse.device.device_time import device_time
from stepscope.analyse.device.gpu_counters import gpus_sampled, hbm, pcie
from stepscope.analyse.device.kernel_details import first_kernels, kernel_details
from stepscope.analyse.device.kernel_origins import kernel_origins
from stepscope.analyse.device.npu_counters import l2_cache, modules_sampled, npu_module_mem, static_op_mem
from stepscope.analyse.device.streams import streams
from stepscope.analyse.idle.critical_path import critical_path
from stepscope.analyse.idle.idle_reasons import idle_reasons, idle_time
from stepscope.analyse.memory.memory_curve import memory_curve, memory_peak
from stepscope.analyse.memory.memory_growth import memory_fragmentation, memory_growth, reserved_known
from stepscope.analyse.memory.memory_profile import memory_profile
from stepscope.analyse.memory.memory_record import memory_record, operator_memory
from stepscope.analyse.operators.gradient_use import gradient_use
from stepscope.analyse.operators.instruction_details import instruction_details
from stepscope.analyse.operators.op_statistic import op_statistic
from stepscope.analyse.operators.operator_details import first_operators, operator_details
from stepscope.analyse.operators.roofline import costs_known, roofline
from stepscope.analyse.operators.step_efficiency import step_efficiency
from stepscope.analyse.stacks.flame import flame
from stepscope.analyse.stacks.python_lines import python_lines
from stepscope.analyse.step import sample
from stepscope.analyse.step.run_steps import step_times
from stepscope.analyse.step.step_trace_time import split, step_trace_time
from stepscope.analyse.there import Answer
from stepscope.extensions import besides
from stepscope.trace.tables import RankTables, Tables, complete, has_rows, lazy

#: Results of more rows are hundreds of MB.
_MANY_ROWS = 1 << 20

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
        deep: Whether it looks into one rank more closely than the files of each rank of a job need.
    """

    name: str
    function: Callable[[Tables], Result]
    extension: str
    doc: str
    optional: bool = False
    needs: tuple[str, ...] = ()
    there: Callable[[Tables], Answer] = lambda _: None
    first: Callable[[Tables, int], tuple[pl.DataFrame, int]] | None = None
    deep: bool = False


def _unknown(_: Tables) -> Answer:
    return None


def _if_known(known: Callable[[Tables], bool]) -> Callable[[Tables], Answer]:
    """Return the answer where the result has no rows unless something is known."""
    return lambda tables: None if known(tables) else False


def _always(
    function: Callable[[Tables], Result],
    doc: str,
    *needs: str,
    extension: str = "csv",
    there: Callable[[Tables], Answer] = _unknown,
) -> ResultKind:
    return ResultKind(function.__name__, function, extension, doc, needs=needs, there=there)


def _optional(
    function: Callable[[Tables], Result], doc: str, needs: str, there: Callable[[Tables], Answer] = _unknown
) -> ResultKind:
    return ResultKind(function.__name__, function, "csv", doc, optional=True, needs=(needs,), there=there)


_ALL = (
    _always(step_trace_time, "where each step goes: computing, communication, free, …", there=there.steps),
    _always(
        step_times,
        "every step of the run, recorded or not: its time, what it waited for and what was in it",
        there=there.run_steps,
    ),
    _always(step_anatomy, "each step: its parts in rows, its phases in columns", "spans"),
    _optional(step_variation, "how steps differ: spread, trend over the run, the first step", "run_steps"),
    _optional(slow_steps, "what takes longer in the slow steps: operators, kernels, waits", "steps"),
    _always(idle_time, "how long each device does nothing in each step, and why", "spans", there=there.idle),
    _always(idle_reasons, "what devices wait for: operators, calls, lines of Python, waits for data", "spans"),
    _always(
        critical_path, "what decides when a step ends: work, launches, waits and code on the critical path", "spans"
    ),
    _optional(python_lines, "time by line of the program's own Python code, sampled over the whole run", "samples"),
    _optional(flame, "the flame graph: time by Python frame and the frames that called it", "samples"),
    _always(device_time, "how busy each device was, all its streams united", there=there.device_work),
    _always(op_statistic, "time by kernel name per device, and by operator on the host", there=there.work),
    replace(
        _always(
            kernel_details, "every kernel, copy, fill and collective of a device by itself", there=there.device_work
        ),
        first=first_kernels,
    ),
    _always(kernel_origins, "what made each kernel: operator, compiled region, graph, module, line", "kernels"),
    _always(streams, "how each stream of a device is fed and used: queue, launches, short work", "kernels"),
    replace(
        _always(operator_details, "every operator call: inputs, stack, host and device time", there=there.operators),
        first=first_operators,
    ),
    _optional(
        operator_lines, "operators by the program's own line that called them", "operators", _if_known(stacks_known)
    ),
    _optional(
        operator_modules,
        "operators by module: its own, and those of the modules in it",
        "operators",
        _if_known(modules_known),
    ),
    _always(gradient_use, "operators with and without a backward pass, and what is computed again", "flows"),
    _optional(
        instruction_details,
        "every instruction of the compiled programs that ran, and what it consists of",
        "instructions",
    ),
    _optional(
        roofline,
        "operations and bytes of every operator, and how near it comes to what its device can do",
        "operators",
        _if_known(costs_known),
    ),
    _optional(
        step_efficiency,
        "how much of what its devices can do each step uses, and what bounds it",
        "operators",
        _if_known(costs_known),
    ),
    _always(api_statistic, "calls of the device's runtime and driver, and of communication"),
    _always(memory_record, "memory allocated and reserved over time", "allocations", "counters", there=there.memory),
    _always(operator_memory, "every block of memory: operator, size, life", "allocations", there=there.blocks),
    _optional(memory_curve, "memory over time by what it is for", "allocations"),
    _optional(memory_peak, "what is alive when most memory is allocated, and who took it", "allocations"),
    _optional(memory_growth, "who takes memory in every step and keeps it", "allocations"),
    _optional(
        memory_fragmentation, "what an allocator reserves and nobody uses", "allocations", _if_known(reserved_known)
    ),
    _optional(memory_profile, "memory alive at the end, by the line that took it", "live_memory"),
    _always(dataset, "waits of the training thread for its batches", there=there.data_waits),
    _optional(batch_stages, "what making a batch takes, by stage, and how many workers would do", "batches"),
    _optional(minddata_pipeline_raw, "every operation of the data pipeline: its queue at every sample", "pipeline"),
    replace(
        _optional(
            minddata_pipeline_summary,
            "the data pipeline: queues, CPU use, times of a batch, and what holds it up",
            "pipeline",
        ),
        extension="json",
    ),
    _optional(pcie, "traffic between each GPU and the host", "counters", _if_known(gpus_sampled)),
    _optional(hbm, "traffic of each GPU's memory, and how busy it was", "counters", _if_known(gpus_sampled)),
    _optional(l2_cache, "how each kernel used an NPU's L2 cache", "kernel_counters"),
    _optional(npu_module_mem, "memory of the modules of an NPU's software", "counters", _if_known(modules_sampled)),
    _optional(static_op_mem, "memory that compiled graphs set aside", "static_memory"),
    _always(
        communication,
        "every communication operation: times and bandwidths",
        extension="json",
        there=there.communication,
    ),
    _always(communication_matrix, "communication by link between ranks", extension="json", there=there.links),
)
#: Results that are written of a run of one rank, and of a rank of a job where it is asked for.
_DEEP = frozenset(
    {
        "step_anatomy", "step_variation", "slow_steps", "idle_time", "idle_reasons", "critical_path", "kernel_origins",
        "streams", "operator_lines", "operator_modules", "gradient_use", "roofline", "step_efficiency", "memory_curve",
        "memory_peak", "memory_growth", "memory_fragmentation",
    }
)  # fmt: skip
RESULTS: dict[str, ResultKind] = {kind.name: replace(kind, deep=kind.name in _DEEP) for kind in _ALL}


@cache
def kinds() -> dict[str, ResultKind]:
    """Return :data:`RESULTS` and the kinds of result that other packages add."""
    return RESULTS | {name: replace(kind, name=name) for name, kind in besides("stepscope.results", RESULTS).items()}


class Results(Mapping[str, Result]):
    """The results of a rank by name; each is computed once, when it is first read.

    Which results there are costs no computation but for optional ones whose tables have rows. A result of more than
    :data:`_MANY_ROWS` rows is kept until the next one is computed, and as long as a reader keeps it.

    Args:
        tables: Tables of the rank.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._computed: dict[str, Result] = {}
        self._many_rows: WeakValueDictionary[str, pl.DataFrame] = WeakValueDictionary()
        self._last: Result | None = None
        self._family = ""

    def __getitem__(self, name: str) -> Result:
        if name not in self:
            raise KeyError(name)
        return self.compute(name)

    def __contains__(self, name: object) -> bool:
        kind = kinds().get(name) if isinstance(name, str) else None
        return kind is not None and self._has(kind)

    def __iter__(self) -> Iterator[str]:
        return (name for name, kind in kinds().items() if self._has(kind))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _has(self, kind: ResultKind) -> bool:
        return not kind.optional or self.has_rows(kind.name)

    def there(self, name: str) -> Answer:
        """Return whether a result has rows, as far as the tables tell; None where only its computation does.

        Raises:
            KeyError: No result has that name.
        """
        kind = kinds()[name]
        found = self._computed.get(name, self._many_rows.get(name))
        if found is not None:
            return len(found) > 0
        return kind.there(self._tables) if _has_needs(kind, self._tables) else False

    def has_rows(self, name: str) -> bool:
        """Return whether a result has rows; it is computed where the tables do not tell.

        Raises:
            KeyError: No result has that name.
        """
        found = self.there(name)
        return len(self.compute(name)) > 0 if found is None else found

    def compute(self, name: str) -> Result:
        """Return a result, also an optional one without rows.

        Raises:
            KeyError: No result has that name.
        """
        result = self._computed.get(name, self._many_rows.get(name))
        if result is not None:
            return result
        self._last = None
        if name in kinds():
            self._begin(kinds()[name].function.__module__.rpartition(".")[0])
        return self._kept(name, compute(name, self._tables))

    def _kept(self, name: str, result: Result) -> Result:
        self._last = result
        if isinstance(result, pl.DataFrame) and len(result) > _MANY_ROWS:
            self._many_rows[name] = result
        else:
            self._computed[name] = result
        return result

    def first(self, name: str, cells: int) -> tuple[Result, int]:
        """Return a result, of a large table at least its first rows of so many cells together; and its number of rows.

        Raises:
            KeyError: No result has that name.
        """
        kind = kinds()[name]
        if kind.first is None or name in self._computed or name in self._many_rows or not self.there(name):
            found = self.compute(name)
            return found, len(found)
        self._last = None
        self._begin(kind.function.__module__.rpartition(".")[0])
        rows, count = kind.first(self._tables, cells)
        rows = sample.marked(rows, sample.fraction(self._tables))
        return self._kept(name, rows) if len(rows) == count else rows, count

    def _begin(self, family: str) -> None:
        """Drop what the results of another family shared, of a large rank; what steps are is asked by all of them."""
        if isinstance(self._tables, RankTables) and self._tables.large and family != self._family:
            kept, shared = (family, split.__module__.rpartition(".")[0]), self._tables.shared
            self._tables.shared = {one: shared[one] for one in shared if one.__module__.rpartition(".")[0] in kept}
        self._family = family


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

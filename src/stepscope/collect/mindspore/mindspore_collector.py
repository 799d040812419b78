"""MindSpore on a CPU: operators, memory, the host pipeline and data pipelines, recorded by MindSpore itself.

MindSpore keeps its records in its own memory and writes them when the window ends; no event becomes a Python object
here. If the process is killed, only the journal remains.

``capture/mindspore/`` holds MindSpore's files as it names them (``{r}`` is RANK_ID, or 0)::

    cpu_op_execute_timestamp_{r}.txt, cpu_framework_{r}.txt,
    cpu_op_detail_info_{r}.csv, cpu_op_type_info_{r}.csv     operators: Epoch ns, kernel time in ms
    cpu_ms_memory_record_{r}.txt                             memory, with `profile_memory`
    rank_{r}/RuntimeProfilerDetail*.csv                      the host pipeline: see `surgery/mindspore_runtime.py`
    minddata/*.json, *.txt                                   data pipelines, with `data_process`

and ``stepscope.json``::

    format                1
    mindspore             its version
    rank, process         of the recording process
    mode                  graph or pynative, as at the end of the window
    device_target         CPU, GPU or Ascend
    anchors               [[perf_counter_ns, epoch ns], …] at the beginning, and at the end if the window was closed
    host_pipeline         true; false if not requested; else why it was not recorded
    group, group_size, group_ranks, parameter_types    of collectives: see :func:`_collective_facts`
    sampling_interval_ms  between two samples of a data pipeline; with pipeline_begin, perf_counter_ns of the first
"""

from __future__ import annotations

import atexit
import gc
import json
import mmap
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.collect.hooks.methods import MethodHooks
from stepscope.collect.hooks.training_error import keep
from stepscope.collect.mindspore import minddata_recording
from stepscope.collect.options import Options
from stepscope.collect.protocol import Context
from stepscope.collect.surgery import mindspore_runtime
from stepscope.collect.surgery.verified import Unverified, require
from stepscope.trace.clock import take_anchor
from stepscope.trace.run_directory import write_atomically

if TYPE_CHECKING:
    from stepscope.collect.journal.journal import Journal

#: The module of the state that MindSpore's own profilers share.
_INTERFACE = "mindspore.profiler.profiler_interface"
_COMMUNICATION = "mindspore.communication._comm_helper"


class MindSporeCollector:
    """Records one window into ``capture/mindspore/``."""

    name = "mindspore"
    framework = "mindspore"

    def __init__(self) -> None:
        self._directory = Path()
        self._options = Options()
        self._profiler: Any = None
        self._host = mindspore_runtime.RuntimeProfiler()
        self._facts: dict[str, Any] = {}
        self._guard = MethodHooks()
        self._journal: Journal | None = None
        self._started_ns = 0
        self._recording = False
        self._notes: dict[str, object] = {}

    def available(self) -> str | None:
        """Return why MindSpore cannot record now: it is not imported, or its own profiler records."""
        if "mindspore" not in sys.modules:
            return "the program has not imported mindspore"
        if getattr(_foreign_interface(), "is_initialized", False):
            return "MindSpore's own profiler is recording; MindSpore allows one profiler at a time"
        return None

    def prepare(self, context: Context) -> None:
        """Find MindSpore's profiler, and check whether the host pipeline can be recorded on this build."""
        self._options = context.options
        self._profiler = sys.modules["mindspore._c_expression"].Profiler.get_instance("CPU")
        if self._profiler is None:
            message = "this MindSpore has no profiler for the CPU"
            raise RuntimeError(message)
        self._directory = context.capture / "mindspore"
        self._journal = context.journal
        self._facts = {
            "format": 1,
            "mindspore": str(sys.modules["mindspore"].__version__),
            "rank": context.rank,
            "process": os.getpid(),
        }
        if self._options.host_pipeline:
            try:
                require(mindspore_runtime.LIBRARY)
            except Unverified as error:
                self._notes["host_pipeline"] = f"not recorded: {error}"
                context.journal.loss("build_not_verified")

    def start(self) -> None:
        """Open the window.

        Raises:
            RuntimeError: The program has started its own profiler since :meth:`prepare`. Ours would take its recording:
                MindSpore has one, in one directory.
        """
        if reason := self.available():
            raise RuntimeError(reason)
        self._directory.mkdir(mode=0o700)
        if not mindspore_runtime.asked_for_by_program():  # MindSpore's runtime profiler would count the wait as a step
            self._synchronize()  # otherwise operators that were launched before the window would run in it
        anchor = take_anchor()
        self._started_ns = anchor.epoch
        self._facts["anchors"] = [[anchor.monotonic, anchor.epoch]]
        if self._options.data_process:
            self._attempt("data_pipelines", minddata_recording.begin)
        self._profiler.init(str(self._directory))
        self._profiler.step_profiling_enable(True)  # noqa: FBT003 - MindSpore's function knows no keywords
        self._profiler.enable_op_time()
        if self._options.profile_memory:
            self._profiler.enable_profile_memory()
        self._recording = True
        if self._options.host_pipeline and "host_pipeline" not in self._notes:
            self._attempt("host_pipeline", lambda: self._host.start(self._directory))
        self._facts["host_pipeline"] = self._notes.get("host_pipeline", self._options.host_pipeline)
        self._guard.once_before(_foreign_interface(), "init", self._give_way)
        # MindSpore destroys its profiler at exit; stop() would crash afterwards.
        atexit.register(self._end)
        self._write_facts()

    def stop(self) -> list[Path]:
        """Close the window: MindSpore writes its files."""
        self._end()
        return [self._directory] if self._facts.get("anchors") else []

    def settle(self) -> None:
        """Remove the memory records of earlier windows from the file, because MindSpore repeats them."""
        for path in self._memory_records():
            drop_lines_before(path, self._started_ns)

    def describe(self) -> dict[str, object]:
        """Return the version, the mode, and the parts that could not be recorded."""
        facts = ("mode", "device_target", "host_pipeline", "sampling_interval_ms")
        known = {name: self._facts[name] for name in facts if name in self._facts}
        return {"version": self._facts.get("mindspore"), **known, **self._notes}

    def _end(self) -> None:
        if not self._recording or os.getpid() != self._facts["process"]:
            return
        self._recording = False
        atexit.unregister(self._end)
        self._guard.remove()
        self._synchronize()
        self._profiler.stop()
        if not self._options.profile_memory:  # MindSpore cannot switch memory records off again
            for path in self._memory_records():
                path.unlink()
        self._attempt("host_pipeline", self._host.stop)
        if self._options.data_process:
            self._attempt("data_pipelines", self._save_pipelines)
        anchor = take_anchor()
        self._facts["anchors"].append([anchor.monotonic, anchor.epoch])
        self._attempt("collectives", lambda: self._facts.update(_collective_facts()))
        self._write_facts()

    def _synchronize(self) -> None:
        """Wait until all launched operators have run."""
        try:
            _executor().sync()
        except Exception as error:  # noqa: BLE001 - an error of the training, which MindSpore raises only once
            keep(error)

    def _memory_records(self) -> list[Path]:
        return list(self._directory.glob("cpu_ms_memory_record_*.txt"))

    def _save_pipelines(self) -> None:
        minddata_recording.require()
        directory = self._directory / "minddata"
        directory.mkdir(mode=0o700, exist_ok=True)
        begin = minddata_recording.end(directory)
        if any(directory.iterdir()):
            interval = minddata_recording.SAMPLING_INTERVAL_MS
            self._facts.update(sampling_interval_ms=interval, pipeline_begin=begin)
            return
        directory.rmdir()
        message = "no pipeline created during the recording still exists; start the recording before the pipeline"
        raise RuntimeError(message)

    def _attempt(self, part: str, action: Callable[[], None]) -> None:
        """Run one part of the recording. If it fails, the manifest has the reason, and the other parts go on."""
        try:
            action()
        except (RuntimeError, OSError, AttributeError, TypeError) as error:
            self._notes[part] = " ".join(f"not recorded: {error}".split())

    def _give_way(self) -> None:
        """End early, because the program starts MindSpore's own profiler."""
        if self._journal is not None:
            self._notes["ended_early"] = self._journal.ended_early("the program started MindSpore's own profiler")
        self._end()

    def _write_facts(self) -> None:
        context = sys.modules["mindspore.context"]
        graph = context.get_context("mode") == context.GRAPH_MODE
        self._facts["mode"] = "graph" if graph else "pynative"
        self._facts["device_target"] = str(context.get_context("device_target"))
        write_atomically(self._directory / "stepscope.json", json.dumps(self._facts).encode())


def _collective_facts() -> dict[str, object]:
    """Return facts of collectives in compiled graphs that MindSpore's files lack; empty without communication.

    A graph names its operators and the shapes of their inputs, but no groups and types. Data parallel training reduces
    the gradients of parameters, which have the parameters' shapes and types.

    Returns:
        ``group``, ``group_size`` and ``group_ranks`` of all collectives, if the group of all ranks is the only one;
        ``parameter_types``: shape as JSON → type, for each shape whose parameters all have one type.
    """
    module: Any = sys.modules.get(_COMMUNICATION)
    world = getattr(module, "GlobalComm", None)
    if not getattr(world, "INITED", False):
        return {}
    group: dict[str, object] = {}
    if getattr(module, "_ExistingGroup", None) is not None and not module._ExistingGroup.ITEMS:
        size = sys.modules["mindspore"].communication.get_group_size()
        group = {"group": str(module.GlobalComm.WORLD_COMM_GROUP), "group_size": size, "group_ranks": list(range(size))}
    return {**group, "parameter_types": _parameter_types()}


def _parameter_types() -> dict[str, str]:
    kind = sys.modules["mindspore"].nn.Cell
    found: dict[str, set[str]] = {}
    for item in gc.get_objects():
        if issubclass(type(item), kind):  # isinstance() raises for a dead weak proxy
            for parameter in item.__dict__.get("_params", {}).values():
                if parameter is not None:
                    found.setdefault(str(list(parameter.shape)), set()).add(str(parameter.dtype))
    return {shape: types.pop() for shape, types in found.items() if len(types) == 1}


def drop_lines_before(path: Path, time_ns: int) -> None:
    """Remove the lines of a memory record that are older than ``time_ns``, in ns since the Epoch.

    The file has a heading, and lines ``time,allocated,reserved,active`` in order of time.
    """
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            heading = content.find(b"\n") + 1
            first = _first_line_since(content, heading, time_ns)
            if first == heading:
                return
            kept = content[:heading] + content[first:]
    partial = path.with_name(f".{path.name}")
    partial.write_bytes(kept)
    partial.chmod(0o600)
    partial.replace(path)


def _first_line_since(content: mmap.mmap, begin: int, time_ns: int) -> int:
    """Return the offset of the first line of that time or later, by bisection."""
    low, high = begin, len(content)
    while low < high:
        middle = content.rfind(b"\n", begin, (low + high) // 2) + 1 or begin
        if int(content[middle : content.find(b",", middle)]) < time_ns:
            low = content.find(b"\n", middle) + 1 or len(content)
        else:
            high = middle
    return low


def _executor() -> Any:  # noqa: ANN401 - MindSpore's PyNative executor
    """Return the executor, which is in another module up to MindSpore 2.7."""
    module = sys.modules.get("mindspore.graph.api") or sys.modules["mindspore.common.api"]
    return module._pynative_executor


def _foreign_interface() -> Any:  # noqa: ANN401 - a class of MindSpore
    """Return the class that sets up MindSpore's own profilers; None before the program has imported it."""
    return getattr(sys.modules.get(_INTERFACE), "ProfilerInterface", None)

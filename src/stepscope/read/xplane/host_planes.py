"""Threads of the host: what runs on them, by the planes ``/host:…``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepscope.read.common.nesting import Integers
from stepscope.read.common.part_builder import KIND_CODE, Mask, TrackRow
from stepscope.read.common.xla import xla_host_events
from stepscope.read.xplane import program_runs
from stepscope.read.xplane.batches import XplaneBatch, batches
from stepscope.read.xplane.compiled_programs import RunInstructions
from stepscope.read.xplane.gathered_rows import XplaneRows
from stepscope.read.xplane.planes import Plane
from stepscope.trace.xplane_marks import NATIVE_ID

#: What annotations carry besides the arguments that the user gave.
_NOT_ARGUMENTS = frozenset(
    {"hlo_op", "hlo_module", "program_id", "run_id", "device_ordinal", "correlation_id", "group_id"}
)


@dataclass(frozen=True)
class HostPlane:
    """A plane with threads."""

    plane: Plane
    rows: XplaneRows
    operations: RunInstructions

    def read(self) -> None:
        """Read all threads."""
        process = self.plane.stats.get("process_id")
        classes = xla_host_events.classes(self.plane.event_names)
        for line in self.plane.lines:
            name = line.name.decode("utf-8", "replace")
            known = process if isinstance(process, int) else None
            track = self.rows.track(TrackRow("thread", "cpu", name.split("/")[0] or "thread", known, line.id))
            own = "/" in name  # a thread that XLA made has its number behind its name
            for batch in batches(self.plane, line, classes == xla_host_events.DROPPED):
                self._add(batch, classes[batch.place], track, own=own)

    def _add(self, batch: XplaneBatch, classes: npt.NDArray[np.uint8], track: int, *, own: bool) -> None:
        is_mark = classes == xla_host_events.MARK
        if is_mark.any():
            tracks = self.rows.part.tracks.rows
            said = batch.integers(NATIVE_ID).drop_nulls().to_list()
            tracks[track] = tracks[track]._replace(thread=said[-1] if said else None)
            batch, classes = batch.where(~is_mark), classes[~is_mark]
        is_memory = classes == xla_host_events.MEMORY
        if is_memory.any():
            self.rows.allocations(track, batch.where(is_memory))
            batch, classes = batch.where(~is_memory), classes[~is_memory]
        correlation = batch.integers("correlation_id")
        called = correlation.is_not_null().to_numpy()
        operation = self.operations.of(batch)
        kind = _kinds(batch, classes, called, operation, own=own)
        first = self.rows.add(batch, track, kind, correlation=correlation, operation=np.where(called, -1, operation))
        self._arguments(batch, first, kind)
        if (kind == KIND_CODE["step"]).any():
            self.rows.steps(batch, kind == KIND_CODE["step"])
        running = (operation >= 0) & ~called
        program_runs.note_calls(self.rows, batch, running, own=own)
        if running.any():
            program_runs.note_runs(self.rows, batch.where(running))

    def _arguments(self, batch: XplaneBatch, first: int, kind: npt.NDArray[np.uint8]) -> None:
        """Keep what the user gave to annotations and steps."""
        named = np.isin(kind, (KIND_CODE["annotation"], KIND_CODE["step"]))
        stats = batch.stats.where(named[batch.stats.owner] & (batch.stats.key >= 0))
        given = np.array([not name.startswith("_") and name not in _NOT_ARGUMENTS for name in self.plane.stat_names])
        if len(stats.owner):
            self.rows.arguments(self.plane, stats.where(given[stats.key]), first)


def _kinds(
    batch: XplaneBatch, classes: npt.NDArray[np.uint8], called: Mask, operation: Integers, *, own: bool
) -> npt.NDArray[np.uint8]:
    """Return the number of each event's kind.

    What carries a correlation number calls the device; what names an instruction runs it; what carries ``step_num`` is
    a step. XLA marks its own work with the place in its source, and its threads run nothing else.
    """
    kind = np.full(len(batch), KIND_CODE["runtime" if own else "annotation"], np.uint8)
    kind[(classes == xla_host_events.INTERNAL) | batch.has("_src")] = KIND_CODE["runtime"]
    kind[classes == xla_host_events.PYTHON] = KIND_CODE["python"]
    kind[batch.has("step_num")] = KIND_CODE["step"]
    kind[operation >= 0] = KIND_CODE["operator"]
    kind[called] = KIND_CODE["runtime"]
    return kind

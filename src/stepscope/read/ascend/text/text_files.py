"""The text files of one rank of an Ascend capture → frames.

Each file is read on its own, and its losses are counted under its name: a missing, cut or foreign file does not affect
the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import polars as pl

from stepscope.errors import InputError
from stepscope.read.ascend import stated_sums
from stepscope.read.ascend.ascend_facts import AscendFacts
from stepscope.read.ascend.ascend_files import OF_GPU
from stepscope.read.ascend.ascend_frames import FRAMES, Frames, complete, empty, stacked
from stepscope.read.ascend.legacy import added_sums, gpu_folder, npu_folder
from stepscope.read.ascend.text import (
    communication_files,
    csv_files,
    csv_rows,
    join,
    op_range,
    timeline_events,
    timeline_frames,
)
from stepscope.read.ascend.text.csv_rows import AscendRows
from stepscope.read.common.source import Capture, Progress
from stepscope.trace.ascend_columns import COLUMNS
from stepscope.trace.losses import LossLedger

#: Times before this (1973) count from the start of the machine.
_EPOCH = 100_000_000_000_000_000
_TIMED = ("host", "tasks", "communications", "communication_tasks", "steps", "counters", "memory")
_CARDS = {"nic": "NIC", "roce": "RoCE"}


#: Kind of file of MindSpore 1.x → its reader.
_LEGACY: dict[str, Callable[[Path, LossLedger, Progress | None], Frames]] = {
    "timeline_1": npu_folder.timeline,
    "display_1": npu_folder.display,
    "ai_cpu_1": added_sums.ai_cpu,
    "gpu_kernels": gpu_folder.kernels,
    "gpu_operators": gpu_folder.operators,
    "gpu_display": gpu_folder.display,
}
_Made = TypeVar("_Made")


class AscendText:
    """Reads the text files of a capture.

    Args:
        capture: The files.
        facts: What it says of the recording.
        progress: Called with bytes read and bytes in total.
    """

    def __init__(self, capture: Capture, facts: AscendFacts, progress: Progress | None = None) -> None:
        self.ledgers: list[LossLedger] = []
        self._capture = capture
        self._facts = facts
        self._progress = progress
        self._headers: dict[str, list[str]] = {}
        self._done = 0
        self._total = sum(path.stat().st_size for path in capture.all)

    def frames(self) -> Frames:
        """Return what all files say together."""
        frames = timeline_frames.merged([*self._timelines(), *self._of_framework(), *self._of_old_versions()])
        frames = {**frames, **{name: self._on_epoch(frames[name]) for name in _TIMED}}
        kernels = self._rows("kernels", csv_files.kernels)
        if kernels:
            frames = join.with_kernels(frames, pl.concat(kernels, how="diagonal_relaxed"))
        for operations, bandwidths in self._each("communication", communication_files.times):
            stated_here = stated_sums.of_operations(operations, "communication.json")
            frames = {**frames, "stated": pl.concat([frames["stated"], stated_here])}
            frames = join.with_sums(frames, operations, bandwidths)
        frames = self._with_counters(frames)
        for inputs in [*self._together("inputs", csv_files.inputs), *self._each("calls", op_range.inputs)]:
            frames = join.with_inputs(frames, inputs)
        stated, facts = self._stated()
        samples = self._samples(frames)
        said = pl.concat([frames["facts"], self._said(), facts, self._columns()])
        return complete({**frames, **samples, "facts": said, "stated": pl.concat([frames["stated"], stated])})

    def _columns(self) -> pl.DataFrame:
        """Return the columns of the CSV files, which differ by level and version, as a fact."""
        value = [json.dumps(self._headers)] if self._headers else []
        return pl.DataFrame({"key": [COLUMNS] * len(value), "value": value}, schema=FRAMES["facts"])

    def _stated(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return the sums that files state, and the rows of results in them as facts."""
        found = [
            (result, path, rows)
            for result in stated_sums.RESULTS
            for path in self._capture.of(f"stated_{result}")
            if (rows := self._of_rows(path, partial(stated_sums.of_rows, result=result))) is not None
        ]
        sums = [stated_sums.sums(result, rows, path.name) for result, path, rows in found]
        return pl.concat([empty("stated"), *sums]), stated_sums.facts((result, rows) for result, _, rows in found)

    def with_framework(self, frames: Frames) -> Frames:
        """Fill the frames of the framework that are empty from MindSpore's raw records.

        Args:
            frames: What a database says.
        """
        # Calls of CANN are not rows of the framework.
        own = {"op_range": frames["host"].filter(pl.col("sort") != "api"), "memory_usage": frames["blocks"]}
        found = self._of_framework([sort for sort, frame in own.items() if not frame.height])
        whole = timeline_frames.merged([frames, *found]) if found else frames
        for inputs in self._each("calls", op_range.inputs) if found else ():
            whole = join.with_inputs(whole, inputs)
        return whole

    def _on_epoch(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return times of old timelines on the clock of all others."""
        old = pl.col("ts").is_between(0, _EPOCH)
        if self._facts.shift is None or not frame.select(old.any()).item():
            return frame
        return frame.with_columns(pl.when(old).then(pl.col("ts") + self._facts.shift).otherwise("ts").alias("ts"))

    def _timelines(self) -> list[Frames]:
        read = [(path, self._ledger(path)) for path in self._capture.of("trace", "parts")]
        found = ((self._guarded(timeline_events.read, path, ledger), ledger) for path, ledger in read)
        return [timeline_frames.frames(one, self._facts.device, ledger) for one, ledger in found if one is not None]

    def _of_framework(self, sorts: Sequence[str] = ("op_range", "memory_usage")) -> list[Frames]:
        read = {"op_range": op_range.ranges, "memory_usage": op_range.memory}
        return [made for sort in sorts for made in self._each(sort, partial(read[sort], counter=self._facts.counter))]

    def _of_old_versions(self) -> list[Frames]:
        made = [one for sort, read in _LEGACY.items() for one in self._each(sort, read)]
        for said in self._each("framework_1", npu_folder.kernels):
            made = [{**one, "tasks": npu_folder.together(one["tasks"], said)} for one in made]
        for said in self._each("gpu_activities", gpu_folder.activities):
            made = [{**one, "tasks": gpu_folder.with_activities(one["tasks"], said)} for one in made]
        for said in self._each("flops_1", added_sums.flops):
            for one in made:
                one["task_counters"] = pl.concat([one["task_counters"], added_sums.with_flops(one["tasks"], said)])
        made += self._each("steps_1", npu_folder.steps)
        return [*made, *(complete({"steps": steps}) for steps in self._each("gpu_steps", gpu_folder.steps))]

    def _with_counters(self, frames: Frames) -> Frames:
        said = [*self._together("l2", csv_files.l2_cache), *self._together("ai_cpu", csv_files.ai_cpu)]
        if not said:
            return frames
        ledger = LossLedger(self._capture.root.name)
        self.ledgers.append(ledger)
        return join.with_counters(frames, said, ledger)

    def _samples(self, frames: Frames) -> Frames:
        """Return the frames that only one file fills, with the rows that they have already."""
        memory = partial(csv_files.memory, of_mindspore="_ascend_ms" in self._capture.root.name)
        samples = [frames["counters"], *self._rows("modules", csv_files.module_memory)]
        for sort, group in _CARDS.items():
            samples += self._rows(sort, partial(csv_files.samples, group=group))
        links = [*self._each("matrix", communication_files.matrix), *self._each("links_1", added_sums.links)]
        return {
            "counters": stacked("counters", samples).drop_nulls(["ts", "value"]),
            "memory": stacked("memory", self._rows("memory", memory)).drop_nulls("ts"),
            "blocks": stacked("blocks", [frames["blocks"], *self._rows("blocks", csv_files.blocks)]),
            "static_memory": stacked("static_memory", self._rows("static", csv_files.static_memory)),
            "matrix": stacked("matrix", links),
        }

    def _said(self) -> pl.DataFrame:
        made = (self._of_rows(path, partial(csv_files.summed, path=path)) for path in self._capture.of("summed"))
        sums = [one for one in made if one is not None]
        sums += self._rows("links_1", added_sums.costs)
        # Files of sums count as lost if the capture lacks the events that they sum up.
        if not self._capture.of("trace", "parts", "kernels", "events_db", "timeline_1", *OF_GPU):
            for path in self._capture.of("derived"):
                self._ledger(path).add("event_aggregate")
        return pl.concat([self._facts.frame(), *sums])

    def _together(self, sort: str, make: Callable[[AscendRows], pl.DataFrame]) -> list[pl.DataFrame]:
        """Return the rows of all files of a kind as one frame, if there are any."""
        found = [one for one in self._rows(sort, make) if one.height]
        return [pl.concat(found, how="diagonal_relaxed")] if found else []

    def _rows(self, sort: str, make: Callable[[AscendRows], pl.DataFrame]) -> list[pl.DataFrame]:
        made = (self._of_rows(path, make) for path in self._capture.of(sort))
        return [one for one in made if one is not None]

    def _of_rows(self, path: Path, make: Callable[[AscendRows], pl.DataFrame]) -> pl.DataFrame | None:
        def read(path: Path, ledger: LossLedger, progress: Progress | None) -> pl.DataFrame | None:
            parts = []
            for rows in csv_rows.read(path, ledger, progress):
                self._headers[path.name] = [header for header in rows.headers if header.strip()]
                parts.append(make(rows))
            return pl.concat(parts, how="diagonal_relaxed") if parts else None

        return self._guarded(read, path, self._ledger(path))

    def _each(self, sort: str, read: Callable[[Path, LossLedger, Progress | None], _Made]) -> list[_Made]:
        """Read each file of a kind."""
        made = (self._guarded(read, path, self._ledger(path)) for path in self._capture.of(sort))
        return [one for one in made if one is not None]

    def _guarded(
        self, read: Callable[[Path, LossLedger, Progress | None], _Made], path: Path, ledger: LossLedger
    ) -> _Made | None:
        """Read a file; None, and a loss, if it cannot be read."""
        done = self._done
        tell, total = self._progress, self._total
        shifted = None if tell is None else lambda at, _: tell(done + at, total)
        try:
            return read(path, ledger, shifted)
        except InputError:
            ledger.add("file_unreadable")
            return None
        finally:
            self._done = done + path.stat().st_size
            if tell is not None:
                tell(self._done, total)

    def _ledger(self, path: Path) -> LossLedger:
        root = self._capture.root
        ledger = LossLedger(path.relative_to(root if root.is_dir() else root.parent).as_posix())
        self.ledgers.append(ledger)
        return ledger

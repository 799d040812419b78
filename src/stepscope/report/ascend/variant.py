"""The two variants of Ascend's layout: what MindSpore's profiler writes, and what torch_npu's does.

They have the same files and differ in names, a few columns and units. Tools distinguish them by the ending of the
directory.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """What one of the two writers does its own way.

    Attributes:
        ending: Ending of a rank's directory.
        component: What memory of the framework's allocator is called.
        stage_of_work: Whether Stage runs from the first to the last work of a step; else only over its communication.
        device_columns: Whether statistics begin with the device (and the model).
        missing: Cell of ``operator_memory.csv`` for an unknown value.
        launch: Name of an arrow from an operator to its kernel.
        text_durations: Whether ``trace_view.json`` has durations as text.
        processes: Whether operators, scopes and the rest of the host lie in processes of their own with fixed numbers.
        profiler_database: File of events, with the rank.
        analysis_database: File of steps and communication.
    """

    ending: str
    component: str
    stage_of_work: bool
    device_columns: bool
    missing: str | None
    launch: str
    text_durations: bool
    processes: bool
    profiler_database: str
    analysis_database: str


MINDSPORE = Variant(
    ending="ascend_ms",
    component="MindSpore",
    stage_of_work=False,
    device_columns=True,
    missing="N/A",
    launch="mindspore_to_npu",
    text_durations=True,
    processes=True,
    profiler_database="ascend_mindspore_profiler_{rank}.db",
    analysis_database="communication_analyzer.db",
)
PYTORCH = Variant(
    ending="ascend_pt",
    component="PTA",
    stage_of_work=True,
    device_columns=False,
    missing=None,
    launch="torch_to_npu",
    text_durations=False,
    processes=False,
    profiler_database="ascend_pytorch_profiler_{rank}.db",
    analysis_database="analysis.db",
)
